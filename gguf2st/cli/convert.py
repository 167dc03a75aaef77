"""`gguf2st convert`."""

import dataclasses
import sys
from pathlib import Path

import click

from gguf2st.cli.common import (
    Size,
    arch_map_option,
    dtype_option,
    printable,
    progress_bar,
    repack_option,
    source_argument,
    table,
    tokenizer_pre_option,
)
from gguf2st.cli.push import push_options, show_pushed
from gguf2st.errors import HubError
from gguf2st.quoting import shell_word


@click.command("convert")
@source_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write; beside the source by default.")
@repack_option
@click.option(
    "--max-rel-rmse",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Refuse to repack a weight further than this from the file's, relative to its size; 0.01 with near.",
)
@dtype_option
@click.option("--max-shard-size", type=Size(), default="5GB", show_default=True, help="Close a shard before this size.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1, 256), help="Decoding threads; one per core by default, at most 8.")
@click.option(
    "--tokenizer-from",
    metavar="DIR_OR_REPO",
    help="Take the tokenizer from this folder or Hub repository, after comparing its vocabulary with the file's.",
)
@tokenizer_pre_option
@click.option("--overwrite", is_flag=True, help="Replace an existing checkpoint.")
@click.option(
    "--digests/--no-digests",
    default=None,
    help="Note the sha256 of each shard, for `verify` to compare: half a CPU second per GB. By default with --repack.",
)
@click.option("--dry-run", is_flag=True, help="Plan and check, but write nothing.")
@click.option(
    "--json", "json_file", type=click.Path(allow_dash=True), help="Write the report to this file; - is stdout."
)
@click.option("--push", metavar="REPO", help="Upload the checkpoint to this Hub repository, org/name, too.")
@click.option("--no-keep", is_flag=True, help="With --push: delete each shard once it is uploaded.")
@push_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@arch_map_option
def command(
    src: str,
    output: Path | None,
    repack: str,
    max_rel_rmse: float | None,
    dtype: str | None,
    max_shard_size: int,
    device: str,
    threads: int | None,
    tokenizer_from: str | None,
    tokenizer_pre: str | None,
    overwrite: bool,
    digests: bool | None,
    dry_run: bool,
    json_file: str | None,
    push: str | None,
    no_keep: bool,
    private: bool,
    revision: str,
    create_pr: bool,
    message: str,
    quiet: bool,
    arch_map: Path | None,
) -> None:
    """Convert a GGUF model into a Hugging Face checkpoint folder, and check it.

    SRC is a GGUF file, any shard of a split, a folder, a model on the Hub or one of ollama's. Everything that can be
    known from the header is checked before anything is downloaded or written, and the folder (by default SRC's name +
    "-safetensors", beside SRC or in the current folder) gets its name only when it is complete. After an interruption
    the same command goes on with what is missing.

    \b
    What --repack makes of a weight, and how far that is from the file's numbers (relative rmse):
      none   --dtype, always                                     rounded to 16 bits
      exact  Q4_0, TQ1_0, TQ2_0 -> int4; Q5_0, Q8_0, IQ4_NL ->   nothing: the same numbers
             int8; MXFP4, NVFP4 as they are; others as none
      near   others -> int8, a scale for 32 weights              0.2 to 0.6%; 8.5 bits a weight
      int4   Q2_K, Q4_1, Q4_K, Q5_1, Q5_K -> int4 with zero      about 7%; 4.6 bits a weight. SmolLM2-135M changed
             points; others as near                              its first choice for 3 of 10 words
    vLLM loads some modules as one (qkv_proj, the experts of a layer): those are packed alike, or not at all.

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
    """
    from gguf2st import api
    from gguf2st.hub.push import PushOptions, require_access
    from gguf2st.report import folded_rmse, human_bytes, human_count
    from gguf2st.shards import output_error
    from gguf2st.source import locate

    model = locate(src)
    if json_file not in (None, "-") and Path(str(json_file)).resolve() in {f.resolve() for f in model.paths}:
        raise click.BadParameter("the report would overwrite the source", param_hint="--json")
    if json_file not in (None, "-") and not Path(str(json_file)).parent.is_dir():
        raise click.BadParameter(f"the folder of {json_file} does not exist", param_hint="--json")
    if push is None and (no_keep or private or revision or create_pr or message):
        raise click.UsageError("--no-keep, --private, --revision, --create-pr and --message go with --push REPO")
    target = None
    if push is not None:
        target = PushOptions(push, private=private, revision=revision, create_pr=create_pr, message=message)
        if not dry_run:
            require_access(target)
    try:
        with progress_bar("converting", show=not quiet) as progress:
            report = api.convert(
                model,
                output,
                dtype=dtype,
                repack=repack,
                max_rel_rmse=max_rel_rmse,
                max_shard_size=max_shard_size,
                device=device,
                threads=threads,
                tokenizer_from=tokenizer_from,
                tokenizer_pre=tokenizer_pre,
                overwrite=overwrite,
                dry_run=dry_run,
                arch_map=arch_map,
                digests=digests,
                progress=progress,
                stream_to=target if no_keep else None,
                download_progress=lambda done, total: progress(done, total, "downloading"),
            )
    except KeyboardInterrupt:
        kept = api.partial_folder(model, output)
        if kept is not None:
            click.echo(
                f"{printable(str(kept))} keeps the finished shards: the same command goes on from there", err=True
            )
        elif model.remote and not dry_run:
            click.echo("what was downloaded is kept: the same command goes on from there", err=True)
        raise
    if target and report.output:
        try:
            pushed = api.push(report.output, target, quiet=quiet or json_file == "-" or not sys.stderr.isatty())
        except HubError:
            output_name = shell_word(report.output)
            click.echo(f"{output_name} is complete; to upload it: gguf2st push {output_name} {push}", err=True)
            raise
        report = dataclasses.replace(report, pushed=pushed)
    if json_file == "-":
        click.echo(report.to_json(), nl=False)
    elif json_file:
        try:
            Path(json_file).write_text(report.to_json(), encoding="utf-8", errors="backslashreplace")
        except OSError as err:
            raise output_error(err, Path(json_file)) from err
    if quiet or json_file == "-":
        return
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
            t.result if t.worst_rel_rmse is None else f"within {t.worst_rel_rmse:.2%}",
        )
        for t in report.types
    ]
    click.echo(table(rows, right=frozenset({1, 2, 4})))
    if report.repack != "none":
        to_source, to_bfloat16 = (report.output_nbytes / n for n in (report.source_nbytes, report.bfloat16_nbytes))
        click.echo(f"  {to_source:.2f} times the file, {to_bfloat16:.2f} times bfloat16")
    for name, (least, most) in folded_rmse(report.rel_rmse).items():
        between = f"{least:.2%}" if f"{least:.2%}" == f"{most:.2%}" else f"{least:.2%} to {most:.2%}"
        click.echo(f"  relative rmse {between}: {printable(name)}")
    for name, reason in report.choices.items():
        click.echo(f"  {printable(name)}: {printable(reason)}")
    for name, reason in report.dropped.items():
        click.echo(f"  dropped {printable(name)}: {printable(reason)}")
    for note in report.notes:
        click.echo(f"  note: {printable(note)}")
    if report.pushed and report.output is None:
        show_pushed(report.pushed)
        click.echo(f"{click.style('done', fg='green', bold=True)} in {report.seconds:.1f} s; nothing is kept here")
        click.echo(f"  serve it:             vllm serve {report.pushed.repo}")
        return
    if report.output is None:
        click.echo(f"dry run: {len(report.shards)} shard(s) would be written; nothing was")
        return
    click.echo("checked: every tensor of the source is used or accounted for, every parameter is filled")
    click.echo(f"{click.style('done', fg='green', bold=True)} in {report.seconds:.1f} s: {printable(report.output)}")
    chosen = f" --arch-map {shell_word(arch_map)}" if arch_map else ""
    output_name, source_name = shell_word(report.output), shell_word(src)
    click.echo(f"  compare every value:  gguf2st verify {output_name} --against {source_name}{chosen}")
    click.echo(f"  serve it:             vllm serve {output_name}")
    if report.pushed:
        show_pushed(report.pushed)
