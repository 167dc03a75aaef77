"""Files, shard headers, index and config.json: do they agree with each other?"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from gguf2st.fold import listing
from gguf2st.plan import Plan
from gguf2st.shards import INDEX_FILE, UNFINISHED
from gguf2st.verification.checkpoint import FLOATS, Checkpoint, Tensor, read_json

_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a folder and collect every disagreement inside it."""
    ckpt = Checkpoint(folder)
    ckpt.config = read_json(folder / "config.json", ckpt.problems)
    files = sorted(folder.glob("*.safetensors"))
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
    ckpt.problems += _stray(folder, files)
    if ckpt.tensors and ckpt.config:
        ckpt.problems += _against_config(ckpt)
    ckpt.problems += _small_files(folder)
    return ckpt


def _index(ckpt: Checkpoint, files: list[Path]) -> dict[str, str] | None:
    """The weight map, checked against the files that are there; None for a single-file checkpoint."""
    path = ckpt.folder / INDEX_FILE
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
    counts = {m[2] for n in names if (m := _SHARD.fullmatch(n))}
    if len(counts) > 1:
        ckpt.problems.append(f"shards of different splits lie side by side: of {', of '.join(sorted(counts))}")
    total = sum(f.stat().st_size - _header_nbytes(f) for f in files)
    stated = index.get("metadata", {}).get("total_size")
    if stated != total and not lost and not stray:
        ckpt.problems.append(f"{INDEX_FILE} states a total_size of {stated}, the shards hold {total} bytes")
    return weight_map


def _header_nbytes(path: Path) -> int:
    with open(path, "rb") as f:
        return 8 + int.from_bytes(f.read(8), "little")


def _shard_tensors(path: Path, problems: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of one shard. The safetensors library judges the layout; offsets come from the header itself."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as shard:
            metadata = shard.metadata() or {}
            shapes = {name: shard.get_slice(name).get_shape() for name in shard.keys()}  # noqa: SIM118 - not a dict
        with open(path, "rb") as f:
            base = 8 + int.from_bytes(f.read(8), "little")
            table = json.loads(f.read(base - 8))
    except (SafetensorError, OSError, ValueError) as err:
        problems.append(f"{path.name} is not a whole safetensors file: {err}")
        return
    if metadata.get("format") != "pt":
        problems.append(f'{path.name} lacks the metadata {{"format": "pt"}}, which transformers 4 insists on')
    for name, shape in shapes.items():
        row = table[name]
        start, stop = row["data_offsets"]
        yield name, Tensor(path, row["dtype"], tuple(shape), base + start, stop - start)


def _stray(folder: Path, files: list[Path]) -> Iterator[str]:
    """Files that make a loader read something else than the checkpoint, or show that a write was cut short."""
    consolidated = [f.name for f in files if f.name.startswith("consolidated")]
    if consolidated:
        yield f"{consolidated[0]} makes vLLM read that file instead (Mistral's own format): remove it"
    unfinished = sorted(p.name for p in folder.iterdir() if p.suffix == UNFINISHED)
    if unfinished:
        yield f"unfinished files: {', '.join(unfinished)}"
    others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".gguf", ".pth", ".pt"))
    if others:
        yield f"weights in another format lie beside: {', '.join(others[:5])}"


def _against_config(ckpt: Checkpoint) -> Iterator[str]:
    """What config.json promises about tensors, for any architecture with the usual names."""
    config, tensors = ckpt.config, ckpt.tensors
    quantized = "quantization_config" in config
    dtype = config.get("dtype") or config.get("torch_dtype")
    others = [n for n, t in tensors.items() if FLOATS.get(t.dtype, t.dtype) not in (dtype, "float32")]
    if dtype and others and not quantized:
        yield f"config.json says {dtype}, but these are not: {listing(others)}"
    heads = [n for n in tensors if n.endswith("lm_head.weight")]
    embeddings = [n for n in tensors if n.endswith(("embed_tokens.weight", "wte.weight"))]
    tied = config.get("tie_word_embeddings")
    if tied is True and heads:
        yield f"tie_word_embeddings is true, so {heads[0]} would be ignored"
    if tied is False and embeddings and not heads and "ForCausalLM" in str(config.get("architectures")):
        yield "tie_word_embeddings is false, but there is no lm_head.weight: a server would answer garbage"
    for name in [*heads, *embeddings]:
        rows = tensors[name].shape[0]
        if config.get("vocab_size") not in (None, rows) and not quantized:
            yield f"{name} has {rows} rows, config.json a vocab_size of {config['vocab_size']}"
    numbers = [int(m[1]) for n in tensors if (m := re.search(r"\.(?:layers|h|blocks)\.(\d+)\.", n))]
    layers = config.get("num_hidden_layers")
    if numbers and isinstance(layers, int) and max(numbers) + 1 != layers:
        yield f"config.json says {layers} layers, the tensors {max(numbers) + 1}"
    if numbers and (gaps := sorted(set(range(max(numbers) + 1)) - set(numbers))):
        yield f"no tensors at all for layers {', '.join(map(str, gaps[:8]))}"


def _small_files(folder: Path) -> list[str]:
    problems: list[str] = []
    for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        if (folder / name).exists():
            read_json(folder / name, problems)
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        problems.append("there is no tokenizer")
    return problems


def compare_names(ckpt: Checkpoint, plan: Plan) -> None:
    """Names, shapes, dtypes and configuration against what the source gives."""
    expected = {e.name: e for e in plan.entries}
    if lost := [n for n in expected if n not in ckpt.tensors]:
        ckpt.problems.append(f"tensors that the source has and the checkpoint lacks: {listing(lost)}")
    if extra := [n for n in ckpt.tensors if n not in expected]:
        ckpt.problems.append(f"tensors that nothing in the source gives: {listing(extra)}")
    for name, value in plan.config.items():
        if ckpt.config.get(name) != value:
            ckpt.problems.append(f"config.json says {name} = {ckpt.config.get(name)!r}, the source {value!r}")
    for name in expected.keys() & ckpt.tensors.keys():
        entry, tensor = expected[name], ckpt.tensors[name]
        if tensor.shape != entry.shape or FLOATS.get(tensor.dtype) != entry.dtype:
            ckpt.problems.append(
                f"{name} is {tensor.dtype} {list(tensor.shape)}, expected {entry.dtype} {list(entry.shape)}"
            )
