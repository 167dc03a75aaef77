"""The Python API: one function per command, typed, returning what `--json` writes."""

import dataclasses
import json
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from gguf2st import __version__
from gguf2st.conversion import (
    DEVICES,
    MAX_REL_RMSE,
    Options,
    Progress,
    conclude,
    decoder_for,
    default_threads,
    downloaded,
    prepare,
    require_bound,
    require_workers,
    write_small_files,
)
from gguf2st.errors import UsageError
from gguf2st.hub.provenance import PROVENANCE_FILE
from gguf2st.hub.push import Pushed, PushOptions, push_folder, require_access
from gguf2st.hub.stream import ShardStream
from gguf2st.limits import require_address_space
from gguf2st.output.digests import ShardDigests
from gguf2st.output.folder import PARTIAL, OutputFolder
from gguf2st.output.small_files import configurations
from gguf2st.plan.as_json import to_json
from gguf2st.plan.planning import DEFAULT_SHARD_NBYTES, make_plan, open_gguf
from gguf2st.plan.problems import problem_lines, problems
from gguf2st.report import Report
from gguf2st.scaleout.finishing import finish as finish_planned
from gguf2st.scaleout.planned import plan_anywhere, read_planned, write_planned
from gguf2st.scaleout.shares import EVERYTHING, parse_share
from gguf2st.scaleout.work import Written, write_shards
from gguf2st.source import Model, locate
from gguf2st.source.unchanged import identity as identity_of
from gguf2st.source.unchanged import require_unchanged
from gguf2st.verification import Verification, checkpoint_dtype, verify_folder
from gguf2st.verification.checkpoint import EDITABLE

__all__ = [
    "DEFAULT_SHARD_NBYTES",
    "DEVICES",
    "MAX_REL_RMSE",
    "Options",
    "convert",
    "convert_planned",
    "default_threads",
    "finish",
    "make_plan",
    "open_gguf",
    "partial_folder",
    "problem_lines",
    "problems",
    "push",
    "verify",
    "write_plan",
]

ENGINES = ("local", "ray")


def convert(
    src: str | Path | Model,
    out: str | Path | None = None,
    *,
    dtype: str | None = None,
    repack: str = "none",
    max_rel_rmse: float | None = None,
    max_shard_size: int = DEFAULT_SHARD_NBYTES,
    device: str = "auto",
    threads: int | None = None,
    tokenizer_from: str | Path | None = None,
    tokenizer_pre: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    arch_map: Path | None = None,
    digests: bool | None = None,
    progress: Progress | None = None,
    download_progress: Progress | None = None,
    stream_to: PushOptions | None = None,
    engine: str = "local",
    address: str | None = None,
) -> Report:
    """Convert a GGUF model into a Hugging Face checkpoint folder, and check it.

    Everything that can be known from headers is checked before anything is downloaded or written. The folder gets its
    name only when it is complete; after an interruption the same call goes on where it stopped.

    Args:
        src: as for `open_gguf`; a model on the Hub is downloaded into huggingface_hub's cache.
        out: folder to write; by default beside the source, or in the current folder when that is not a plain file.
        dtype: of the output: bfloat16 (the default), float16 (the default with `repack`) or float32.
        repack: keep weights quantized, in formats that vLLM serves: none; exact, where such a format holds the same
            numbers; near, also in 8 bits within a bound; int4, also in 4 bits at a loss. The rest is dequantized.
        max_rel_rmse: how far a repacked weight may be from the source's, relative to its size; by default 0.01 with
            near, and as far as it takes with int4.
        max_shard_size: bytes; a shard is closed before it would exceed this.
        device: auto, cpu or cuda; auto is cuda where a device, Triton and a torch with CUDA are at hand and work.
        threads: how many decode and write at once; by default one per available core, at most 8.
        tokenizer_from: a folder, or a Hub repository org/name[@revision], whose tokenizer files are taken after
            comparing their vocabulary with the file's.
        tokenizer_pre: how words are split, as a `tokenizer.ggml.pre` name; goes before what the file says.
        overwrite: replace an existing checkpoint.
        dry_run: plan and check only.
        arch_map: a map to use instead of choosing one.
        digests: put the sha256 of each shard into the report and into gguf2st.json, where `verify` looks for it; None
            does so with `repack` only, for what is not packed can be compared with the source bit by bit.
        progress: told about bytes written.
        download_progress: told about bytes downloaded.
        stream_to: upload each shard there once it is written and delete it here, so that the disk of one shard is
            enough; all become visible in one commit at the end. Nothing is kept, and `progress` counts uploads too.
        engine: local, or ray: then the tasks of a Ray cluster write the shards, `device` and `threads` being theirs.
            Source and output must be in the same place on all its machines.
        address: of the Ray cluster, host:port; by default the one on this machine.

    Raises:
        Gguf2stError: one of its subclasses; `exit_code` says which kind of problem it is.
    """
    started = time.monotonic()
    require_workers(device, threads)
    options = Options(
        dtype=dtype,
        repack=repack,
        max_rel_rmse=max_rel_rmse,
        max_shard_size=max_shard_size,
        tokenizer_from=None if tokenizer_from is None else str(tokenizer_from),
        tokenizer_pre=tokenizer_pre,
        overwrite=overwrite,
        arch_map=None if arch_map is None else str(arch_map),
        digests=digests,
    )
    _require_engine(engine)
    conversion = (plan_anywhere if engine == "ray" else prepare)(src, out, options)
    if dry_run:
        return conversion.dry_report(time.monotonic() - started)
    if stream_to:
        require_access(stream_to)
    if engine == "ray":
        from gguf2st.scaleout.ray_engine import convert_on_ray

        return convert_on_ray(conversion, device, threads, address, progress, stream_to)
    require_address_space()
    from gguf2st.execute import execute  # loads numpy and numba, which planning does without
    from gguf2st.execute.threads import run_ahead

    plan, model, folder = conversion.plan, conversion.model, conversion.folder
    decode, threads, device_notes = decoder_for(device, threads)
    sizes = [s.nbytes for s in plan.shards]
    total = 2 * sum(sizes) if stream_to else sum(sizes)  # written, and uploaded
    tell = (lambda nbytes: progress(nbytes, total)) if progress else None
    room = folder, max(sizes) if stream_to else sum(sizes)
    here = downloaded(plan, model, download_progress, output=room)
    files = [Path(file) for file in here.header.files]
    identity = identity_of(files)
    # A commit says what its files hold, wherever the cache has them.
    known = [] if model.remote else identity
    given = [known, str(tokenizer_from), tokenizer_pre]
    fingerprint = json.dumps([__version__, to_json(plan), conversion.configs, *given])
    earlier: tuple[str, ...] = ()
    with (
        OutputFolder(folder, fingerprint, overwrite=overwrite) as output,
        ThreadPoolExecutor(1) as background,
        ShardStream(stream_to, here, output.partial, tell) if stream_to else nullcontext() as stream,
    ):
        if output.finished:
            earlier = (f"{len(output.finished)} of {len(plan.shards)} shards were finished by an earlier run",)
        tokens_later = run_ahead(background, conversion.tokens)
        hashing = ShardDigests(background)
        rmses = execute(
            here,
            output,
            decode=decode,
            max_rel_rmse=options.bound,
            threads=threads,
            progress=tell,
            on_shard=stream.take if stream else hashing.add if options.hashes else None,
            keeps=stream is None,
        )
        place, tokens = stream.folder if stream else output.partial, tokens_later()
        names = write_small_files(conversion, place, tokens)
        require_unchanged(files, identity)
        if not stream:
            output.require_only([*names, *(shard.file for shard in plan.shards), PROVENANCE_FILE])
        report, checked = conclude(
            conversion,
            place,
            names,
            tokens=tokens,
            rmses=rmses,
            digests=(stream.digests() if stream else hashing.result()) if options.hashes else {},
            kept=stream is None,
        )
        pushed = stream.finish(checked) if stream else None
        output.discard() if stream else output.finish()
    seconds = round(time.monotonic() - started, 3)
    notes = (*report.notes, *earlier, *device_notes)
    return dataclasses.replace(report, notes=notes, pushed=pushed, seconds=seconds)


def write_plan(
    src: str | Path | Model, path: str | Path, out: str | Path | None = None, options: Options | None = None
) -> Report:
    """Plan and check a conversion as `convert` does, and write what it would do into a file for `convert_planned`.

    Args:
        src: as for `convert`.
        path: of the plan file; another plan file there is replaced.
        out: as for `convert`.
        options: what decides about the bytes.

    Raises:
        Gguf2stError: as `convert`, but for what shows only when weights are read.
    """
    started = time.monotonic()
    conversion = plan_anywhere(src, out, options or Options())
    write_planned(conversion, Path(path))
    return conversion.dry_report(time.monotonic() - started)


def convert_planned(
    plan: str | Path,
    share: str | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: Progress | None = None,
    download_progress: Progress | None = None,
) -> Written:
    """Write shards of a plan file, but those that are finished. Many processes may do so at once.

    Args:
        plan: the file.
        share: `i/N`, the i-th of N shares; None for all shards.
        device, threads, engine, address, progress, download_progress: as for `convert`.

    Raises:
        SourceError: the plan file is of another version or damaged, or the source has changed since.
        Gguf2stError: as `convert`.
    """
    _require_engine(engine)
    planned = read_planned(Path(plan))
    indices = (EVERYTHING if share is None else parse_share(share)).indices(planned.sizes)
    if engine == "ray":
        from gguf2st.scaleout.ray_engine import write_on_ray

        return write_on_ray(planned, indices, device, threads, address, progress)
    return write_shards(
        planned, indices, device=device, threads=threads, progress=progress, download_progress=download_progress
    )


def _require_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is unknown; there are {', '.join(ENGINES)}")


def finish(plan: str | Path, *, threads: int | None = None, progress: Progress | None = None) -> Report:
    """Make the checkpoint of a plan file, once all its shards are there; it has the bytes that `convert` writes.

    Args:
        plan: the file.
        threads: how many shards are read at once.
        progress: told about bytes compared with their sha256.

    Raises:
        OutputError: shards are missing or damaged, with the command that makes each; or the target cannot be written.
        SourceError: as `convert_planned`.
        VerifyError: the checkpoint is not what the plan says.
    """
    return finish_planned(read_planned(Path(plan)), threads=threads, progress=progress)


def push(folder: str | Path, target: str | PushOptions, *, quiet: bool = True) -> Pushed:
    """Verify a checkpoint folder and upload it to the Hub, with a model card if it has none.

    Args:
        folder: with config.json and safetensors files.
        target: `org/name`, made if it does not exist; or that with options.
        quiet: do not show huggingface_hub's own progress.

    Raises:
        UsageError: an impossible name or combination.
        VerifyError: the folder is damaged; nothing is uploaded.
        HubError: no access, the Hub cannot be reached, or refuses.
    """
    return push_folder(Path(folder), target if isinstance(target, PushOptions) else PushOptions(target), quiet=quiet)


def partial_folder(src: str | Path | Model, out: str | Path | None) -> Path | None:
    """The folder in which an interrupted `convert` with the same arguments left finished shards, if it did."""
    folder = Path(out) if out is not None else locate(src).output
    kept = folder.with_name(folder.name + PARTIAL)
    return kept if any(kept.glob("*.safetensors")) else None


def verify(
    folder: str | Path,
    against: str | Path | Model | None = None,
    *,
    sample: float = 1.0,
    max_rel_rmse: float | None = None,
    accept: Collection[str] = (),
    model: bool = False,
    run: bool = False,
    arch_map: Path | None = None,
    progress: Callable[[int], None] | None = None,
    download_progress: Progress | None = None,
) -> Verification:
    """Check a checkpoint folder, whoever wrote it. Problems are in the result: see `Verification.require_ok`.

    Args:
        folder: with config.json and safetensors files.
        against: the GGUF it came from, as for `open_gguf`; every value is compared with gguf-py's dequantization.
        sample: share of each tensor's rows to compare instead of all, above 0 and at most 1.
        max_rel_rmse: allowed for packed weights whose format cannot hold the source's numbers; by default what the
            number of their bits can reach, 0.01 for 8 and twice that for each bit less.
        accept: what may differ from the source, having been edited: "chat-template", "generation-config".
        model: also compare names and shapes with transformers' class (extra `gguf2st[verify]`).
        run: also load and run it with transformers; with `against` and xllamacpp, compare it with llama.cpp.
        arch_map: a map to use instead of choosing one.
        progress: told about the number of values just compared.
        download_progress: told about bytes of `against` downloaded.

    Raises:
        UsageError: an impossible `sample`, `max_rel_rmse` or `accept`; `model` or `run` without transformers.
        VerifyError: the folder cannot be compared.
        SourceError: the folder is not there, or about `against`, as MapError.
    """
    folder = Path(folder)
    if not 0.0 < sample <= 1.0:
        raise UsageError(f"sample is {sample}; a share is above 0 and at most 1")
    require_bound(max_rel_rmse)
    if unknown := [what for what in accept if what not in EDITABLE]:
        raise UsageError(f"{unknown[0]!r} cannot be accepted; {', '.join(EDITABLE)} can")
    if against is None:
        return verify_folder(folder, model=model, run=run, progress=progress)
    dtype = checkpoint_dtype(folder)
    source = locate(against)
    plan = make_plan(source, dtype=dtype, arch_map=arch_map)
    plan.require_complete()
    plan = downloaded(plan, source, download_progress)
    return verify_folder(
        folder,
        plan=plan,
        configs=configurations(plan),
        sample=sample,
        max_rel_rmse=max_rel_rmse,
        accept=accept,
        model=model,
        run=run,
        progress=progress,
    )
