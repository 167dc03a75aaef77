"""`gguf2st inspect`."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gguf2st.cli.common import Command, arch_map_option, json_option, source_argument
from gguf2st.cli.lines import echo_table, first, printable
from gguf2st.errors import TokenizerError, short
from gguf2st.header.keys import brief
from gguf2st.quoting import source_word

if TYPE_CHECKING:
    from gguf2st.header import Header

TEMPLATE_LINES = 6
"""How much of a chat template is shown."""


@click.command("inspect", cls=Command)
@source_argument
@json_option
@arch_map_option
def command(src: str, as_json: bool, arch_map: Path | None) -> None:
    """Show what a GGUF file holds: metadata, types, sizes, and whether it can be converted.

    \b
    Examples:
      gguf2st inspect model.gguf
      gguf2st inspect org/repo:Q4_K_M
      gguf2st inspect model.gguf --json | jq .metadata
    """
    from gguf2st import api
    from gguf2st.report import human_bytes, human_count

    header = api.open_gguf(src)
    problems = api.problems(header, arch_map=arch_map)
    parameters = sum(s.n_elements for s in header.sources.values())
    nbytes = sum(s.nbytes or 0 for s in header.sources.values())
    types: dict[str, list[int]] = {}
    for source in header.sources.values():
        row = types.setdefault(source.qtype, [0, 0, 0])
        for i, n in enumerate((1, source.n_elements, source.nbytes or 0)):
            row[i] += n
    ordered = sorted(types.items(), key=lambda item: -item[1][2])
    if as_json:
        result = {
            "files": header.files,
            "version": header.version,
            "byteorder": header.byteorder,
            "tensors": len(header.sources),
            "parameters": parameters,
            "nbytes": nbytes,
            "types": {q: dict(zip(("tensors", "parameters", "nbytes"), row, strict=True)) for q, row in ordered},
            "notes": header.notes,
            "metadata": {key: _plain(value) for key, value in header.metadata.items()},
            "chat_templates": [
                {"name": name, "template": text, "refused": why} for name, text, why in _templates(header)
            ],
            "convertible": not problems,
            "problems": [line for _, line in problems],
        }
        click.echo(json.dumps(result, indent=2))
        return
    for file, size in first(list(zip(header.files, header.sizes, strict=True)), "files"):
        click.echo(f"{printable(file)}  {human_bytes(size)}, GGUF v{header.version}, {header.byteorder}-endian")
    click.echo(f"{len(header.sources)} tensors, {human_count(parameters)} parameters, {human_bytes(nbytes)}")
    rows = [(q, str(n), human_count(elements), human_bytes(size)) for q, (n, elements, size) in ordered]
    echo_table(rows, "types", right=frozenset({1, 2, 3}))
    click.echo(f"metadata, in llama.cpp's spelling: {header.notes[0]}" if header.notes else "metadata")
    keys = [(printable(short(key, 100)), _brief(value)) for key, value in header.metadata.items()]
    echo_table(keys, "keys")
    for name, text, refused in first(_templates(header), "templates"):
        click.echo(f"chat template{f' {name}' if name else ''} ({len(text):,} characters; all of it with --json)")
        click.echo("".join(f"  {printable(line)[:110]}\n" for line in text.splitlines()[:TEMPLATE_LINES]), nl=False)
        for problem in refused:
            click.echo(f"  {click.style('transformers refuses', fg='yellow')}: {printable(problem)}")
    if problems:
        click.echo(f"{click.style('not convertible', fg='red', bold=True)}: {printable(problems[0][1])}")
        click.echo(f"  {len(problems)} problem(s): `gguf2st check {source_word(src)}` lists them")
    else:
        click.echo(f"{click.style('convertible', fg='green', bold=True)}: gguf2st convert {source_word(src)}")


def _templates(header: "Header") -> list[tuple[str, str, list[str]]]:
    """Name, text, and what transformers will refuse, of each chat template. None of them is run."""
    from gguf2st.tokenizer import read_templates, refused

    try:
        return [(name, text, refused(text)) for name, text in read_templates(header.metadata).items()]
    except TokenizerError:
        return []  # it is among the problems


def _plain(value: Any) -> Any:
    """Numeric arrays as JSON lists, and what JSON has no number for as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else [_plain(v) for v in value]


def _brief(value: Any) -> str:
    """One line for a metadata value: long texts are cut, arrays show their first items and their length."""
    if isinstance(value, str):
        text = printable(value[:81])
        return text if len(text) <= 80 else f"{text[:77]}... ({len(value):,} characters)"
    if isinstance(value, bool | int | float):
        return str(value)
    first = ", ".join(printable(brief(v)) for v in list(value[:4]))
    return f"[{first}{', ...' if len(value) > 4 else ''}] ({len(value):,} {'item' if len(value) == 1 else 'items'})"
