"""The Python API: one function per command, typed, returning what `--json` writes."""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from gguf2st import __version__, build, choice
from gguf2st import tokenizer as tokenizers
from gguf2st.digests import ShardDigests, sha256_of
from gguf2st.errors import CoverageError, Gguf2stError, SourceError, UsageError
from gguf2st.header import Header, read_header
from gguf2st.hub import local_folder
from gguf2st.hub.provenance import PROVENANCE_FILE, make_provenance
from gguf2st.hub.push import Pushed, PushOptions, push_folder, require_access
from gguf2st.hub.stream import ShardStream
from gguf2st.limits import require_address_space
from gguf2st.output import PARTIAL, OutputFolder, check_target
from gguf2st.plan import DENSE, Plan, lay_out, to_json
from gguf2st.report import Report, make_report
from gguf2st.shards import INDEX_FILE, index_json, write_text
from gguf2st.small_files import check_tokenizer, configurations, tokenizer_metadata
from gguf2st.source import Model, is_address, locate
from gguf2st.unchanged import identity as identity_of
from gguf2st.unchanged import require_apart, require_unchanged
from gguf2st.verification import Verification, checkpoint_dtype, verify_folder

DEFAULT_SHARD_NBYTES = 5_000_000_000
"""The Hub's own helper splits here too: parallel downloads, resumable uploads, no file near a hosting limit."""

MAX_REL_RMSE = 0.01
"""What repacking "near" may cost a weight: twice what 8 bits and a scale per 32 weights cost one of 4 bits or more."""

DEVICES = ("auto", "cpu", "cuda")

Progress = Callable[[int, int], None]
"""Called with (bytes just written, bytes in all)."""


def open_gguf(src: str | Path | Model) -> Header:
    """The header of a model; of one on the Hub, nothing else is fetched.

    Args:
        src: a GGUF file, any shard of a split, a folder (`folder:Q4_K_M` where it holds several), a model on the Hub
            (`org/repo:Q4_K_M`, `hf://org/repo/file.gguf@revision`, a web address), or one of ollama's
            (`ollama://model:tag`); or what `locate` made of it.

    Raises:
        SourceError: nothing, several models or no GGUF is there; a HeaderError when it is damaged.
        HubError: no such repository, no access, or the Hub does not answer.
    """
    return read_header(locate(src).files)


def make_plan(
    src: str | Path | Model | Header,
    *,
    dtype: str | None = None,
    repack: str = "none",
    max_shard_size: int = DEFAULT_SHARD_NBYTES,
    arch_map: Path | None = None,
) -> Plan:
    """Plan a conversion; reads headers only. The plan may have problems: see `Plan.require_complete`.

    Args:
        src: as for `open_gguf`, or an open header.
        dtype: of the output: bfloat16 (the default), float16 (the default with `repack`) or float32.
        repack: as for `convert`.
        max_shard_size: bytes; a shard is closed before it would exceed this.
        arch_map: a map to use instead of choosing one.

    Raises:
        SourceError, HeaderError: the source cannot be read.
        MapError: no arch map fits it.
        UsageError: an unknown dtype or mode, or a dtype that does not go with `repack`.
    """
    if type(max_shard_size) is not int or max_shard_size < 1:
        raise UsageError(f"max_shard_size is {max_shard_size!r}; it must be a positive number of bytes")
    header = src if isinstance(src, Header) else open_gguf(src)
    return lay_out(choice.choose(build.build(header, arch_map=arch_map), dtype, repack), max_shard_size)


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
        device: auto, cpu or cuda; auto is cuda where a device, Triton and a torch with CUDA are at hand.
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

    Raises:
        Gguf2stError: one of its subclasses; `exit_code` says which kind of problem it is.
    """
    started = time.monotonic()
    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageError(f"threads is {threads!r}; it must be a positive whole number")
    if device not in DEVICES:
        raise UsageError(f"device {device!r} is unknown; there are {', '.join(DEVICES)}")
    if max_rel_rmse is not None and not max_rel_rmse > 0:
        raise UsageError(f"max_rel_rmse is {max_rel_rmse!r}; it must be a positive number")
    if max_rel_rmse is None and repack == "near":
        max_rel_rmse = MAX_REL_RMSE
    model = locate(src)
    folder = Path(out) if out is not None else model.output
    require_apart(model.paths, folder)
    plan = make_plan(
        read_header(model.files), dtype=dtype, repack=repack, max_shard_size=max_shard_size, arch_map=arch_map
    )
    plan.require_complete()
    if tokenizer_from is not None and tokenizer_pre is not None:
        raise UsageError("tokenizer_from takes a whole tokenizer: there is no tokenizer_pre to choose")
    metadata = tokenizer_metadata(plan.header, tokenizer_pre)
    asked: tuple[str, ...] = (
        () if tokenizer_pre is None else (f"words are split as {tokenizer_pre!r} says, as asked for",)
    )
    asked += model.notes
    if tokenizer_from is None:
        notes = (*asked, *check_tokenizer(plan, metadata))
    else:
        copied = tokenizers.copy_tokenizer(local_folder(tokenizer_from, tokenizers.TOKENIZER_PATTERNS), metadata)
        notes = (*asked, *copied.notes)
    configs = configurations(plan)
    check_target(folder, overwrite=overwrite)
    if dry_run:
        seconds = time.monotonic() - started
        return make_report(plan, output=None, notes=notes, seconds=seconds, origin=model.origin)
    if stream_to:
        require_access(stream_to)

    require_address_space()
    from gguf2st.execute import execute  # loads numpy and numba, which planning does without
    from gguf2st.execute.threads import run_ahead
    from gguf2st.kernels.device import choose, decoder

    device, device_notes = choose(device)
    decode = decoder(device)
    if device == "cuda" and any(e.scheme != DENSE for e in plan.entries):
        device_notes += ("packed on the CPU; the CUDA device decoded what is not packed",)
    sizes = [s.nbytes for s in plan.shards]
    total = 2 * sum(sizes) if stream_to else sum(sizes)  # written, and uploaded
    tell = (lambda nbytes: progress(nbytes, total)) if progress else None
    here = _downloaded(plan, model, download_progress, output=(folder, max(sizes) if stream_to else sum(sizes)))
    files = [Path(file) for file in here.header.files]
    identity = identity_of(files)
    # A commit says what its files hold, wherever the cache has them.
    known = [] if model.remote else identity
    fingerprint = json.dumps([__version__, to_json(plan), configs, known, str(tokenizer_from), tokenizer_pre])
    earlier: tuple[str, ...] = ()
    with (
        OutputFolder(folder, fingerprint, overwrite=overwrite) as output,
        ThreadPoolExecutor(1) as background,
        ShardStream(stream_to, here, output.partial, tell) if stream_to else nullcontext() as stream,
    ):
        if output.finished:
            earlier = (f"{len(output.finished)} of {len(plan.shards)} shards were finished by an earlier run",)
        if tokenizer_from is None:
            build_tokens = partial(tokenizers.build_tokenizer, metadata, n_rows=plan.config["vocab_size"])
            pending = run_ahead(background, build_tokens)
        hashes, hashing = plan.repack != "none" if digests is None else digests, ShardDigests(background)
        rmses = execute(
            here,
            output,
            decode=decode,
            max_rel_rmse=max_rel_rmse,
            threads=threads or max(default_threads(), 4 if device == "cuda" else 1),  # 4 keep its lanes busy
            progress=tell,
            on_shard=stream.take if stream else hashing.add if hashes else None,
            keeps=stream is None,
        )
        place = stream.folder if stream else output.partial
        tokens = copied if tokenizer_from is not None else pending()
        # Index and config.json come last, so that a folder with them has everything else.
        texts: dict[str, str | bytes] = {**tokens.files}
        if len(plan.shards) > 1:
            texts[INDEX_FILE] = index_json(plan)
        texts |= {name: json.dumps(content, indent=2) + "\n" for name, content in configs.items()}
        for name, text in texts.items():
            write_text(place / name, text)
        require_unchanged(files, identity)
        if not stream:
            output.require_only([*texts, *(shard.file for shard in plan.shards), PROVENANCE_FILE])
        checked = verify_folder(place, plan=here, configs=configs, values=False)
        checked.require_ok()
        report = make_report(
            plan,
            output=None if stream else folder,
            notes=(*asked, *tokens.notes, *checked.notes),
            rmses=rmses,
            verification=dataclasses.replace(checked, folder=str(folder)),
            origin=model.origin,
            digests={name: sha256_of(place / name) for name in texts}
            | ((stream.digests() if stream else hashing.result()) if hashes else {}),
        )
        given: dict[str, object] = {
            "dtype": plan.dtype,
            "repack": None if repack == "none" else repack,
            "tokenizer-from": tokenizer_from,
            "tokenizer-pre": tokenizer_pre,
            "arch-map": arch_map,
        }
        if max_shard_size != DEFAULT_SHARD_NBYTES:
            given["max-shard-size"] = max_shard_size
        write_text(place / PROVENANCE_FILE, make_provenance(report, plan.header.metadata, given).to_json())
        pushed = stream.finish(checked) if stream else None
        output.discard() if stream else output.finish()
    seconds = round(time.monotonic() - started, 3)
    notes = (*report.notes, *earlier, *device_notes)
    return dataclasses.replace(report, notes=notes, pushed=pushed, seconds=seconds)


def _downloaded(plan: Plan, model: Model, progress: Progress | None, output: tuple[Path, int] | None = None) -> Plan:
    """The plan over files on this machine; those on the Hub are downloaded if the cache lacks them."""
    files = plan.header.files
    if not any(map(is_address, files)):
        return plan
    from gguf2st.hub.download import fetch

    paths = fetch(files, revision=model.revision, progress=progress, output=output)
    return dataclasses.replace(plan, header=dataclasses.replace(plan.header, files=tuple(map(str, paths))))


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
        model: also compare names and shapes with transformers' class (extra `gguf2st[verify]`).
        run: also load and run it with transformers; with `against` and xllamacpp, compare it with llama.cpp.
        arch_map: a map to use instead of choosing one.
        progress: told about the number of values just compared.
        download_progress: told about bytes of `against` downloaded.

    Raises:
        UsageError: an impossible `sample`.
        VerifyError: the folder is not there or cannot be compared.
        SourceError, MapError: about `against`.
    """
    folder = Path(folder)
    if not 0.0 < sample <= 1.0:
        raise UsageError(f"sample is {sample}; a share is above 0 and at most 1")
    if against is None:
        return verify_folder(folder, model=model, run=run, progress=progress)
    dtype = checkpoint_dtype(folder)
    source = locate(against)
    plan = make_plan(source, dtype=dtype, arch_map=arch_map)
    plan.require_complete()
    plan = _downloaded(plan, source, download_progress)
    return verify_folder(
        folder,
        plan=plan,
        configs=configurations(plan),
        sample=sample,
        max_rel_rmse=max_rel_rmse,
        model=model,
        run=run,
        progress=progress,
    )


def problems(
    src: str | Path | Model | Header,
    *,
    arch_map: Path | None = None,
    tokenizer: bool = True,
    tokenizer_pre: str | None = None,
) -> list[tuple[int, str]]:
    """Every reason not to convert a source, as (exit code, line); empty when it can be converted.

    A source that cannot be opened is a problem like any other.

    Args:
        src: as for `open_gguf`, or an open header.
        arch_map: a map to use instead of choosing one.
        tokenizer: whether the tokenizer must be rebuilt from the file; not so with `convert --tokenizer-from`.
        tokenizer_pre: as for `convert`.
    """
    try:
        header = src if isinstance(src, Header) else open_gguf(src)
    except Gguf2stError as err:
        return problem_lines(err)
    found: list[tuple[int, str]] = []
    plan = None
    try:
        plan = make_plan(header, arch_map=arch_map)
        found += [(CoverageError.exit_code, line) for line in plan.all_problems]
    except Gguf2stError as err:
        found += problem_lines(err)
    if tokenizer:
        try:
            metadata = tokenizer_metadata(header, tokenizer_pre)
            tokenizers.check_tokenizer(metadata) if plan is None else check_tokenizer(plan, metadata)
        except Gguf2stError as err:
            found += problem_lines(err)
    return found


def problem_lines(err: Gguf2stError) -> list[tuple[int, str]]:
    """(exit code, line) of each problem; the details of a source that cannot be opened belong to its one problem."""
    if isinstance(err, SourceError) and err.problems:
        return [(err.exit_code, f"{err.message}: {'; '.join(err.problems)}")]
    return [(err.exit_code, line) for line in (err.message, *err.problems)]


def default_threads() -> int:
    """One thread per core this process may use, at most 8: past that the disk is the limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)
