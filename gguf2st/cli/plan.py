"""`gguf2st plan`."""

import json
from pathlib import Path

import click

from gguf2st.cli.common import (
    arch_map_option,
    dtype_option,
    json_option,
    printable,
    repack_option,
    source_argument,
    table,
)


@click.command("plan")
@source_argument
@repack_option
@dtype_option
@json_option
@arch_map_option
def command(src: str, repack: str, dtype: str | None, as_json: bool, arch_map: Path | None) -> None:
    """Show the equations of a conversion as instantiated for a file: HF tensor = GGUF tensors | ops.

    Layers and experts are folded; of each row, the shape and what it becomes. Reads headers only.

    \b
    Examples:
      gguf2st plan model.gguf
      gguf2st plan model.gguf --repack near
      gguf2st plan model.gguf --json > plan.json
    """
    from gguf2st import api
    from gguf2st.choice import decisions
    from gguf2st.config.quantization import quantization_config
    from gguf2st.plan import folded_equations, to_json

    plan = api.make_plan(src, dtype=dtype, repack=repack, arch_map=arch_map)
    if as_json:
        click.echo(to_json(plan))
        return
    chosen = printable(f"map {plan.map} for {plan.arch}")
    click.echo(f"{chosen}: {len(plan.entries)} tensors in {len(plan.shards)} shard(s)")
    rows, quantization = folded_equations(plan), quantization_config(plan)
    click.echo(table([(printable(name), shape, become, printable(f"= {text}")) for name, shape, become, text in rows]))
    for name, reason in decisions(plan).items():
        click.echo(f"  {printable(name)}: {printable(reason)}")
    for name, reason in plan.dropped.items():
        click.echo(f"  dropped {printable(name)}: {printable(reason)}")
    for note in plan.notes:
        click.echo(f"  note: {printable(note)}")
    click.echo("config.json")
    config = {**plan.config, **({"quantization_config": quantization} if quantization else {})}
    click.echo(table([(key, json.dumps(value)) for key, value in config.items()]))
    for line in plan.all_problems:
        click.echo(f"{click.style('problem', fg='red', bold=True)}: {printable(line)}")
    plan.require_complete()
