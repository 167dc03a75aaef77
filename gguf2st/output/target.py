"""Whether a conversion may end in a folder: whatever is there and is not a checkpoint alone stays as it is."""

import os
from pathlib import Path

from gguf2st.errors import OutputError
from gguf2st.fold import few
from gguf2st.output.replaceable import foreign_in
from gguf2st.output.shards import output_error
from gguf2st.quoting import shell_word


class TakenError(OutputError):
    """Something is there that stays: -o or --overwrite of the command that says where the output goes may help."""


def check_target(out: Path, *, overwrite: bool) -> None:
    """Whether a conversion may end in `out`: absent, an empty folder, or a checkpoint to overwrite.

    Raises:
        TakenError: it may not.
        OutputError: it cannot be looked at.
    """
    try:
        try:
            out.stat()  # `exists` would take a circle of links for nothing at all
        except FileNotFoundError:
            return
        _check_existing(out, overwrite)
    except OSError as err:
        raise output_error(err, out) from err


def _check_existing(out: Path, overwrite: bool) -> None:
    if not out.is_dir():
        raise TakenError(f"{out} is a file; the output is a folder", hint="choose another name with -o")
    # The finished folder gets its name by renaming.
    for cannot, what in ((os.path.ismount(out), "a mount point"), (out.samefile(Path.cwd()), "the current folder")):
        if cannot:
            raise TakenError(
                f"{out} is {what}, which cannot be replaced",
                hint=f"give a folder in it: -o {shell_word(out / 'model')}",
            )
    if not any(out.iterdir()):
        return
    left_alone, hint = _why_left_alone(out)
    if left_alone:
        exists, leaves = ("", "leaves") if overwrite else ("exists already and ", "would leave")
        raise TakenError(f"{out} {exists}{left_alone}, so --overwrite {leaves} it alone", hint=hint)
    if not overwrite:
        raise TakenError(f"{out} exists already", hint="--overwrite replaces it; -o chooses another folder")


def _why_left_alone(out: Path) -> tuple[str, str]:
    """(why --overwrite does not replace a folder with files in it, what to do about that); "" when it does."""
    if not (out / "config.json").is_file():
        return "is not a checkpoint (it has no config.json)", "choose another folder with -o, or remove it yourself"
    if foreign := foreign_in(out):
        names, them = few([repr(name) for name in foreign], 4), "it" if len(foreign) == 1 else "them"
        return (
            f"holds {names}, which no conversion put there",
            f"move {them} away, or choose another folder with -o",
        )
    return "", ""
