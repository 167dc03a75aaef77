"""`gguf2st archs`."""

import json

import click

from gguf2st.cli.common import json_option, table


@click.command("archs")
@json_option
def command(as_json: bool) -> None:
    """List the supported architectures, from the arch maps.

    \b
    Examples:
      gguf2st archs
    """
    from gguf2st.mapfile import all_maps

    rows = [
        {
            "arch": m.arch,
            "map": m.name,
            "hf_class": ", ".join(m.constants.get("architectures", [])),
            "when": "" if m.when.text == "True" else m.when.text,
        }
        for m in all_maps()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(table([("GGUF", "MAP", "HF CLASS", "WHEN"), *(tuple(r.values()) for r in rows)]))
