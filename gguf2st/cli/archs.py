"""`gguf2st archs`."""

import json

import click

from gguf2st.cli.common import Command, json_option
from gguf2st.cli.lines import table, terminal_width
from gguf2st.errors import UsageError

COLUMNS = {"arch": "GGUF", "hf_class": "HF CLASS", "proof": "PROOF", "map": "MAP", "when": "WHEN"}
"""Keys of the JSON rows and titles of the table, whose last columns go first where a terminal is narrow."""


@click.command("archs", cls=Command)
@click.argument("word", required=False, default="")
@json_option
def command(word: str, as_json: bool) -> None:
    """List the supported architectures and how each is proven; with WORD, those that have it in a name.

    \b
    Proofs, of tiny models that go through llama.cpp's own converter and back:
      logits   weights and configuration are equal, and so are the logits of transformers and llama.cpp
      model    weights, configuration and the logits of transformers; llama.cpp cannot be compared
      weights  weights and configuration; transformers has no class that could run them
      none     no round trip

    \b
    Examples:
      gguf2st archs
      gguf2st archs qwen
      gguf2st archs ForSequenceClassification --json
    """
    from gguf2st.archmap.mapfile import all_maps
    from gguf2st.archmap.proofs import NO_PROOF, read_proofs

    proofs = read_proofs()
    rows = [
        {
            "arch": m.arch,
            "hf_class": ", ".join(m.constants.get("architectures", ["by the file"])),
            "proof": proofs.get(m.name, NO_PROOF).level,
            "map": m.name,
            "when": "" if m.when.text == "True" else m.when.text,
        }
        for m in all_maps()
    ]
    rows = [row for row in rows if any(word.lower() in row[key].lower() for key in ("arch", "hf_class", "map"))]
    if not rows:
        raise UsageError(f"no architecture, class or arch map is named like {word!r}", hint="`gguf2st archs` lists all")
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    columns = list(COLUMNS)
    width = terminal_width()
    while (text := _table(rows, columns, width)) and len(columns) > 2 and 0 < width < max(map(len, text.splitlines())):
        columns.pop()
    click.echo(text)


def _table(rows: list[dict[str, str]], columns: list[str], width: int) -> str:
    titles = tuple(COLUMNS[key] for key in columns)
    return table([titles, *(tuple(row[key] for key in columns) for row in rows)], width=width)
