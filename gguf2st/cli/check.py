"""`gguf2st check`."""

import json
import sys
from pathlib import Path

import click

from gguf2st.cli.common import arch_map_option, json_option, printable, source_argument


@click.command("check")
@source_argument
@json_option
@arch_map_option
def command(src: str, as_json: bool, arch_map: Path | None) -> None:
    """List every reason not to convert a model. Reads headers only.

    Exit code 0: it can be converted; 3: the source is bad; 4: it cannot be converted.

    \b
    Examples:
      gguf2st check model.gguf && gguf2st convert model.gguf
    """
    from gguf2st import api

    problems = api.problems(src, arch_map=arch_map)
    code = min((c for c, _ in problems), default=0)
    if as_json:
        click.echo(json.dumps({"convertible": not problems, "exit_code": code, "problems": [t for _, t in problems]}))
    elif problems:
        for _, line in problems:
            click.echo(f"{click.style('problem', fg='red', bold=True)}: {printable(line)}")
    else:
        click.echo(f"{click.style('ok', fg='green', bold=True)}: gguf2st convert {printable(src)}")
    sys.exit(code)
