"""`gguf2st push`."""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gguf2st.cli.common import Command, PathName, json_option, when_interrupted
from gguf2st.cli.lines import echo_line, first, printable

if TYPE_CHECKING:
    from gguf2st.hub.push import Pushed, PushOptions

_TOO = click.option("--push", metavar="REPO", help="Upload the checkpoint to this Hub repository, org/name, too.")
_HOW = (
    click.option("--private", is_flag=True, help="Make the repository private; an existing public one is refused."),
    click.option("--revision", default="", metavar="BRANCH", help="Commit to this branch; made if need be."),
    click.option("--create-pr", is_flag=True, help="Open a pull request on the Hub instead of committing."),
    click.option("--message", default="", help="Of the commit on the Hub."),
)
PUSHING = ("private", "revision", "create_pr", "message")
"""Their names as parameters."""


def push_too_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--push, and how: of a command that pushes only if it is told so."""
    return _TOO(_push_options(command))


def _push_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_HOW):
        command = option(command)
    return command


def target_of(repo: str | None, given: Mapping[str, Any]) -> "PushOptions | None":
    """Where to push, from the values of PUSHING; None without a repository.

    Raises:
        click.UsageError: it is said how, but not where.
        UsageError: an impossible name or combination.
    """
    from gguf2st.hub.push import PushOptions

    how = {name: given[name] for name in PUSHING}
    if repo is not None:
        return PushOptions(repo, **how)
    if any(how.values()):
        raise click.UsageError("--private, --revision, --create-pr and --message go with --push REPO")
    return None


@click.command("push", cls=Command)
@click.argument("folder", metavar="DIR", type=PathName(path_type=Path))
@click.argument("repo", metavar="REPO")
@_push_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@json_option
def command(folder: Path, repo: str, quiet: bool, as_json: bool, **given: Any) -> None:
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

    target = target_of(repo, given)
    assert target is not None
    with when_interrupted(lambda: "what was uploaded is kept: the same command sends the rest"):
        pushed = api.push(folder, target, quiet=quiet or as_json or not sys.stderr.isatty())
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(pushed), indent=2))
    elif not quiet:
        show_pushed(pushed, pushed.verification.notes)


def show_pushed(pushed: "Pushed", verified: Sequence[str] = ()) -> None:
    """What an upload did, as text, and what verification noted before it; `convert --push` has said that already."""
    from gguf2st.report import human_bytes

    if not pushed.changed:
        click.echo(f"{click.style('unchanged', fg='green', bold=True)}: {pushed.repo} holds all of it already")
    else:
        size = human_bytes(pushed.nbytes)
        click.echo(f"{click.style('pushed', fg='green', bold=True)} {len(pushed.files)} files, {size}: {pushed.url}")
    for name in first(pushed.removed, "removed files"):
        click.echo(f"  removed {printable(name)}: of an earlier upload")
    for note in first((*verified, *pushed.notes), "notes"):
        echo_line(f"  note: {printable(note)}")
