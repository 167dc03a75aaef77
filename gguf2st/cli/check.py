"""`gguf2st check`."""

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gguf2st.cli.common import arch_map_option, json_option, printable, source_argument, table, tokenizer_pre_option

if TYPE_CHECKING:
    from gguf2st.serving.preflight import ServingPreflight


@click.command("check")
@source_argument
@click.option("--context-length", type=click.IntRange(1), help="Tokens to count the KV cache for; the model's own.")
@tokenizer_pre_option
@json_option
@arch_map_option
def command(
    src: str, context_length: int | None, tokenizer_pre: str | None, as_json: bool, arch_map: Path | None
) -> None:
    """List every reason not to convert a model, and what vLLM will do with the result. Reads headers only.

    Exit code 0: it can be converted; 3: the source is bad; 4: it cannot be converted.

    \b
    Examples:
      gguf2st check model.gguf && gguf2st convert model.gguf
      gguf2st check model.gguf --context-length 32768
    """
    from gguf2st import api
    from gguf2st.serving.preflight import preflight_source

    problems = api.problems(src, arch_map=arch_map, tokenizer_pre=tokenizer_pre)
    code = min((c for c, _ in problems), default=0)
    serving = None if problems else preflight_source(src, context_length=context_length, arch_map=arch_map)
    if as_json:
        result = {"convertible": not problems, "exit_code": code, "problems": [t for _, t in problems]}
        click.echo(json.dumps(result | {"serving": serving and dataclasses.asdict(serving)}))
    for _, line in [] if as_json else problems:
        click.echo(f"{click.style('problem', fg='red', bold=True)}: {printable(line)}")
    if serving and not as_json:
        options = [*(("--arch-map", str(arch_map)) if arch_map else ())]
        options += ("--tokenizer-pre", tokenizer_pre) if tokenizer_pre else ()
        command_line = printable(shlex.join(["gguf2st", "convert", src, *options]))
        click.echo(f"{click.style('ok', fg='green', bold=True)}: {command_line}")
        _show(serving)
    sys.exit(code)


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
        ("avoid", serving.pitfalls[0]),
    ]
    click.echo(f"serving with vLLM {serving.vllm}:")
    click.echo(table(rows))
