"""The Python API: one function per command, typed, returning what `--json` writes."""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gguf2st import __version__, build, config
from gguf2st import tokenizer as tokenizers
from gguf2st.errors import CoverageError, Gguf2stError, OutputError, SourceError, TokenizerError, UsageError
from gguf2st.header import Header, read_header
from gguf2st.hub import local_folder
from gguf2st.output import PARTIAL, OutputFolder, check_target
from gguf2st.plan import DTYPE_NBYTES, Plan, choose, lay_out, to_json
from gguf2st.report import Report, make_report
from gguf2st.shards import INDEX_FILE, index_json, write_text
from gguf2st.source import default_output, find_files
from gguf2st.verification import Verification, checkpoint_dtype, verify_folder

DEFAULT_SHARD_NBYTES = 5_000_000_000
"""The Hub's own helper splits here too: parallel downloads, resumable uploads, no file near a hosting limit."""

DEVICES = ("auto", "cpu", "cuda")

Progress = Callable[[int, int], None]
"""Called with (bytes just written, bytes in all)."""


def open_gguf(src: str | Path) -> Header:
    """The header of a model: a GGUF file, any shard of a split, or a folder with one model.

    Raises:
        SourceError: nothing, several models or no GGUF is there; a HeaderError when it is damaged.
    """
    return read_header(find_files(src))


def make_plan(
    src: str | Path | Header,
    *,
    dtype: str = "bfloat16",
    max_shard_size: int = DEFAULT_SHARD_NBYTES,
    arch_map: Path | None = None,
) -> Plan:
    """Plan a conversion; reads headers only. The plan may have problems: see `Plan.require_complete`.

    Args:
        src: as for `open_gguf`, or an open header.
        dtype: of the output: bfloat16, float16 or float32.
        max_shard_size: bytes; a shard is closed before it would exceed this.
        arch_map: a map to use instead of choosing one.

    Raises:
        SourceError, HeaderError: the source cannot be read.
        MapError: no arch map fits it.
        UsageError: an unknown dtype.
    """
    if dtype not in DTYPE_NBYTES:
        raise UsageError(f"dtype {dtype!r} is unknown; there are {', '.join(DTYPE_NBYTES)}")
    if type(max_shard_size) is not int or max_shard_size < 1:
        raise UsageError(f"max_shard_size is {max_shard_size!r}; it must be a positive number of bytes")
    header = src if isinstance(src, Header) else open_gguf(src)
    return lay_out(choose(build.build(header, arch_map=arch_map), dtype), max_shard_size)


def convert(
    src: str | Path,
    out: str | Path | None = None,
    *,
    dtype: str = "bfloat16",
    max_shard_size: int = DEFAULT_SHARD_NBYTES,
    device: str = "auto",
    threads: int | None = None,
    tokenizer_from: str | Path | None = None,
    tokenizer_pre: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    arch_map: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Convert a GGUF model into a Hugging Face checkpoint folder, and check it.

    Everything that can be known from headers is checked before anything is written. The folder gets its name only when
    it is complete; after an interruption the same call goes on where it stopped.

    Args:
        src: a GGUF file, any shard of a split, or a folder with one model.
        out: folder to write; beside the source by default.
        dtype: of the output: bfloat16, float16 or float32.
        max_shard_size: bytes; a shard is closed before it would exceed this.
        device: auto, cpu or cuda; auto is cuda where a device, Triton and a torch with CUDA are at hand.
        threads: how many decode and write at once; by default one per available core, at most 8.
        tokenizer_from: a folder, or a Hub repository org/name[@revision], whose tokenizer files are taken after
            comparing their vocabulary with the file's.
        tokenizer_pre: how words are split, as a `tokenizer.ggml.pre` name; goes before what the file says.
        overwrite: replace an existing checkpoint.
        dry_run: plan and check only.
        arch_map: a map to use instead of choosing one.
        progress: told about bytes written.

    Raises:
        Gguf2stError: one of its subclasses; `exit_code` says which kind of problem it is.
    """
    started = time.monotonic()
    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageError(f"threads is {threads!r}; it must be a positive whole number")
    if device not in DEVICES:
        raise UsageError(f"device {device!r} is unknown; there are {', '.join(DEVICES)}")
    files = find_files(src)
    folder = Path(out) if out is not None else default_output(files)
    _require_apart(files, folder)
    identity = _identity(files)
    plan = make_plan(read_header(files), dtype=dtype, max_shard_size=max_shard_size, arch_map=arch_map)
    plan.require_complete()
    if tokenizer_from is not None and tokenizer_pre is not None:
        raise UsageError("tokenizer_from takes a whole tokenizer: there is no tokenizer_pre to choose")
    metadata = _tokenizer_metadata(plan.header, tokenizer_pre)
    asked: tuple[str, ...] = (
        () if tokenizer_pre is None else (f"words are split as {tokenizer_pre!r} says, as asked for",)
    )
    if tokenizer_from is None:
        notes = (*asked, *_check_tokenizer(plan, metadata))
    else:
        copied = tokenizers.copy_tokenizer(local_folder(tokenizer_from, tokenizers.TOKENIZER_PATTERNS), metadata)
        notes = copied.notes
    configs = _configs(plan, dtype)
    check_target(folder, overwrite=overwrite)
    if dry_run:
        return make_report(plan, output=None, dtype=dtype, notes=notes, seconds=time.monotonic() - started)

    from gguf2st.execute import execute  # loads numpy and numba, which planning does without
    from gguf2st.kernels.device import choose, decoder

    device, device_notes = choose(device)
    decode = decoder(device)
    fingerprint = json.dumps([__version__, to_json(plan), configs, identity, str(tokenizer_from), tokenizer_pre])
    total = sum(s.nbytes for s in plan.shards)
    with OutputFolder(folder, fingerprint, overwrite=overwrite) as output, ThreadPoolExecutor(1) as background:
        if output.finished:
            asked += (f"{len(output.finished)} of {len(plan.shards)} shards were finished by an earlier run",)
        if tokenizer_from is None:
            pending = background.submit(tokenizers.build_tokenizer, metadata, n_rows=plan.config["vocab_size"])
        execute(
            plan,
            output,
            decode=decode,
            threads=threads or max(default_threads(), 4 if device == "cuda" else 1),  # 4 keep its lanes busy
            progress=(lambda nbytes: progress(nbytes, total)) if progress else None,
        )
        tokens = copied if tokenizer_from is not None else pending.result()
        # Index and config.json come last, so that a folder with them has everything else.
        texts: dict[str, str | bytes] = {**tokens.files}
        if len(plan.shards) > 1:
            texts[INDEX_FILE] = index_json(plan)
        texts |= {name: json.dumps(content, indent=2) + "\n" for name, content in configs.items()}
        for name, text in texts.items():
            write_text(output.partial / name, text)
        _require_unchanged(files, identity)
        checked = verify_folder(output.partial, plan=plan, configs=configs, values=False)
        checked.require_ok()
        output.finish()
    return make_report(
        plan,
        output=folder,
        dtype=dtype,
        notes=(*asked, *tokens.notes, *device_notes),
        verification=dataclasses.replace(checked, folder=str(folder)),
        seconds=time.monotonic() - started,
    )


def partial_folder(src: str | Path, out: str | Path | None) -> Path | None:
    """The folder in which an interrupted `convert` with the same arguments left finished shards, if it did."""
    folder = Path(out) if out is not None else default_output(find_files(src))
    partial = folder.with_name(folder.name + PARTIAL)
    return partial if any(partial.glob("*.safetensors")) else None


def verify(
    folder: str | Path,
    against: str | Path | None = None,
    *,
    sample: float = 1.0,
    model: bool = False,
    run: bool = False,
    arch_map: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Check a checkpoint folder, whoever wrote it. Problems are in the result: see `Verification.require_ok`.

    Args:
        folder: with config.json and safetensors files.
        against: the GGUF it came from; every value is compared with gguf-py's dequantization.
        sample: share of each tensor's rows to compare instead of all, above 0 and at most 1.
        model: also compare names and shapes with transformers' class (extra `gguf2st[verify]`).
        run: also load and run it with transformers; with `against` and xllamacpp, compare it with llama.cpp.
        arch_map: a map to use instead of choosing one.
        progress: told about the number of values just compared.

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
    plan = make_plan(against, dtype=dtype, arch_map=arch_map)
    plan.require_complete()
    return verify_folder(
        folder,
        plan=plan,
        configs=_configs(plan, dtype),
        sample=sample,
        model=model,
        run=run,
        progress=progress,
    )


def problems(
    src: str | Path | Header,
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
        return _lines(err)
    found: list[tuple[int, str]] = []
    plan = None
    try:
        plan = make_plan(header, arch_map=arch_map)
        found += [(CoverageError.exit_code, line) for line in plan.all_problems]
    except Gguf2stError as err:
        found += _lines(err)
    if tokenizer:
        try:
            metadata = _tokenizer_metadata(header, tokenizer_pre)
            tokenizers.check_tokenizer(metadata) if plan is None else _check_tokenizer(plan, metadata)
        except Gguf2stError as err:
            found += _lines(err)
    return found


def _lines(err: Gguf2stError) -> list[tuple[int, str]]:
    """One line per problem; the details of a source that cannot be opened belong to its one problem."""
    if isinstance(err, SourceError) and err.problems:
        return [(err.exit_code, f"{err.message}: {'; '.join(err.problems)}")]
    return [(err.exit_code, line) for line in (err.message, *err.problems)]


def default_threads() -> int:
    """One thread per core this process may use, at most 8: past that the disk is the limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


def _identity(files: Sequence[Path]) -> list[tuple[int, ...]]:
    """What tells whether a file is still the same: which one, how large, and when it was last changed in any way.

    The time of writing alone is not enough: copies may keep it.
    """
    try:
        found = [file.stat() for file in files]
    except OSError as err:
        raise SourceError(f"{err.filename}: {err.strerror}") from err
    return [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in found]


def _require_unchanged(files: Sequence[Path], identity: list[tuple[int, ...]]) -> None:
    """Raise SourceError when a file was written to since `identity` was taken: what was read may be a mixture."""
    for file, before, now in zip(files, identity, _identity(files), strict=True):
        if before != now:
            raise SourceError(
                f"{file} changed while it was read", hint="run the command again once nothing else writes to it"
            )


def _require_apart(files: Sequence[Path], folder: Path) -> None:
    """Raise OutputError when the output folder, or the one it is made in, holds a file of the source."""
    target = folder.resolve()
    for file in files:
        for taken in (target, Path(f"{target}{PARTIAL}")):
            # Into "/" or the current folder nothing is written anyway: `check_target` says so.
            if target != Path.cwd() and target.name and taken in file.resolve().parents:
                raise OutputError(f"the output {folder} holds the source {file}", hint="choose another folder with -o")


def _configs(plan: Plan, dtype: str) -> dict[str, dict[str, Any]]:
    """generation_config.json and config.json by name, in the order to write them."""
    special = tokenizers.special_tokens(plan.header.metadata)
    return {
        "generation_config.json": config.generation_config(special, plan.header.metadata),
        "config.json": config.with_dtype({**plan.config, **config.token_ids(special)}, dtype),
    }


def _tokenizer_metadata(header: Header, pre: str | None) -> Mapping[str, object]:
    return header.metadata if pre is None else tokenizers.with_pretokenizer(header.metadata, pre)


def _check_tokenizer(plan: Plan, metadata: Mapping[str, object]) -> list[str]:
    """Notes on the tokenizer that a conversion would write; TokenizerError when it cannot be rebuilt."""
    notes = tokenizers.check_tokenizer(metadata)
    tokens, rows = metadata["tokenizer.ggml.tokens"], plan.config.get("vocab_size")
    if isinstance(tokens, list) and isinstance(rows, int) and len(tokens) > rows:
        raise TokenizerError(f"the tokenizer has {len(tokens)} tokens, the token embedding only {rows} rows")
    return notes
