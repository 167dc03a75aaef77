"""`gguf2st plan`."""

import json
from pathlib import Path

import click

from gguf2st.cli.common import arch_map_option, json_option, printable, source_argument, table


@click.command("plan")
@source_argument
@json_option
@arch_map_option
def command(src: str, as_json: bool, arch_map: Path | None) -> None:
    """Show the equations of a conversion as instantiated for a file: HF tensor = GGUF tensors | ops.

    Layers and experts are folded. Reads headers only.

    \b
    Examples:
      gguf2st plan model.gguf
      gguf2st plan model.gguf --json > plan.json
    """
    from gguf2st import api
    from gguf2st.plan import folded_equations, to_json

    plan = api.make_plan(src, arch_map=arch_map)
    if as_json:
        click.echo(to_json(plan))
        return
    click.echo(f"map {plan.map} for {plan.arch}: {len(plan.entries)} tensors in {len(plan.shards)} shard(s)")
    click.echo(
        table([(printable(name), shape, printable(f"= {text}")) for name, text, shape in folded_equations(plan)])
    )
    for name, reason in plan.dropped.items():
        click.echo(f"  dropped {printable(name)}: {printable(reason)}")
    for note in plan.notes:
        click.echo(f"  note: {printable(note)}")
    click.echo("config.json")
    click.echo(table([(key, json.dumps(value)) for key, value in plan.config.items()]))
    for line in plan.all_problems:
        click.echo(f"{click.style('problem', fg='red', bold=True)}: {printable(line)}")
    plan.require_complete()
