"""The plan file: everything that was decided about a conversion, for processes that do not decide again. Two lines:

    {"gguf2st": version, "output": folder, "model": {...}, "options": {...}, "files": [{...}, ...]}
    the plan, as `gguf2st plan SRC --json` prints it

`files` says how the source's files were, so that nobody works on others. The same source and options give the same
text; a copy of it lies in `OUT.partial/plan.json`, by which every process knows the shards there for those of its plan.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf2st import __version__
from gguf2st.conversion import Conversion, Options, prepare
from gguf2st.errors import OutputError, SourceError, unreadable
from gguf2st.header import Header
from gguf2st.output.shards import is_whole, shard_outputs, write_text
from gguf2st.output.target import TakenError, check_target
from gguf2st.plan import Plan
from gguf2st.plan.as_json import from_json, to_json
from gguf2st.quants.layout import DECODABLE
from gguf2st.quoting import shell_word, source_word
from gguf2st.records import MistypedError, from_plain
from gguf2st.scaleout.shares import share_numbers
from gguf2st.source import Model, is_address, locate

MAX_HEAD_NBYTES = 16 << 20
"""Of the first line; a source of a thousand files takes 0.3 MB."""
_HINT = "`gguf2st plan SRC --write P` writes one"


@dataclass(frozen=True)
class FileState:
    """What tells on every machine that a file is still the same.

    Attributes:
        nbytes: its size.
        mtime_ns: when it was last written to.
        header_sha256: of everything before its first tensor.
    """

    nbytes: int
    mtime_ns: int
    header_sha256: str


@dataclass(frozen=True)
class Planned:
    """A plan file that was read.

    Attributes:
        path: of it.
        text: what it says.
        output: folder of the checkpoint.
        files: of the source as they were; none for a model on the Hub, whose commit says it.
        plan: without the metadata of the GGUF, which `finish` reads again.
    """

    path: Path
    text: str
    output: Path
    model: Model
    options: Options
    files: tuple[FileState, ...]
    plan: Plan

    @property
    def sizes(self) -> list[int]:
        """Bytes of each shard."""
        return [shard.nbytes for shard in self.plan.shards]


def plan_anywhere(src: str | Path | Model, out: str | Path | None, options: Options) -> Conversion:
    """As `conversion.prepare`, with paths that mean the same in every folder."""
    model = locate(src)
    files = tuple(file if is_address(file) else os.path.abspath(file) for file in model.files)
    model = dataclasses.replace(model, files=files, output=Path(os.path.abspath(model.output)))
    return prepare(model, os.path.abspath(model.output if out is None else out), options)


def planned_text(conversion: Conversion) -> str:
    """The text of a plan file.

    Raises:
        SourceError: a file of the source is gone.
    """
    model, header = conversion.model, conversion.plan.header
    states = () if model.remote else file_states(header)
    head = {
        "gguf2st": __version__,
        "output": os.path.abspath(conversion.folder),
        "model": vars(model) | {"output": str(model.output)},
        "options": dataclasses.asdict(conversion.options),
        "files": [dataclasses.asdict(state) for state in states],
    }
    return f"{json.dumps(head)}\n{to_json(conversion.plan)}\n"


def planned_by(conversion: Conversion, path: Path) -> Planned:
    """What `read_planned` would make of a plan file at `path`; it need not be there."""
    model, plan = conversion.model, conversion.plan
    states = () if model.remote else file_states(plan.header)
    text = planned_text(conversion)
    return Planned(path, text, Path(os.path.abspath(conversion.folder)), model, conversion.options, states, plan)


def write_planned(conversion: Conversion, path: Path) -> None:
    """Write a plan file. Another plan file there is replaced, any other file is not.

    Raises:
        OutputError: it cannot be written.
    """
    if path.exists() and not _is_plan_file(path):
        raise OutputError(f"{path} exists, and is no plan file", hint="choose another name for --write")
    write_text(path, planned_text(conversion))


def read_planned(path: Path) -> Planned:
    """Read a plan file.

    Raises:
        SourceError: there is none, it is damaged, or another version wrote it.
    """
    try:
        with open(path, encoding="utf-8") as file:
            first = file.readline(MAX_HEAD_NBYTES)
            head = _head(path, first)
            if head.get("gguf2st") != __version__:
                raise SourceError(
                    f"{path} was written by gguf2st {str(head.get('gguf2st'))[:40]}, this is {__version__}",
                    hint="plan again, and convert with the same version on every machine",
                )
            second = file.read()
    except OSError as err:
        raise SourceError(f"{path}: {err.strerror or err}", hint=_HINT) from err
    except UnicodeDecodeError:
        raise SourceError(f"{path} is no plan file", hint=_HINT) from None
    try:
        model = {**head["model"]}
        output = Path(from_plain(str, model.pop("output")))
        texts = {name: from_plain(str, model[name]) for name in ("origin", "revision")}
        lists = {name: from_plain(tuple[str, ...], model[name]) for name in ("files", "notes")}
        planned = Planned(
            path=path,
            text=first + second,
            output=Path(from_plain(str, head["output"])),
            model=Model(output=output, **texts, **lists),
            options=from_plain(Options, head["options"]),
            files=from_plain(tuple[FileState, ...], head["files"]),
            plan=from_json(second),
        )
        _require_sound(planned)
    except SourceError as err:
        raise SourceError(f"{path}: {err.message}", hint=_HINT) from None
    except (MistypedError, KeyError, TypeError, ValueError, AttributeError) as err:
        raise SourceError(f"{path} is damaged: {str(err)[:200]}", hint=_HINT) from None
    return planned


def require_target(planned: Planned) -> None:
    """`check_target` for a plan: its options are given when it is written, and its checkpoint may be there already.

    Raises:
        OutputError: the output exists and must not be replaced.
    """
    try:
        check_target(planned.output, overwrite=planned.options.overwrite)
    except TakenError as err:
        hint = f"{err.hint} (options of `gguf2st plan`, which writes the plan anew)"
        if planned.options.overwrite or not has_all_shards(planned):
            raise OutputError(err.message, hint=hint, problems=err.problems) from None
        raise OutputError(
            f"{err.message}, with every shard of this plan",
            hint=f"if this plan made it, which `{command_to_compare(planned)}` tells, nothing is left to do; if not: "
            f"{hint}",
        ) from None


def has_all_shards(planned: Planned) -> bool:
    """Whether the output folder has every shard of the plan, by sizes and headers alone: their values may be others."""
    out, plan = planned.output, planned.plan
    return os.path.isfile(out / "config.json") and all(
        is_whole(out / shard.file, shard_outputs(plan, n)) for n, shard in enumerate(plan.shards)
    )


def command_to_compare(planned: Planned) -> str:
    """The command that tells whether the output folder has the values of the plan's source."""
    source = source_word(planned.model.origin or planned.plan.header.files[0])
    return f"gguf2st verify {shell_word(planned.output)} --against {source}"


def require_same_source(planned: Planned) -> None:
    """Raise SourceError when a file of the source is no longer what was planned for."""
    if planned.model.remote:
        return
    header = planned.plan.header
    for name, was, now in zip(header.files, planned.files, file_states(header), strict=True):
        if was == now:
            continue
        fields = {"nbytes": "size", "mtime_ns": "time of its last change", "header_sha256": "header"}
        changed = [what for field, what in fields.items() if getattr(was, field) != getattr(now, field)]
        raise SourceError(
            f"{name} has changed since {planned.path} was written: its {' and '.join(changed)}",
            hint=f"plan again: gguf2st plan {shell_word(name)} --write {shell_word(planned.path)}",
        )


def file_states(header: Header) -> tuple[FileState, ...]:
    """How the files of a source on this machine are now.

    Raises:
        SourceError: one cannot be read.
    """
    starts: list[int] = list(header.sizes)
    for source in header.sources.values():
        starts[source.file] = min(starts[source.file], source.offset)
    states = []
    for name, start in zip(header.files, starts, strict=True):
        try:
            with open(name, "rb") as file:
                status = os.fstat(file.fileno())
                digest, left = hashlib.sha256(), start
                while left and (piece := file.read(min(left, 1 << 20))):
                    digest.update(piece)
                    left -= len(piece)
        except OSError as err:
            raise unreadable(err, name) from err
        states.append(FileState(status.st_size, status.st_mtime_ns, digest.hexdigest()))
    return tuple(states)


def _head(path: Path, line: str) -> dict[str, Any]:
    """The first line, if it is one of ours."""
    try:
        head: Any = json.loads(line)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or "gguf2st" not in head:
        raise SourceError(f"{path} is no plan file", hint=_HINT)
    return head


def _is_plan_file(path: Path) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            _head(path, file.readline(MAX_HEAD_NBYTES))
    except (OSError, UnicodeDecodeError, SourceError):
        return False
    return True


def _require_sound(planned: Planned) -> None:
    """Raise ValueError where the two lines do not belong together."""
    plan, files = planned.plan, planned.plan.header.files
    if planned.model.files != files:
        raise ValueError("its plan is about other files")
    if len(planned.files) != (0 if planned.model.remote else len(files)):
        raise ValueError(f"{len(planned.files)} states of {len(files)} files")
    if not planned.output.is_absolute() or not planned.output.name:
        raise ValueError(f"{str(planned.output)[:60]!r} is no folder for a checkpoint")
    if not plan.shards or not all(entry.outputs for entry in plan.entries):
        raise ValueError("the plan has no shards")
    if problems := plan.all_problems:
        raise ValueError(f"the plan is not one that can be followed: {problems[0]}")
    used = {plan.header.sources[name].qtype for entry in plan.entries for name in entry.sources}
    if unknown := used - DECODABLE:
        raise ValueError(f"nothing decodes {min(unknown)[:20]!r}")


def commands_for(planned: Planned, names: Sequence[str]) -> list[str]:
    """For each of these shards the command that makes it, on one line with its name."""
    numbers = dict(
        zip((s.file for s in planned.plan.shards), share_numbers(planned.sizes, of := len(planned.sizes)), strict=True)
    )
    command = f"gguf2st convert --plan {shell_word(planned.path)} --shard"
    return [f"{name}: {command} {numbers[name]}/{of}" for name in names]
