"""`gguf2st finish`."""

from pathlib import Path
from typing import Any

import click

from gguf2st.cli.common import Command, PathName, json_file_option, progress_bar, when_interrupted
from gguf2st.cli.options import threads_option
from gguf2st.cli.push import push_too_options, target_of
from gguf2st.cli.summary import require_writable, show_done, show_summary, upload, write_json


@click.command("finish", cls=Command)
@click.argument("plan", metavar="P", type=PathName(path_type=Path))
@threads_option
@json_file_option
@push_too_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    plan: Path, threads: int | None, json_file: str | None, push: str | None, quiet: bool, **given: Any
) -> None:
    """Make the checkpoint of a plan file, once all its shards are there.

    Every shard is read and compared with the sha256 that its writer kept; index, configuration and tokenizer are added,
    and the whole is verified before it gets its name. Where shards are missing, they are listed with the commands that
    make them, and nothing is changed. The result has the bytes of a plain `gguf2st convert`.

    \b
    Examples:
      gguf2st finish model.plan
      gguf2st finish model.plan --push me/model
    """
    from gguf2st import api
    from gguf2st.hub.push import require_access

    require_writable(json_file, (plan,))
    if target := target_of(push, given):
        require_access(target)
    kept = when_interrupted(lambda: "the shards are kept: the same command begins again")
    with kept, progress_bar("comparing", show=not quiet) as progress:
        report = api.finish(plan, threads=threads, progress=progress)
    if target:
        report = upload(report, target, quiet=quiet or json_file == "-")
    write_json(report.to_json(), json_file)
    if quiet or json_file == "-":
        return
    show_summary(report)
    show_done(report, report.origin or report.files[0], None)
