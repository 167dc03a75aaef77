"""What `convert` and `finish` say at the end: the report as text, as a file, and with an upload."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gguf2st.cli.lines import echo_line, echo_table, first, printable
from gguf2st.cli.push import show_pushed
from gguf2st.errors import HubError, OutputError
from gguf2st.quoting import shell_word, source_word

if TYPE_CHECKING:
    from gguf2st.hub.push import PushOptions
    from gguf2st.report import Report

MOST_LINES = 3
"""How many modules of one reason get a line each."""


def show_summary(report: "Report") -> None:
    """What became of a model's tensors, and what its user should know."""
    from gguf2st.report import human_bytes, human_count

    heading = printable(f"{report.arch} -> {report.hf_class}")
    click.echo(
        f"{heading}: {report.tensors} tensors, {human_count(report.parameters)} parameters, "
        f"{human_bytes(report.source_nbytes)} -> {human_bytes(report.output_nbytes)} {report.dtype}"
    )
    rows = [
        (
            t.qtype,
            str(t.tensors),
            human_bytes(t.nbytes),
            f"-> {t.dtype if t.scheme == 'dense' else t.scheme}",
            human_bytes(t.output_nbytes),
            t.result if t.worst_rel_rmse is None else f"relative rmse up to {t.worst_rel_rmse:.2%}",
        )
        for t in report.types
    ]
    echo_table(rows, "types", right=frozenset({1, 2, 4}))
    if report.repack != "none":
        to_source, to_bfloat16 = (report.output_nbytes / n for n in (report.source_nbytes, report.bfloat16_nbytes))
        click.echo(f"  {to_source:.2f} times the file, {to_bfloat16:.2f} times bfloat16")
    show_choices(report.choices)
    for name, reason in first(report.dropped.items(), "dropped tensors"):
        echo_line(f"  dropped {printable(name)}: {printable(reason)}")
    for note in first(report.notes, "notes"):
        echo_line(f"  note: {printable(note)}")


def show_choices(choices: Mapping[str, str]) -> None:
    """Why modules became what they did: a line each, or one for many of them."""
    from gguf2st.fold import few

    modules: dict[str, list[str]] = {}
    for name, reason in choices.items():
        modules.setdefault(reason, []).append(name)
    for reason, names in first(modules.items(), "reasons"):
        for line in names if len(names) <= MOST_LINES else [few(names, MOST_LINES)]:
            echo_line(f"  {printable(line)}: {printable(reason)}")


def show_done(report: "Report", src: str, arch_map: Path | None) -> None:
    """That a checkpoint is complete, and what to do with it."""
    from gguf2st.serving.tasks import prompt_template

    assert report.output is not None
    click.echo("checked: every tensor of the source is used or accounted for, every parameter is filled")
    click.echo(f"{click.style('done', fg='green', bold=True)} in {report.seconds:.1f} s: {printable(report.output)}")
    chosen = f" --arch-map {shell_word(arch_map)}" if arch_map else ""
    output_name, source_name = shell_word(Path(report.output)), source_word(src)
    click.echo(f"  compare every value:  gguf2st verify {output_name} --against {source_name}{chosen}")
    template = prompt_template(Path(report.output))
    prompt = f" --chat-template {shell_word(template)}" if template else ""
    click.echo(f"  serve it:             vllm serve {output_name}{prompt}")
    if report.pushed:
        show_pushed(report.pushed)


def upload(report: "Report", target: "PushOptions", *, quiet: bool) -> "Report":
    """Push a checkpoint that is complete; the report with what that did.

    Raises:
        HubError: it could not be uploaded; how to try again has been said.
    """
    from gguf2st import api

    assert report.output is not None
    try:
        pushed = api.push(report.output, target, quiet=quiet or not sys.stderr.isatty())
    except (HubError, KeyboardInterrupt):
        name = shell_word(Path(report.output))
        click.echo(f"{name} is complete; to upload it: gguf2st push {name} {target.repo}", err=True)
        raise
    return dataclasses.replace(report, pushed=pushed)


def require_writable(json_file: str | None, source: "tuple[Path, ...]") -> None:
    """Refuse a file for the report that would overwrite the source or cannot be written, which shows only at the end.

    Raises:
        BadParameter: it is the source, or has no folder to lie in.
        OutputError: it is a folder, or not writable.
    """
    if json_file in (None, "-"):
        return
    path = Path(str(json_file))
    if path.resolve() in {f.resolve() for f in source}:
        raise click.BadParameter("the report would overwrite the source", param_hint="--json")
    if not path.parent.is_dir():
        raise click.BadParameter(f"the folder of {printable(str(json_file))} does not exist", param_hint="--json")
    hint = "nothing was done yet; choose another name for --json"
    if path.is_dir():
        raise OutputError(f"{json_file} is a folder, not a file for the report", hint=hint)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"{json_file} is not writable", hint=hint)


def write_json(text: str, json_file: str | None) -> None:
    """Print a report (`-`), or write it to a file; nothing for None.

    Raises:
        OutputError: the file cannot be written.
    """
    from gguf2st.output.shards import output_error

    if json_file == "-":
        click.echo(text, nl=False)
    elif json_file:
        try:
            Path(json_file).write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as err:
            raise output_error(err, Path(json_file)) from err
