"""`gguf2st push`."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gguf2st.cli.common import json_option, printable

if TYPE_CHECKING:
    from gguf2st.hub.push import Pushed


def push_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How to push: the same for `convert --push`."""
    for option in (
        click.option("--message", default="", help="Of the commit on the Hub."),
        click.option("--create-pr", is_flag=True, help="Open a pull request on the Hub instead of committing."),
        click.option("--revision", default="", metavar="BRANCH", help="Commit to this branch; made if need be."),
        click.option("--private", is_flag=True, help="Make the repository private; an existing public one is refused."),
    ):
        command = option(command)
    return command


@click.command("push")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("repo", metavar="REPO")
@push_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@json_option
def command(
    folder: Path, repo: str, private: bool, revision: str, create_pr: bool, message: str, quiet: bool, as_json: bool
) -> None:
    """Upload a checkpoint to the Hugging Face Hub: verified first, with a model card, visible in one commit.

    REPO is org/name, made if it does not exist. A README.md in DIR is uploaded as it is; without one, a card is written
    from what the GGUF and the conversion say. After an interruption the same command sends only what is missing. The
    token is huggingface_hub's: `hf auth login`, or HF_TOKEN.

    \b
    Examples:
      gguf2st push model me/my-model
      gguf2st push model org/my-model --private --revision bf16
      gguf2st push model somebody/their-model --create-pr --message "Add safetensors weights"
    """
    from gguf2st import api
    from gguf2st.hub.push import PushOptions

    target = PushOptions(repo, private=private, revision=revision, create_pr=create_pr, message=message)
    pushed = api.push(folder, target, quiet=quiet or as_json or not sys.stderr.isatty())
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(pushed), indent=2))
    elif not quiet:
        show_pushed(pushed)


def show_pushed(pushed: "Pushed") -> None:
    """What an upload did, as text; `convert --push` prints it too."""
    from gguf2st.report import human_bytes

    if not pushed.changed:
        click.echo(f"{click.style('unchanged', fg='green', bold=True)}: {pushed.repo} holds all of it already")
    else:
        size = human_bytes(pushed.nbytes)
        click.echo(f"{click.style('pushed', fg='green', bold=True)} {len(pushed.files)} files, {size}: {pushed.url}")
    for name in pushed.removed:
        click.echo(f"  removed {printable(name)}: of an earlier upload")
    for note in pushed.notes:
        click.echo(f"  note: {printable(note)}")
