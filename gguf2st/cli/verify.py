"""`gguf2st verify`."""

import dataclasses
import json
import sys
from pathlib import Path

import click

from gguf2st.cli.common import (
    SOURCE,
    Command,
    PathName,
    arch_map_option,
    json_option,
    progress_bar,
    show_error,
)
from gguf2st.cli.lines import echo_line, first, printable
from gguf2st.errors import VerifyError


@click.command("verify", cls=Command)
@click.argument("folder", metavar="DIR", type=PathName(path_type=Path))
@click.option("--against", metavar="SRC", type=SOURCE, help="The GGUF it came from: every value is compared.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="With --against, compare this share of each tensor's rows instead of all, such as 0.01.",
)
@click.option(
    "--max-rel-rmse",
    type=click.FloatRange(0, 1, min_open=True),
    help="With --against, what packed weights may lose where their format cannot hold the source's numbers; "
    "0.01 for 8 bits, twice that for each bit less.",
)
@click.option(
    "--accept",
    type=click.Choice(["chat-template", "generation-config"]),
    multiple=True,
    help="With --against, take this for edited on purpose: it may differ from the source. Can be given twice.",
)
@click.option("--model", is_flag=True, help="Compare with transformers' class too (needs gguf2st[verify]).")
@click.option("--run", is_flag=True, help="Load and run it too, and compare with llama.cpp if --against is given.")
@json_option
@arch_map_option
def command(
    folder: Path,
    against: str | None,
    sample: float,
    max_rel_rmse: float | None,
    accept: tuple[str, ...],
    model: bool,
    run: bool,
    as_json: bool,
    arch_map: Path | None,
) -> None:
    """Prove a checkpoint whole: files, headers, index and config.json agree; with --against, every value is right.

    Works on any Hugging Face folder, whoever wrote it, also on one quantized by compressed-tensors. Exit code 5:
    something is wrong.

    \b
    Examples:
      gguf2st verify model
      gguf2st verify model --against model.Q4_K_M.gguf --model --run
      gguf2st verify model --against model.Q4_K_M.gguf --sample 0.01
      gguf2st verify model --against model.Q4_K_M.gguf --accept chat-template
    """
    from gguf2st import api
    from gguf2st.source import locate

    if not against and (sample < 1 or max_rel_rmse is not None or accept):
        raise click.UsageError("--sample, --max-rel-rmse and --accept go with --against SRC")
    total, source = 0, None
    if against and (folder / "config.json").is_file():
        source = locate(against)
        total = sum(s.n_elements for s in api.open_gguf(source).sources.values())
    with progress_bar("comparing", show=not as_json, unit_bytes=False) as advance:
        result = api.verify(
            folder,
            source or against,
            sample=sample,
            max_rel_rmse=max_rel_rmse,
            accept=accept,
            model=model,
            run=run,
            arch_map=arch_map,
            progress=lambda n: advance(n, int(total * sample)),
            download_progress=lambda done, all_of_it: advance(done, all_of_it, "downloading"),
        )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result) | {"ok": result.ok}, indent=2))
    try:
        result.require_ok()
    except VerifyError as err:
        show_error(err)
        sys.exit(err.exit_code)  # not raised on: with --json the result has been printed
    if not as_json:
        verb = "compared with" if any(loss.weights > loss.equal for loss in result.losses) else "equal to"
        compared = f", {result.compared:,} values {verb} the source" if against else ""
        click.echo(
            f"{click.style('ok', fg='green', bold=True)} ({', '.join(result.levels)}): {result.tensors} tensors, "
            f"{result.parameters:,} parameters{compared}"
        )
        for note in first((*result.losses, *result.notes), "notes"):
            echo_line(f"  {printable(str(note))}")
