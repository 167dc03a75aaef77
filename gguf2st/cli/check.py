"""`gguf2st check`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gguf2st.cli.common import (
    Command,
    arch_map_option,
    json_option,
    source_argument,
    tokenizer_pre_option,
)
from gguf2st.cli.lines import echo_table, first, printable
from gguf2st.errors import Gguf2stError
from gguf2st.quoting import shell_line

if TYPE_CHECKING:
    from gguf2st.serving.preflight import Repacking, ServingPreflight


@click.command("check", cls=Command)
@source_argument
@click.option("--context-length", type=click.IntRange(1), help="Tokens to count the KV cache for; the model's own.")
@tokenizer_pre_option
@json_option
@arch_map_option
def command(
    src: str, context_length: int | None, tokenizer_pre: str | None, as_json: bool, arch_map: Path | None
) -> None:
    """List every reason not to convert a model, and what vLLM will do with the result. Reads headers only.

    Of a model on the Hub, a few megabytes are fetched. Exit code 0: it can be converted; 3: the source is bad; 4: it
    cannot be converted; 8: the Hub does not answer, or refuses.

    \b
    Examples:
      gguf2st check org/repo:Q4_K_M
      gguf2st check model.gguf && gguf2st convert model.gguf
      gguf2st check model.gguf --context-length 32768
    """
    from gguf2st import api
    from gguf2st.serving.preflight import preflight_source

    try:
        header = api.open_gguf(src)
    except Gguf2stError as err:
        _show_unreadable(err, as_json=as_json)
        sys.exit(err.exit_code)
    problems = api.problems(header, arch_map=arch_map, tokenizer_pre=tokenizer_pre)
    code = min((c for c, _ in problems), default=0)
    serving = None if problems else preflight_source(header, context_length=context_length, arch_map=arch_map)
    if as_json:
        result = {"convertible": not problems, "exit_code": code, "problems": [t for _, t in problems]}
        click.echo(json.dumps(result | {"serving": serving and dataclasses.asdict(serving)}))
    for _, line in first([] if as_json else problems, "problems"):
        click.echo(f"{click.style('problem', fg='red', bold=True)}: {printable(line)}")
    if serving and not as_json:
        options = [*(("--arch-map", str(arch_map)) if arch_map else ())]
        options += ("--tokenizer-pre", tokenizer_pre) if tokenizer_pre else ()
        command_line = shell_line(["gguf2st", "convert", src, *options])
        click.echo(f"{click.style('ok', fg='green', bold=True)}: {command_line}")
        _show(serving)
    sys.exit(code)


def _show_unreadable(err: Gguf2stError, *, as_json: bool) -> None:
    """A source that cannot be opened is the one problem; its details say what there is instead."""
    if as_json:
        result = {"convertible": False, "exit_code": err.exit_code, "problems": [err.message], "serving": None}
        click.echo(json.dumps(result | {"details": err.problems, "hint": err.hint}))
        return
    click.echo(f"{click.style('problem', fg='red', bold=True)}: {printable(err.message)}")
    for line in err.problems:
        click.echo(f"  - {printable(line)}")
    if err.hint:
        click.echo(f"{click.style('hint', fg='cyan', bold=True)}: {printable(err.hint)}")


def _repacking(one: "Repacking") -> str:
    from gguf2st.report import human_bytes

    kernels = (f"{name} runs on {one.kernels[name]}" for name in one.formats)
    return "; ".join([f"--repack {one.mode} gives {human_bytes(one.weights_nbytes)}", *kernels, *one.notes])


def _show(serving: "ServingPreflight") -> None:
    from gguf2st.report import human_bytes

    sizes = serving.tensor_parallel
    parallel = ", ".join(str(n) for n, why in sizes.items() if not why)
    if refused := {n: why for n, why in sizes.items() if why}:
        parallel += f"; not {', '.join(map(str, refused))} ({next(iter(refused.values()))})"
    cache = "unknown" if serving.kv_nbytes is None else human_bytes(serving.kv_nbytes)
    rows = [
        ("class", serving.served_text),
        ("format", f"{serving.dtype}: {serving.format_text}"),
        ("weights", human_bytes(serving.weights_nbytes)),
        ("KV cache", f"{cache} for a request of {serving.context_length} tokens ({serving.kv_text})"),
        ("parallel", f"--tensor-parallel-size {parallel}"),
        *(("repack", _repacking(one)) for one in serving.repackings),
        ("avoid", serving.pitfalls[0]),
    ]
    click.echo(f"serving with vLLM {serving.vllm}:")
    echo_table(rows, "rows")
