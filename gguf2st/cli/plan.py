"""`gguf2st plan`."""

import json
from pathlib import Path
from typing import Any

import click

from gguf2st.cli.common import Command, PathName, json_option, source_argument
from gguf2st.cli.lines import echo_line, echo_table, first, printable
from gguf2st.cli.options import PLANNED, conversion_options, options_of, require_absent
from gguf2st.cli.summary import show_choices, show_summary
from gguf2st.errors import short
from gguf2st.quoting import shell_word


@click.command("plan", cls=Command)
@source_argument
@conversion_options
@click.option("--write", type=PathName(path_type=Path), metavar="P", help="Write a plan file for `convert --plan`.")
@json_option
def command(src: str, output: Path | None, write: Path | None, as_json: bool, **given: Any) -> None:
    """Show the equations of a conversion as instantiated for a file: HF tensor = GGUF tensors | ops.

    Layers and experts are folded; of each row, the shape and what it becomes. Reads headers only.

    With --write, check everything that `convert` checks, and write what it would do into the file P, for many processes
    to do: each runs `gguf2st convert --plan P --shard i/N`, and `gguf2st finish P` ends it. The same SRC and options
    write the same file.

    \b
    Examples:
      gguf2st plan model.gguf
      gguf2st plan model.gguf --repack near
      gguf2st plan model.gguf --json > plan.json
      gguf2st plan model.gguf -o model --write model.plan
    """
    if write is not None:
        _write(src, output, write, as_json, given)
        return
    only = set(PLANNED) - {"repack", "dtype", "max_shard_size", "arch_map"}
    require_absent([*only, "output"], "goes with --write P")
    _show(src, as_json, given)


def _write(src: str, output: Path | None, write: Path, as_json: bool, given: dict[str, Any]) -> None:
    """Write a plan file, and say how to go on."""
    from gguf2st import api
    from gguf2st.report import human_bytes

    report = api.write_plan(src, write, output, options_of(given))
    if as_json:
        click.echo(report.to_json(), nl=False)
        return
    show_summary(report)
    count, size, name = len(report.shards), human_bytes(report.output_nbytes), shell_word(write)
    click.echo(f"{click.style('done', fg='green', bold=True)}: {printable(str(write))}: {count} shard(s), {size}")
    click.echo(f"  each of N processes, i from 1 to N:  gguf2st convert --plan {name} --shard i/N")
    click.echo(f"  once every share is done:            gguf2st finish {name}")


def _show(src: str, as_json: bool, given: dict[str, Any]) -> None:
    """Print a plan."""
    from gguf2st import api
    from gguf2st.config.quantization import quantization_config
    from gguf2st.plan import folded_equations
    from gguf2st.plan.as_json import to_json
    from gguf2st.plan.choice import decisions

    names = ("dtype", "repack", "max_shard_size", "arch_map")
    plan = api.make_plan(src, **{name: given[name] for name in names})
    if as_json:
        click.echo(to_json(plan))
        return
    chosen = printable(f"map {plan.map} for {plan.arch}")
    click.echo(f"{chosen}: {len(plan.entries)} tensors in {len(plan.shards)} shard(s)")
    rows, quantization = folded_equations(plan), quantization_config(plan)
    equations = [(printable(name), shape, become, printable(f"= {text}")) for name, shape, become, text in rows]
    echo_table(equations, "equations")
    show_choices(decisions(plan))
    for name, reason in first(plan.dropped.items(), "dropped tensors"):
        echo_line(f"  dropped {printable(name)}: {printable(reason)}")
    for note in first(plan.notes, "notes"):
        echo_line(f"  note: {printable(note)}")
    click.echo("config.json")
    config = {**plan.config, **({"quantization_config": quantization} if quantization else {})}
    echo_table([(key, short(json.dumps(value))) for key, value in config.items()], "keys")
    plan.require_complete()  # says every problem
