"""The shards of a split model: whether files belong together, and their headers as one."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from gguf2st.errors import HeaderError
from gguf2st.header.keys import brief

if TYPE_CHECKING:
    from gguf2st.header import Header, Source

_ANOTHER = "a shard belongs to another model: download it again"


def joined(parts: "Sequence[Header]") -> "Header":
    """The header of a model from those of its files: all shards of one split in order, or one file that is no shard.

    Raises HeaderError when they do not belong together.
    """
    _check(parts)
    sources: dict[str, Source] = {}
    for part in parts:
        if twice := sorted(sources.keys() & part.sources.keys()):
            raise HeaderError(
                f"{part.files[0]}: {len(twice)} tensors are in another shard too, such as {twice[0]!r}",
                problems=twice,
                hint=_ANOTHER,
            )
        sources |= part.sources
    files, sizes = tuple(p.files[0] for p in parts), tuple(p.sizes[0] for p in parts)
    return replace(parts[0], files=files, sizes=sizes, sources=sources)


def _check(parts: "Sequence[Header]") -> None:
    """Whether the files are shards of one split in order, or one file that is no shard."""
    first = parts[0]
    count = _split_number(first, "split.count", 1)
    if count <= 1 and len(parts) == 1:
        return
    if count <= 1:
        raise HeaderError(
            f"{first.files[0]}: {len(parts)} files were given, but this one is no shard of a split",
            hint="give one file, or any shard of a split: the others are found by their names",
        )
    if count != len(parts):
        here = {_split_number(part, "split.no", -1) + 1 for part in parts}
        absent = islice((str(number) for number in range(1, count + 1) if number not in here), 20)
        raise HeaderError(
            f"{first.files[0]}: one of {count} shards, of which {len(parts)} were given; missing: {', '.join(absent)}",
            hint="put all shards into one folder and name any of them",
        )
    for position, part in enumerate(parts):
        number, of = _split_number(part, "split.no", -1), _split_number(part, "split.count", -1)
        if (number, of) != (position, count):
            raise HeaderError(
                f"{part.files[0]}: expected shard {position + 1} of {count}; its header says "
                + (f"shard {number + 1} of {of}" if number >= 0 else "that it is no shard"),
                hint="a shard was renamed or belongs to another model: download it again",
            )
        if part.byteorder != first.byteorder:
            raise HeaderError(f"{part.files[0]}: {part.byteorder}-endian, unlike the first shard", hint=_ANOTHER)
        _check_shard_metadata(first, part)
    found = sum(len(part.sources) for part in parts)
    if (promised := _split_number(first, "split.tensors.count", found)) != found:
        raise HeaderError(
            f"{first.files[0]}: split.tensors.count is {promised}, but the shards hold {found} tensors", hint=_ANOTHER
        )


def _check_shard_metadata(first: "Header", part: "Header") -> None:
    """Check that a shard says nothing else about the model than the first one, the only one that is read for that.

    Where a shard repeats keys (most tools leave them out), a difference shows that it is another model's.
    """
    for key, value in part.metadata.items():
        if key.startswith("split.") or key == "general.alignment":  # about this file alone
            continue
        said = first.metadata.get(key)
        lost = said is None and not key.startswith("general.")
        if lost or (said is not None and said != value and value == value):  # NaN equals nothing
            here = "does not say" if said is None else f"gives as {brief(said)}"
            raise HeaderError(
                f"{part.files[0]}: its header has {brief(key)} = {brief(value)}, which the first shard {here}",
                hint=_ANOTHER,
            )


def _split_number(part: "Header", key: str, default: int) -> int:
    value = part.metadata.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise HeaderError(
        f"{part.files[0]}: {key} is {brief(value)}; a whole number was expected, as every shard of a split has it",
        hint="the file is damaged, or was split by another program: download it again",
    )
