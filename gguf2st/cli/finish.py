"""`gguf2st finish`."""

from pathlib import Path

import click

from gguf2st.cli.common import progress_bar
from gguf2st.cli.options import threads_option
from gguf2st.cli.push import push_options
from gguf2st.cli.summary import require_writable, show_done, show_summary, upload, write_json


@click.command("finish")
@click.argument("plan", metavar="P", type=click.Path(path_type=Path))
@threads_option
@click.option(
    "--json", "json_file", type=click.Path(allow_dash=True), help="Write the report to this file; - is stdout."
)
@click.option("--push", metavar="REPO", help="Upload the checkpoint to this Hub repository, org/name, too.")
@push_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    plan: Path,
    threads: int | None,
    json_file: str | None,
    push: str | None,
    private: bool,
    revision: str,
    create_pr: bool,
    message: str,
    quiet: bool,
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
    from gguf2st.hub.push import PushOptions, require_access

    require_writable(json_file, (plan,))
    if push is None and (private or revision or create_pr or message):
        raise click.UsageError("--private, --revision, --create-pr and --message go with --push REPO")
    target = None
    if push is not None:
        target = PushOptions(push, private=private, revision=revision, create_pr=create_pr, message=message)
        require_access(target)
    with progress_bar("comparing", show=not quiet) as progress:
        report = api.finish(plan, threads=threads, progress=progress)
    if target:
        report = upload(report, target, quiet=quiet or json_file == "-")
    write_json(report.to_json(), json_file)
    if quiet or json_file == "-":
        return
    show_summary(report)
    show_done(report, report.origin or report.files[0], None)
