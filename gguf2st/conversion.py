"""What a conversion does before and after its weights: plan and check, then put the checkpoint together.

Whoever writes the shards in between: threads of this process, several processes, or a cluster.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf2st import tokenizer as tokenizers
from gguf2st.errors import UsageError
from gguf2st.header import read_header
from gguf2st.hub import local_folder
from gguf2st.hub.provenance import PROVENANCE_FILE, make_provenance
from gguf2st.output.digests import sha256_of
from gguf2st.output.shards import INDEX_FILE, index_json, write_text
from gguf2st.output.small_files import configurations, plan_tokenizer, tokenizer_metadata
from gguf2st.output.target import check_target
from gguf2st.plan import Plan
from gguf2st.plan.planning import DEFAULT_SHARD_NBYTES, make_plan
from gguf2st.report import Report, make_report
from gguf2st.source import Model, is_address, locate
from gguf2st.source.unchanged import require_apart
from gguf2st.tokenizer import TokenizerFiles, TokenizerPlan
from gguf2st.verification import Verification, verify_folder

if TYPE_CHECKING:
    from gguf2st.kernels.device import Backend, Decoder

MAX_REL_RMSE = 0.01
"""What repacking "near" may cost a weight: twice what 8 bits and a scale per 32 weights cost one of 4 bits or more."""

DEVICES = ("auto", "cpu", "cuda")

Progress = Callable[[int, int], None]
"""Called with (bytes just done, bytes in all)."""


@dataclass(frozen=True)
class Options:
    """What the user asked for, as far as it decides about the bytes of the checkpoint; see `gguf2st.convert`."""

    dtype: str | None = None
    repack: str = "none"
    max_rel_rmse: float | None = None
    max_shard_size: int = DEFAULT_SHARD_NBYTES
    tokenizer_from: str | None = None
    tokenizer_pre: str | None = None
    overwrite: bool = False
    arch_map: str | None = None
    digests: bool | None = None

    @property
    def bound(self) -> float | None:
        """The relative rmse that a repacked weight may have; None for any."""
        return MAX_REL_RMSE if self.max_rel_rmse is None and self.repack == "near" else self.max_rel_rmse

    @property
    def hashes(self) -> bool:
        """Whether the sha256 of each shard goes into the report and into gguf2st.json."""
        return self.repack != "none" if self.digests is None else self.digests


@dataclass(frozen=True)
class Conversion:
    """A conversion that can be done: nothing is written yet.

    Attributes:
        folder: the checkpoint's.
        configs: configuration files by name, in the order to write them.
        tokenizer: the one that was given, or what is to be built from the metadata of the GGUF.
        asked: notes on what was asked for.
    """

    model: Model
    folder: Path
    options: Options
    plan: Plan
    configs: Mapping[str, Any]
    tokenizer: TokenizerFiles | TokenizerPlan
    asked: tuple[str, ...]

    def tokens(self) -> TokenizerFiles:
        """The tokenizer's files; building them takes a while."""
        given = self.tokenizer
        return given if isinstance(given, TokenizerFiles) else given.build(n_rows=self.plan.config["vocab_size"])

    def dry_report(self, seconds: float) -> Report:
        """What would be done."""
        notes = (*self.asked, *self.tokenizer.notes)
        return make_report(self.plan, output=None, notes=notes, seconds=seconds, origin=self.model.origin)


def prepare(src: str | Path | Model, out: str | Path | None, options: Options) -> Conversion:
    """Plan a conversion, and check everything that can be known from headers.

    Raises:
        Gguf2stError: the source cannot be read, cannot be converted, or the checkpoint may not go there.
    """
    require_bound(options.max_rel_rmse)
    if options.max_rel_rmse is not None and options.repack == "none":
        raise UsageError("max_rel_rmse bounds what repacking loses, and nothing is repacked", hint="use --repack near")
    model, options = locate(src), _anywhere(options)
    folder = Path(out) if out is not None else model.output
    require_apart(model.paths, folder)
    plan = make_plan(
        read_header(model.files),
        dtype=options.dtype,
        repack=options.repack,
        max_shard_size=options.max_shard_size,
        arch_map=Path(options.arch_map) if options.arch_map else None,
    )
    plan.require_complete()
    pre = options.tokenizer_pre
    if options.tokenizer_from is not None and pre is not None:
        raise UsageError("tokenizer_from takes a whole tokenizer: there is no tokenizer_pre to choose")
    metadata = tokenizer_metadata(plan.header, pre)
    asked = () if pre is None else (f"words are split as {pre!r} says, as asked for",)
    tokenizer: TokenizerFiles | TokenizerPlan
    if options.tokenizer_from is None:
        tokenizer = plan_tokenizer(plan, metadata)
    else:
        kept = local_folder(options.tokenizer_from, tokenizers.TOKENIZER_PATTERNS)
        tokenizers.require_own_files(kept)
        tokenizer = tokenizers.copy_tokenizer(kept, metadata)
    configs = configurations(plan)
    check_target(folder, overwrite=options.overwrite)
    return Conversion(model, folder, options, plan, configs, tokenizer, (*asked, *model.notes))


def _anywhere(options: Options) -> Options:
    """The options with paths that mean the same in every folder."""
    given, arch_map = options.tokenizer_from, options.arch_map
    return dataclasses.replace(
        options,
        tokenizer_from=os.path.abspath(given) if given and Path(given).is_dir() else given,
        arch_map=os.path.abspath(arch_map) if arch_map else None,
    )


def require_bound(max_rel_rmse: float | None) -> None:
    """Raise UsageError for a relative rmse that is no bound."""
    if max_rel_rmse is not None and not 0 < max_rel_rmse < math.inf:
        raise UsageError(f"max_rel_rmse is {max_rel_rmse!r}; it must be a positive number")


def require_workers(device: str, threads: int | None) -> None:
    """Raise UsageError for a device or a number of threads that there cannot be."""
    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageError(f"threads is {threads!r}; it must be a positive whole number")
    if device not in DEVICES:
        raise UsageError(f"device {device!r} is unknown; there are {', '.join(DEVICES)}")


def decoder_for(device: str, threads: int | None) -> "tuple[Decoder | Backend, int, tuple[str, ...]]":
    """(what decodes and packs on a member of DEVICES, how many threads it wants, notes)."""
    from gguf2st.kernels.device import choose, decoder

    device, notes = choose(device)
    decode = decoder(device)
    return decode, threads or max(default_threads(), 4 if device == "cuda" else 1), notes  # 4 keep its lanes busy


def default_threads() -> int:
    """One thread per core this process may use, at most 8: past that the disk is the limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


def downloaded(
    plan: Plan,
    model: Model,
    progress: Progress | None,
    *,
    output: tuple[Path, int] | None = None,
    only: Iterable[int] | None = None,
) -> Plan:
    """The plan over files on this machine; those on the Hub are downloaded if the cache lacks them.

    Args:
        plan: over the model's files.
        model: where they are.
        progress: told about bytes downloaded.
        output: a folder, and what will be written there: see `hub.download.fetch`.
        only: numbers of the files that are needed; the others keep their addresses. None for all.
    """
    files = plan.header.files
    if not any(map(is_address, files)):
        return plan
    from gguf2st.hub.download import fetch

    wanted = sorted(range(len(files)) if only is None else set(only))
    paths = fetch([files[n] for n in wanted], revision=model.revision, progress=progress, output=output)
    here = dict(zip(wanted, map(str, paths), strict=True))
    names = tuple(here.get(n, name) for n, name in enumerate(files))
    return dataclasses.replace(plan, header=dataclasses.replace(plan.header, files=names))


def write_small_files(conversion: Conversion, place: Path, tokens: TokenizerFiles) -> list[str]:
    """Write everything but the shards; the names, the last of them config.json.

    Index and config.json come last, so that a folder with them has everything else.

    Raises:
        OutputError: a file cannot be written.
    """
    texts: dict[str, str | bytes] = {**tokens.files}
    if len(conversion.plan.shards) > 1:
        texts[INDEX_FILE] = index_json(conversion.plan)
    texts |= {name: json.dumps(content, indent=2) + "\n" for name, content in conversion.configs.items()}
    for name, text in texts.items():
        write_text(place / name, text)
    return list(texts)


def conclude(
    conversion: Conversion,
    place: Path,
    names: Iterable[str],
    *,
    tokens: TokenizerFiles,
    rmses: Mapping[str, float],
    digests: Mapping[str, str],
    kept: bool = True,
) -> tuple[Report, Verification]:
    """Verify the structure of a checkpoint before it gets its name, report on it, and write gguf2st.json.

    Args:
        conversion: that made it.
        place: where it is.
        names: of its small files.
        tokens: its tokenizer.
        rmses: weight -> how far it is from the source.
        digests: shard -> sha256, for the report; empty unless the options ask for them.
        kept: whether the checkpoint stays on this machine.

    Raises:
        VerifyError: it is not what the plan says.
        OutputError: a file cannot be read or written.
    """
    plan, options = conversion.plan, conversion.options
    checked = verify_folder(place, plan=plan, configs=conversion.configs, values=False)
    checked.require_ok()
    report = make_report(
        plan,
        output=conversion.folder if kept else None,
        notes=(*conversion.asked, *tokens.notes, *checked.notes),
        rmses=rmses,
        verification=dataclasses.replace(checked, folder=str(conversion.folder)),
        origin=conversion.model.origin,
        digests={name: sha256_of(place / name) for name in names} | dict(digests),
    )
    given: dict[str, object] = {
        "dtype": plan.dtype,
        "repack": None if options.repack == "none" else options.repack,
        "tokenizer-from": options.tokenizer_from,
        "tokenizer-pre": options.tokenizer_pre,
        "arch-map": options.arch_map,
    }
    if options.max_shard_size != DEFAULT_SHARD_NBYTES:
        given["max-shard-size"] = options.max_shard_size
    write_text(place / PROVENANCE_FILE, make_provenance(report, plan.header.metadata, given).to_json())
    return report, checked
