"""Turn the shards of a planned conversion into the checkpoint, once all of them are there."""

import dataclasses
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gguf2st.conversion import Conversion, Progress, conclude, default_threads, prepare, write_small_files
from gguf2st.errors import OutputError, SourceError
from gguf2st.hub.provenance import PROVENANCE_FILE
from gguf2st.hub.stream import ShardStream
from gguf2st.output.digests import sha256_of
from gguf2st.output.folder import OutputFolder
from gguf2st.output.shards import is_whole, shard_outputs
from gguf2st.quoting import shell_word
from gguf2st.report import Report
from gguf2st.scaleout.folder import Record, follows, partial_of, records_in
from gguf2st.scaleout.planned import (
    Planned,
    command_to_compare,
    commands_for,
    has_all_shards,
    planned_text,
    require_same_source,
    require_target,
)
from gguf2st.source import is_address
from gguf2st.source.unchanged import identity, require_unchanged


def finish(planned: Planned, *, threads: int | None = None, progress: Progress | None = None) -> Report:
    """Check every shard, add what a checkpoint needs besides, verify it, and give it its name.

    The plan is made once more and must be the same: what the shards were made by is not taken from a file alone.

    Args:
        planned: what was made, and where.
        threads: how many shards are read at once; by default as many as `convert` would use.
        progress: told about bytes of shards that were compared with their sha256.

    Raises:
        OutputError: shards are missing, or are not what was written; `problems` says how to make each. Or the target
            exists, or a process is still at work.
        SourceError: the source has changed since the plan was written.
        VerifyError: the checkpoint is not what the plan says; the shards are kept.
    """
    started = time.monotonic()
    require_target(planned)
    here = [Path(file) for file in planned.plan.header.files if not is_address(file)]
    before = identity(here)
    require_same_source(planned)
    conversion = prepare(planned.model, planned.output, planned.options)
    if planned_text(conversion) != planned.text:
        raise SourceError(
            f"{planned.path} is not what this source and these options give: it, or an arch map, was changed",
            hint=f"plan again: gguf2st plan SRC --write {shell_word(planned.path)}",
        )
    names = [shard.file for shard in planned.plan.shards]
    if not follows(partial_of(planned.output), planned.text):
        raise _absent(planned, names, {})
    with (
        OutputFolder(planned.output, planned.text, overwrite=planned.options.overwrite, shared=True) as output,
        ThreadPoolExecutor(threads or default_threads()) as pool,
    ):
        records = records_in(output.partial, names)
        _require_all(planned, output.partial, records, pool, progress)
        tokens = conversion.tokens()
        small = write_small_files(conversion, output.partial, tokens)
        require_unchanged(here, before)
        output.require_only([*small, *names, PROVENANCE_FILE])
        report, _ = conclude(
            conversion,
            output.partial,
            small,
            tokens=tokens,
            rmses=_losses(conversion, records),
            digests={name: records[name].sha256 for name in names} if planned.options.hashes else {},
        )
        output.finish()
    return dataclasses.replace(report, seconds=round(time.monotonic() - started, 3))


def finish_streamed(conversion: Conversion, planned: Planned, stream: ShardStream) -> Report:
    """The same where every shard was uploaded and deleted: verify what is kept of them, and make all of it visible.

    Raises:
        OutputError: something else was uploaded than was written; nothing is visible then.
        SourceError: the source has changed meanwhile.
        HubError: the Hub refuses.
    """
    with OutputFolder(planned.output, planned.text, overwrite=planned.options.overwrite, shared=True) as output:
        records, sent = records_in(output.partial, [shard.file for shard in planned.plan.shards]), stream.digests()
        if changed := [name for name, record in records.items() if sent.get(name) != record.sha256]:
            raise _missing(planned, changed, "changed since they were written")
        tokens = conversion.tokens()
        small = write_small_files(conversion, stream.folder, tokens)
        require_same_source(planned)
        digests = sent if planned.options.hashes else {}
        losses = _losses(conversion, records)
        report, checked = conclude(
            conversion, stream.folder, small, tokens=tokens, rmses=losses, digests=digests, kept=False
        )
        pushed = stream.finish(checked)
        output.discard()
    return dataclasses.replace(report, pushed=pushed)


def _require_all(
    planned: Planned,
    partial: Path,
    records: Mapping[str, Record],
    pool: ThreadPoolExecutor,
    progress: Progress | None,
) -> None:
    """Raise OutputError unless every shard is there, with the bytes that were written."""
    shards = list(enumerate(planned.plan.shards))
    gone = [
        s.file
        for n, s in shards
        if s.file not in records or not is_whole(partial / s.file, shard_outputs(planned.plan, n))
    ]
    if gone:
        raise _absent(planned, gone, records)
    total = sum(planned.sizes)
    changed = []
    digests = pool.map(sha256_of, (partial / shard.file for _, shard in shards))
    for (_, shard), digest in zip(shards, digests, strict=True):
        if digest != records[shard.file].sha256:
            changed.append(shard.file)
        if progress:
            progress(shard.nbytes, total)
    if changed:
        raise _missing(planned, changed, "changed since they were written")


def _absent(planned: Planned, names: list[str], records: Mapping[str, Record]) -> OutputError:
    """What to say of shards that are not in the partial folder: a run that was killed at its end moved them to OUT."""
    out, shards = planned.output, planned.plan.shards
    if len(names) < len(shards) or not has_all_shards(planned):
        return _missing(planned, names)
    compare = command_to_compare(planned)
    if len(records) < len(shards):  # the records went with the partial folder
        return OutputError(
            f"{out} has all shards of this plan already, and {partial_of(out)} has none to replace them with",
            hint=f"if this plan made it, which `{compare}` tells, nothing is left to do; if not: "
            f"gguf2st convert --plan {shell_word(planned.path)}",
        )
    if any(sha256_of(out / name) != record.sha256 for name, record in records.items()):
        return _missing(planned, names)
    return OutputError(
        f"{out} is complete already: its shards are those that this plan's writers noted the sha256 of",
        hint=f"nothing is left to do; `{compare}` compares every value",
    )


def _missing(planned: Planned, names: list[str], what: str = "missing") -> OutputError:
    return OutputError(
        f"{len(names)} of {len(planned.plan.shards)} shards of {planned.output} are {what}",
        problems=commands_for(planned, names),
        hint=f"run these commands, or all at once: gguf2st convert --plan {shell_word(planned.path)}",
    )


def _losses(conversion: Conversion, records: Mapping[str, Record]) -> dict[str, float]:
    """What `execute` returns, in the order of the shards."""
    from gguf2st.execute.losses import measure  # its package loads numpy and numba

    schemes = {entry.name: entry.scheme for entry in conversion.plan.entries}
    sums = {name: pair for shard in conversion.plan.shards for name, pair in records[shard.file].sums.items()}
    return {name: measure(schemes[name], pair) for name, pair in sums.items() if name in schemes}
