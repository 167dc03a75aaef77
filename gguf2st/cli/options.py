"""What decides about the bytes of a checkpoint, as options of `convert` and of `plan --write`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gguf2st.cli.common import PathName, Size, arch_map_option, dtype_option, repack_option, tokenizer_pre_option

if TYPE_CHECKING:
    from gguf2st.conversion import Options

_OUTPUT = click.option(
    "-o",
    "--output",
    type=PathName(path_type=Path, readable=False),
    help="Folder to write; beside the source by default.",
)
_FOR_BYTES = (
    repack_option,
    click.option(
        "--max-rel-rmse",
        type=click.FloatRange(0, min_open=True),
        metavar="X",
        help="Refuse to repack a weight further than this from the file's, relative to its size; 0.01 with near.",
    ),
    dtype_option,
    click.option(
        "--max-shard-size", type=Size(), default="5GB", show_default=True, help="Close a shard before this size."
    ),
    click.option(
        "--tokenizer-from",
        metavar="DIR_OR_REPO",
        help="Take the tokenizer from this folder or Hub repository, after comparing its vocabulary with the file's.",
    ),
    tokenizer_pre_option,
    click.option("--overwrite", is_flag=True, help="Replace an existing checkpoint."),
    click.option(
        "--digests/--no-digests",
        default=None,
        help="Note the sha256 of each shard, for `verify` to compare: half a CPU second per GB. "
        "By default with --repack.",
    ),
    arch_map_option,
)
PLANNED = (
    "repack",
    "max_rel_rmse",
    "dtype",
    "max_shard_size",
    "tokenizer_from",
    "tokenizer_pre",
    "overwrite",
    "digests",
    "arch_map",
)
"""Their names as parameters."""

device_option = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="What decodes."
)
threads_option = click.option(
    "--threads", type=click.IntRange(1, 256), help="Decoding threads; one per core by default, at most 8."
)


def conversion_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """-o, and the options that become `Options`."""
    for option in reversed((_OUTPUT, *_FOR_BYTES)):
        command = option(command)
    return command


def options_of(given: Mapping[str, Any]) -> "Options":
    """The values of PLANNED as one object."""
    from gguf2st.conversion import Options

    values = {name: given[name] for name in PLANNED}
    return Options(**values | {"arch_map": None if values["arch_map"] is None else str(values["arch_map"])})


def require_absent(names: Iterable[str], why: str) -> None:
    """Raise a usage error when one of these parameters was given."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP, None):
            name = parameter.opts[-1] if isinstance(parameter, click.Option) else str(parameter.name).upper()
            raise click.UsageError(f"{name} {why}")
