"""The command line. One module per command; each parses, calls the API and prints. No logic here."""

import importlib
from typing import Any

import click

from gguf2st import __version__
from gguf2st.cli.common import run

_COMMANDS = {
    "convert": "convert a GGUF model into a checkpoint folder",
    "inspect": "what a GGUF file holds, and whether it can be converted",
    "check": "every reason not to convert, at once",
    "plan": "the tensors a conversion would write, and from what; or a plan file for many processes",
    "finish": "make the checkpoint of a plan file once its shards are there",
    "verify": "prove a checkpoint whole, and equal to its source",
    "push": "upload a checkpoint to the Hugging Face Hub, with a model card",
    "batch": "convert many models, as a manifest says",
    "serve": "serve a checkpoint or a GGUF with vLLM, and watch it",
    "archs": "the supported architectures",
}


class _LazyGroup(click.Group):
    """Imports a command's module only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"gguf2st.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but for Ctrl-C, after which it would write an empty line wherever stderr leads."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise click.Abort from interrupt

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with names near to one that is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as err:
            raise click.exceptions.NoSuchCommand(err.command_name, possibilities=_COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 too little memory, 2 usage, 3 bad source, 4 not convertible, 5 verification failed, "
    "6 cannot write, 7 serving failed, 8 Hub, 9 a model of a batch failed, 10 cluster or GPU, 130 interrupted.",
)
@click.version_option(__version__, prog_name="gguf2st")
def cli() -> None:
    """Convert GGUF models into complete, verified Hugging Face checkpoints that vLLM and transformers load.

    \b
    Examples:
      gguf2st convert model.Q4_K_M.gguf -o model
      gguf2st check model.Q4_K_M.gguf
      gguf2st verify model --against model.Q4_K_M.gguf
    """


def main(args: list[str] | None = None) -> Any:
    """Entry point: errors become one line and an exit code."""
    return run(cli, args)
