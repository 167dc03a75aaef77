"""`gguf2st convert`."""

from pathlib import Path

import click

from gguf2st.cli.common import (
    Size,
    arch_map_option,
    printable,
    progress_bar,
    source_argument,
    table,
    tokenizer_pre_option,
)


@click.command("convert")
@source_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write; beside the source by default.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), default="bfloat16", show_default=True)
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
@click.option("--dry-run", is_flag=True, help="Plan and check, but write nothing.")
@click.option(
    "--json", "json_file", type=click.Path(allow_dash=True), help="Write the report to this file; - is stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@arch_map_option
def command(
    src: str,
    output: Path | None,
    dtype: str,
    max_shard_size: int,
    device: str,
    threads: int | None,
    tokenizer_from: str | None,
    tokenizer_pre: str | None,
    overwrite: bool,
    dry_run: bool,
    json_file: str | None,
    quiet: bool,
    arch_map: Path | None,
) -> None:
    """Convert a GGUF model into a Hugging Face checkpoint folder, and check it.

    SRC is a GGUF file, any shard of a split, or a folder with one model. Everything that can be known from the header
    is checked before anything is written, and the folder (by default SRC's name + "-safetensors", beside SRC) gets its
    name only when it is complete. After an interruption the same command goes on with the shards that are missing.

    \b
    Examples:
      gguf2st convert model.Q4_K_M.gguf
      gguf2st convert model-00001-of-00003.gguf -o model --dtype float16
      gguf2st convert model.gguf --dry-run --json -
    """
    from gguf2st import api
    from gguf2st.report import human_bytes, human_count
    from gguf2st.shards import output_error
    from gguf2st.source import find_files

    if json_file not in (None, "-") and Path(str(json_file)).resolve() in {f.resolve() for f in find_files(src)}:
        raise click.BadParameter("the report would overwrite the source", param_hint="--json")
    if json_file not in (None, "-") and not Path(str(json_file)).parent.is_dir():
        raise click.BadParameter(f"the folder of {json_file} does not exist", param_hint="--json")
    try:
        with progress_bar("converting", show=not quiet) as progress:
            report = api.convert(
                src,
                output,
                dtype=dtype,
                max_shard_size=max_shard_size,
                device=device,
                threads=threads,
                tokenizer_from=tokenizer_from,
                tokenizer_pre=tokenizer_pre,
                overwrite=overwrite,
                dry_run=dry_run,
                arch_map=arch_map,
                progress=progress,
            )
    except KeyboardInterrupt:
        kept = api.partial_folder(src, output)
        if kept is not None:
            click.echo(
                f"{printable(str(kept))} keeps the finished shards: the same command goes on from there", err=True
            )
        raise
    if json_file == "-":
        click.echo(report.to_json(), nl=False)
    elif json_file:
        try:
            Path(json_file).write_text(report.to_json(), encoding="utf-8")
        except OSError as err:
            raise output_error(err, Path(json_file)) from err
    if quiet or json_file == "-":
        return
    click.echo(
        f"{report.arch} -> {report.hf_class}: {report.tensors} tensors, {human_count(report.parameters)} parameters, "
        f"{human_bytes(report.source_nbytes)} -> {human_bytes(report.output_nbytes)} {report.dtype}"
    )
    rows = [(t.qtype, str(t.tensors), human_bytes(t.nbytes), f"-> {t.dtype} ({t.scheme})") for t in report.types]
    click.echo(table(rows, right=frozenset({1, 2})))
    for name, reason in report.dropped.items():
        click.echo(f"  dropped {printable(name)}: {printable(reason)}")
    for note in report.notes:
        click.echo(f"  note: {printable(note)}")
    if report.output is None:
        click.echo(f"dry run: {len(report.shards)} shard(s) would be written; nothing was")
        return
    click.echo("checked: every tensor of the source is used or accounted for, every parameter is filled")
    click.echo(f"{click.style('done', fg='green', bold=True)} in {report.seconds:.1f} s: {printable(report.output)}")
    chosen = f" --arch-map {_quoted(str(arch_map))}" if arch_map else ""
    output_name, source_name = _quoted(report.output), _quoted(report.files[0])
    click.echo(f"  compare every value:  gguf2st verify {output_name} --against {source_name}{chosen}")
    click.echo(f"  serve it:             vllm serve {output_name}")


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(printable(path))
