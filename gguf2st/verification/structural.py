"""Files, shard headers and index: do they agree with each other?"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gguf2st.fold import listing
from gguf2st.output.shards import INDEX_FILE
from gguf2st.plan import SHARD_NAME
from gguf2st.verification.checkpoint import Checkpoint, Tensor, read_json
from gguf2st.verification.config_types import wrong_values
from gguf2st.verification.consistency import consistency
from gguf2st.verification.packed import read_packed
from gguf2st.verification.stray import stray_files


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a folder and collect every disagreement inside it."""
    ckpt = Checkpoint(folder)
    ckpt.config = read_json(folder / "config.json", ckpt.problems)
    if not ckpt.config and not ckpt.problems:
        ckpt.problems.append("config.json says nothing")
    ckpt.problems += [f"{p.name} is no regular file" for p in sorted(folder.glob("*")) if p.is_fifo() or p.is_socket()]
    files = [p for p in sorted(folder.glob("*.safetensors")) if not (p.is_fifo() or p.is_socket())]
    listed = _index(ckpt, files)
    for path in files:
        for name, tensor in _shard_tensors(path, ckpt.problems):
            if name in ckpt.tensors:
                ckpt.problems.append(f"{name} is in {ckpt.tensors[name].file.name} and in {path.name}")
            ckpt.tensors[name] = tensor
            if listed is not None and listed.get(name) not in (None, path.name):
                ckpt.problems.append(f"{name} is in {path.name}, but {INDEX_FILE} says {listed[name]}")
    if listed is not None:
        if gone := listed.keys() - ckpt.tensors.keys():
            ckpt.problems.append(f"{INDEX_FILE} lists tensors that no shard holds: {listing(sorted(gone))}")
        if extra := ckpt.tensors.keys() - listed.keys():
            ckpt.problems.append(f"tensors that {INDEX_FILE} does not list: {listing(sorted(extra))}")
    if not ckpt.tensors and not ckpt.problems:
        ckpt.problems.append("there are no tensors")
    if ckpt.tensors and ckpt.config:
        ckpt.problems += wrong_values(ckpt.config)
        read_packed(ckpt)
        ckpt.problems += consistency(ckpt)
    ckpt.problems += stray_files(ckpt)
    ckpt.problems += _small_files(folder)
    return ckpt


def _index(ckpt: Checkpoint, files: list[Path]) -> dict[str, str] | None:
    """The weight map, checked against the files that are there; None for a single-file checkpoint."""
    path = ckpt.folder / INDEX_FILE
    files = [f for f in files if f.is_file()]
    names = [f.name for f in files]
    if not path.exists():
        if names != ["model.safetensors"]:
            found = ", ".join(names[:5]) or "none"
            ckpt.problems.append(f"neither model.safetensors alone nor {INDEX_FILE}; safetensors files here: {found}")
        return None
    index = read_json(path, ckpt.problems)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        ckpt.problems.append(f"{INDEX_FILE} has no weight_map")
        return {}
    if lost := sorted(set(weight_map.values()) - set(names)):
        ckpt.problems.append(f"shards that {INDEX_FILE} names but are not here: {', '.join(lost)}")
    if stray := sorted(set(names) - set(weight_map.values())):
        ckpt.problems.append(f"safetensors files that {INDEX_FILE} does not name: {', '.join(stray)}")
    counts = {m[2] for n in names if (m := SHARD_NAME.fullmatch(n)) and m[2]}
    if len(counts) > 1:
        ckpt.problems.append(f"shards of different splits lie side by side: of {', of '.join(sorted(counts))}")
    if not lost and not stray:
        ckpt.problems += _total_size(index, files)
    return weight_map


def _total_size(index: dict[str, Any], files: list[Path]) -> Iterator[str]:
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = 0
    for file in files:
        with open(file, "rb") as f:
            total += file.stat().st_size - 8 - int.from_bytes(f.read(8), "little")
    if stated != total:
        yield f"{INDEX_FILE} states a total_size of {stated}, the shards hold {total} bytes"


def _shard_tensors(path: Path, problems: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of one shard. The safetensors library judges the layout; offsets come from the header itself."""
    from safetensors import SafetensorError, safe_open

    try:
        with open(path, "rb"):  # the library says of any file that it cannot open that it is not there
            pass
        with safe_open(path, framework="np") as shard:
            metadata = shard.metadata() or {}
            names = list(shard.keys())
        with open(path, "rb") as f:
            base = 8 + int.from_bytes(f.read(8), "little")
            table = json.loads(f.read(base - 8))
    except OSError as err:
        problems.append(f"{path.name} cannot be read: {err.strerror or err}")
        return
    except (SafetensorError, ValueError, RecursionError) as err:
        problems.append(f"{path.name} is not a whole safetensors file: {err}")
        return
    if metadata.get("format") != "pt":
        problems.append(f'{path.name} lacks the metadata {{"format": "pt"}}, which transformers 4 insists on')
    for name in names:
        row = table[name]
        start, stop = row["data_offsets"]
        yield name, Tensor(name, path, row["dtype"], tuple(row["shape"]), base + start, stop - start)


def _small_files(folder: Path) -> list[str]:
    problems: list[str] = []
    for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        if (folder / name).exists():
            read_json(folder / name, problems)
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        problems.append("there is no tokenizer")
    return problems
