"""`gguf2st convert`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gguf2st.cli.common import (
    Command,
    PathName,
    json_file_option,
    optional_source_argument,
    progress_bar,
    when_interrupted,
)
from gguf2st.cli.lines import echo_line, printable
from gguf2st.cli.options import PLANNED, conversion_options, device_option, options_of, require_absent, threads_option
from gguf2st.cli.push import PUSHING, push_too_options, show_pushed, target_of
from gguf2st.cli.summary import require_writable, show_done, show_summary, upload, write_json
from gguf2st.quoting import shell_word

if TYPE_CHECKING:
    from gguf2st.hub.push import PushOptions
    from gguf2st.report import Report
    from gguf2st.source import Model


@click.command("convert", cls=Command)
@optional_source_argument
@conversion_options
@device_option
@threads_option
@click.option("--plan", type=PathName(path_type=Path), metavar="P", help="Instead of SRC: shards of this plan file.")
@click.option("--shard", metavar="I/N", help="With --plan: only the I-th of N shares of its shards.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where shards are written: by this process, or as tasks of a Ray cluster (needs gguf2st[ray]).",
)
@click.option("--address", metavar="HOST:PORT", help="Of the Ray cluster; by default the one on this machine.")
@click.option("--dry-run", is_flag=True, help="Plan and check, but write nothing.")
@json_file_option
@push_too_options
@click.option("--no-keep", is_flag=True, help="With --push: delete each shard once it is uploaded.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    src: str | None,
    output: Path | None,
    device: str,
    threads: int | None,
    plan: Path | None,
    shard: str | None,
    engine: str,
    address: str | None,
    dry_run: bool,
    json_file: str | None,
    push: str | None,
    no_keep: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Convert a GGUF model into a Hugging Face checkpoint folder, and check it.

    SRC is a GGUF file, any shard of a split, a folder, a model on the Hub or one of ollama's. Everything that can be
    known from the header is checked before anything is downloaded or written, and the folder (by default SRC's name +
    "-safetensors", beside SRC or in the current folder) gets its name only when it is complete. After an interruption
    the same command goes on with what is missing.

    \b
    What --repack makes of a weight, and how far that is from the file's numbers (relative rmse):
      none   --dtype, always                                     rounded to 16 bits
      exact  Q4_0, Q1_0, Q2_0, TQ1_0, TQ2_0 -> int4; Q5_0,       nothing: the same numbers
             Q8_0, Q8_1, Q3_K, IQ4_NL -> int8; MXFP4 and NVFP4
             as they are; others as none
      near   others -> int8, a scale for 32 weights              up to 0.6%; 8.5 bits a weight
      int4   Q2_K, Q4_1, Q4_K, Q5_1, Q5_K -> int4 with zero      about 7%; 4.6 bits a weight. SmolLM2-135M changed
             points; others as near                              its first choice for 3 of 10 words
    vLLM loads some modules as one (qkv_proj, the experts of a layer): those are packed alike, or not at all.

    Many processes can share the work: `gguf2st plan SRC --write P` settles it, `gguf2st convert --plan P --shard i/N`
    writes the i-th of N shares of the shards, on any machine that has the same files, and `gguf2st finish P` makes the
    checkpoint of them. `--engine ray` does all three on a Ray cluster.

    \b
    Examples:
      gguf2st convert model.Q4_K_M.gguf
      gguf2st convert model.Q8_0.gguf --repack exact
      gguf2st convert model.Q4_K_M.gguf --repack near --max-rel-rmse 0.006
      gguf2st convert org/repo:Q4_K_M
      gguf2st convert ollama://llama3.2:1b
      gguf2st convert model-00001-of-00003.gguf -o model --dtype float16
      gguf2st convert model.gguf --dry-run --json -
      gguf2st convert org/repo:Q4_K_M --push me/model --no-keep
      gguf2st convert --plan model.plan --shard 3/20
      gguf2st convert model.gguf -o model --engine ray --address 10.0.0.1:6379
    """
    from gguf2st.hub.push import require_access

    if address and engine != "ray":
        raise click.UsageError("--address goes with --engine ray")
    if plan is not None:
        require_absent(["src"], "is not given with --plan, which names the source")
        require_absent([*PLANNED, "output"], "is settled by the plan: it goes with `gguf2st plan SRC --write P`")
        require_absent(["push", "no_keep", "dry_run"], "does not go with --plan; `gguf2st finish P` uploads")
        require_absent(PUSHING, "goes with `gguf2st finish P --push REPO`")
        _convert_planned(plan, shard, device, threads, engine, address, json_file, quiet)
        return
    if src is None:
        raise click.UsageError("missing argument 'SRC', or --plan")
    if shard is not None:
        raise click.UsageError("--shard goes with --plan: `gguf2st plan SRC --write P` writes one")
    if push is None and no_keep:
        raise click.UsageError("--no-keep goes with --push REPO")
    target = target_of(push, given)
    if target and not dry_run:
        require_access(target)
    arguments = {"device": device, "threads": threads, "engine": engine, "address": address, "dry_run": dry_run}
    report = _convert(src, output, given, arguments, json_file, quiet, target if no_keep else None)
    if target and report.output:
        report = upload(report, target, quiet=quiet or json_file == "-")
    write_json(report.to_json(), json_file)
    if quiet or json_file == "-":
        return
    show_summary(report)
    if report.pushed and report.output is None:
        show_pushed(report.pushed)
        click.echo(f"{click.style('done', fg='green', bold=True)} in {report.seconds:.1f} s; nothing is kept here")
        click.echo(f"  serve it:             vllm serve {report.pushed.repo}")
    elif report.output is None:
        click.echo(f"dry run: {len(report.shards)} shard(s) would be written; nothing was")
    else:
        show_done(report, src, given["arch_map"])


def _convert(
    src: str,
    output: Path | None,
    given: dict[str, Any],
    arguments: dict[str, Any],
    json_file: str | None,
    quiet: bool,
    stream_to: "PushOptions | None",
) -> "Report":
    """Convert from a source; after Ctrl-C say what is kept."""
    from gguf2st import api
    from gguf2st.source import locate

    model = locate(src)
    require_writable(json_file, model.paths)
    options = options_of(given)
    told = when_interrupted(lambda: _left_behind(model, output, arguments["dry_run"], stream_to))
    with told, progress_bar("converting", show=not quiet) as progress:
        return api.convert(
            model,
            output,
            **dataclasses.asdict(options) | {"arch_map": given["arch_map"]},
            **arguments,
            progress=progress,
            stream_to=stream_to,
            download_progress=lambda done, total: progress(done, total, "downloading"),
        )


def _left_behind(model: "Model", output: Path | None, dry_run: bool, stream_to: "PushOptions | None") -> str:
    """What an interrupted conversion leaves behind."""
    from gguf2st import api

    kept = api.partial_folder(model, output)
    if kept is not None:
        return f"{kept} keeps the finished shards: the same command goes on from there"
    if stream_to is not None:
        return "what was uploaded is kept: the same command goes on from there"
    if model.remote and not dry_run:
        return "what was downloaded is kept: the same command goes on from there"
    return "no unfinished file is left behind"


def _convert_planned(
    plan: Path,
    shard: str | None,
    device: str,
    threads: int | None,
    engine: str,
    address: str | None,
    json_file: str | None,
    quiet: bool,
) -> None:
    """Write shards of a plan, and say how to go on."""
    from gguf2st import api
    from gguf2st.report import human_bytes

    require_writable(json_file, (plan,))
    told = when_interrupted(lambda: "finished shards are kept: the same command goes on from there")
    with told, progress_bar("converting", show=not quiet) as progress:
        written = api.convert_planned(
            plan,
            shard,
            device=device,
            threads=threads,
            engine=engine,
            address=address,
            progress=progress,
            download_progress=lambda done, total: progress(done, total, "downloading"),
        )
    write_json(written.to_json(), json_file)
    if quiet or json_file == "-":
        return
    done = click.style("done", fg="green", bold=True)
    if not written.shards:
        click.echo(f"{done}: share {shard} is empty, as there are fewer shards than shares")
    else:
        names = [name.removesuffix(".safetensors") for name in (written.shards[0], written.shards[-1])]
        span = names[0] if names[0] == names[1] else f"{names[0]} to {names[1]}"
        kept = f", {len(written.kept)} were finished already" if written.kept else ""
        size = human_bytes(written.nbytes)
        click.echo(f"{done} in {written.seconds:.1f} s: {span}: {len(written.written)} written ({size}){kept}")
    for note in written.notes:
        echo_line(f"  note: {printable(note)}")
    click.echo(f"  once every share is done:  gguf2st finish {shell_word(plan)}")
