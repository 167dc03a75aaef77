"""Write the skeleton of an arch map: the equations that names and shapes tell, and a list of what is left to decide.

    python scripts/new_arch_map.py model.gguf Qwen3ForCausalLM -o qwen3.toml
    python scripts/new_arch_map.py model.gguf folder/model.safetensors.index.json -o qwen3.toml

The second argument says what the tensors are called: a class of transformers, or a checkpoint with its config.json.
Which GGUF tensor becomes which is learnt from the maps that exist, and the shapes must agree.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gguf2st.archmap import ArchMap
from gguf2st.archmap.expr import parse
from gguf2st.archmap.mapfile import all_maps, load_map
from gguf2st.archmap.scope import MapScope
from gguf2st.errors import Gguf2stError, UsageError
from gguf2st.header import Header, read_header
from gguf2st.header.keys import KEYS
from gguf2st.ops import same_shape
from gguf2st.plan.build import build, read_small

Shape = tuple[int, ...]

NAMES = {
    "hidden": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv or heads",
    "head_dim": "attention.key_length or hidden // heads",
    "q": "heads * head_dim",
    "kv": "kv_heads * head_dim",
    "ffn": "feed_forward_length",
    "vocab": "rows('token_embd.weight')",
    "tied": "not has('output.weight')",
}
"""What most maps call these numbers."""

CONFIG: Sequence[tuple[str, Sequence[str]]] = (
    ("hidden", ("hidden_size", "n_embd", "d_model")),
    ("ffn", ("intermediate_size", "ffn_hidden_size", "n_inner")),
    ("block_count", ("num_hidden_layers", "n_layer", "n_layers")),
    ("heads", ("num_attention_heads", "n_head", "n_heads")),
    ("kv_heads", ("num_key_value_heads", "num_kv_heads")),
    ("head_dim", ("head_dim",)),
    ("attention.layer_norm_rms_epsilon", ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon")),
    ("attention.layer_norm_epsilon", ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")),
    ("context_length", ("max_position_embeddings", "n_positions", "max_seq_len")),
    ("vocab", ("vocab_size",)),
    ("tied", ("tie_word_embeddings",)),
    ("attention.sliding_window", ("sliding_window",)),
    ("has('blk.0.attn_q.bias')", ("attention_bias", "use_bias", "qkv_bias", "use_qkv_bias")),
    ("has('blk.0.ffn_up.bias')", ("mlp_bias",)),
)
"""Expression -> what classes call it in config.json; the first name that the class has is taken."""
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""What vLLM loads as one parameter in most models."""
PERMUTED = re.compile(r"blk\.\{i\}\.attn_(q|k)\.(weight|bias)")
"""Tensors whose rows llama.cpp's converter permutes in some architectures, which no shape shows."""
PERMUTE_NOTE = "# decide: are its rows permuted? Then | unpermute({heads})"


@dataclass(frozen=True)
class Target:
    """What the checkpoint must be.

    Attributes:
        tensors: name -> shape; None where only the name is known.
        keys: config.json keys that the class reads, as far as they are known.
        tied: names that share another tensor's weights in a file without a head of its own.
    """

    architecture: str
    model_type: str
    tensors: Mapping[str, Shape | None]
    keys: frozenset[str]
    tied: tuple[str, ...] = ()


@dataclass(frozen=True)
class Templates:
    """Tensors with {i} for the layer's number.

    Attributes:
        shapes: template -> shape in its first layer.
        layers: template -> layers that have it; none for tensors outside the layers.
    """

    shapes: dict[str, Shape | None] = field(default_factory=dict)
    layers: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Skeleton:
    """The result.

    Attributes:
        text: of the map.
        equations: HF template -> GGUF template.
        flagged: HF templates whose rows may be permuted.
        guessed: HF templates that only their shape led to.
        lost: HF templates without a GGUF tensor.
        left: GGUF templates without a place.
        problems: what `gguf2st check` says about the file with this map.
    """

    text: str
    equations: Mapping[str, str]
    flagged: tuple[str, ...]
    guessed: tuple[str, ...]
    lost: tuple[str, ...]
    left: tuple[str, ...]
    problems: tuple[str, ...]


def templates(tensors: Mapping[str, Shape | None]) -> Templates:
    """`model.layers.7.x` -> `model.layers.{i}.x`; the first number of a name is the layer's."""
    found = Templates()
    for name, shape in tensors.items():
        match = re.fullmatch(r"(.*?\.)(\d+)(\..*)", name)
        template = f"{match[1]}{{i}}{match[3]}" if match else name
        found.shapes.setdefault(template, shape)
        found.layers.setdefault(template, []).extend([int(match[2])] if match else [])
    return found


def target_of_class(name: str, header: Header) -> Target:
    """The names and shapes of a class of transformers, sized as the file says.

    Raises:
        UsageError: transformers has no such class, or cannot build it with the sizes in the file.
    """
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    cls: Any = getattr(transformers, name, None)
    if cls is None or getattr(cls, "config_class", None) is None:
        raise UsageError(
            f"transformers {transformers.__version__} has no model class {name!r}",
            hint="give a checkpoint's folder, index or safetensors file instead",
        )
    defaults = cls.config_class()
    keys = frozenset(defaults.to_dict())
    values = {key: value for key, value, _ in config_values(header, keys)}
    try:
        with torch.device("meta"):
            model = cls(cls.config_class(**values))
    except Exception as err:  # whatever a class may object to
        raise UsageError(f"{name} cannot be built with {values}: {err}") from err
    tied = tuple(getattr(model, "_tied_weights_keys", None) or ()) if values.get("tie_word_embeddings") else ()
    tensors = {key: tuple(t.shape) for key, t in model.state_dict().items() if key not in tied}
    return Target(name, defaults.model_type, tensors, keys, tied)


def target_of_checkpoint(path: Path) -> Target:
    """The names of a checkpoint's index and the shapes of those shards that lie beside it, and its config.json.

    Raises:
        UsageError: there is no checkpoint.
    """
    from safetensors import safe_open

    folder = path if path.is_dir() else path.parent
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        index = path if path.suffix == ".json" else folder / "model.safetensors.index.json"
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.is_file() else {}
    except (OSError, ValueError, KeyError) as err:
        raise UsageError(f"{path} is no checkpoint with a config.json: {err}") from err
    tensors: dict[str, Shape | None] = dict.fromkeys(names)
    for shard in [path] if path.suffix == ".safetensors" else sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="np") as file:
            tensors |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    architecture = (config.get("architectures") or ["?"])[0]
    return Target(architecture, config.get("model_type", "?"), tensors, frozenset(config))


def config_values(header: Header, keys: Iterable[str]) -> list[tuple[str, Any, str]]:
    """(config.json key, value, expression) of what the file says and a class with these keys reads."""
    scope, values = _facts(header)
    known = set(keys)
    rows: list[tuple[str, Any, str]] = []
    for text, spellings in CONFIG:
        key = next((k for k in spellings if k in known and k not in {row[0] for row in rows}), None)
        lacking = text not in values and (text in NAMES or (text in KEYS and scope.get(text) is None))
        if key is None or lacking:
            continue
        rows.append((key, values[text] if text in values else scope.evaluate(parse(text)), text))
    return rows


def learnt(maps: Iterable[ArchMap]) -> tuple[Counter[tuple[str, str]], dict[str, Counter[str]]]:
    """What the maps say of tensors that one GGUF tensor becomes without a change of shape.

    Returns: how often (GGUF template, HF template or the last two parts of it) belong together, and for each GGUF
        template the texts of the shape.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    shapes: dict[str, Counter[str]] = {}
    for amap in maps:
        for equation in (e for group in amap.groups for e in group.equations):
            for way in equation.ways:
                if len(way.sources) == 1 and all(op in ("unpermute", "minus") for op, _ in way.steps):
                    for name in {equation.name, _within_layer(equation.name), _module(equation.name)}:
                        pairs[way.sources[0], name] += 1
                    shapes.setdefault(way.sources[0], Counter())[way.shape.text] += 1
    return pairs, shapes


def match(theirs: Templates, ours: Templates, pairs: Counter[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """HF template -> GGUF template, and those of them that only their shape led to."""

    def fits(name: str, source: str) -> bool:
        shape, found = ours.shapes[name], theirs.shapes[source]
        same_kind = name.rpartition(".")[2] == source.rpartition(".")[2] and ("{i}" in name) == ("{i}" in source)
        return same_kind and (shape is None or (found is not None and same_shape(found, shape)))

    ranked = [
        (rank, pairs[source, key], name, source)
        for name in ours.shapes
        for source in theirs.shapes
        for rank, key in enumerate((_module(name), _within_layer(name), name))
        if pairs[source, key] and fits(name, source)
    ]
    matched: dict[str, str] = {}
    for _, _, name, source in sorted(ranked, key=lambda row: row[:2], reverse=True):
        if name not in matched and source not in matched.values():
            matched[name] = source
    guessed = []
    for name in [n for n in ours.shapes if n not in matched and ours.shapes[n] is not None]:
        free = [s for s in theirs.shapes if s not in matched.values() and fits(name, s)]
        rivals = [n for n in ours.shapes if n not in matched and any(fits(n, s) for s in free)]
        if len(free) == 1 and rivals == [name]:
            matched[name] = free[0]
            guessed.append(name)
    return {name: matched[name] for name in ours.shapes if name in matched}, guessed


def skeleton(header: Header, target: Target, maps: Iterable[ArchMap]) -> Skeleton:
    """The map's text and what is left to decide. `maps` are those to learn from."""
    theirs = templates({name: source.shape for name, source in header.sources.items()})
    ours = templates(target.tensors)
    pairs, texts = learnt(maps)
    equations, guessed = match(theirs, ours, pairs)
    lost = [name for name in ours.shapes if name not in equations]
    left = [name for name in theirs.shapes if name not in equations.values()]
    scope, values = _facts(header)
    numbers = {name: value for name, value in values.items() if name != "tied"}
    everywhere = list(range(scope.get("block_count") or 0))
    groups: dict[str, list[tuple[str, str, str]]] = {"": [], "not tied": []}
    for name, source in equations.items():
        shape = theirs.shapes[source] if ours.shapes[name] is None else ours.shapes[name]
        assert shape is not None
        condition = "not tied" if source == "output.weight" else ""
        if "{i}" in source and sorted(theirs.layers[source]) != everywhere:
            condition = f"has('{source}')"
        note = "# decide: only its shape says so" if name in guessed else ""
        if permuted := PERMUTED.fullmatch(source):
            note = PERMUTE_NOTE.format(heads="heads" if permuted[1] == "q" else "kv_heads")
        text = f"{source} -> {_shape_text(shape, texts.get(source), numbers)}"
        groups.setdefault(condition, []).append((name, text, note))
    groups["not tied"] += [(name, "output.weight -> [vocab, hidden]", "") for name in target.tied]
    require = [("vocab_size is not the embedding's rows", "(vocab_size or vocab) == vocab")]
    if scope.get("attention.value_length") is not None:
        require.append(("values are not as wide as keys", "attention.value_length == head_dim"))
    rope = any(key.startswith(f"{header.arch}.rope.") for key in header.metadata)
    config = [(key, text) for key, _, text in config_values(header, target.keys)]
    lines = [
        f"# {target.architecture}: a skeleton. Its names and shapes are right. To decide is what no shape shows:",
        "# permuted rows, norms stored as weight + 1, swapped halves; modify_tensors of llama.cpp's converter tells.",
        f'arch   = "{header.arch}"',
        'layers = "block_count"',
        "",
        "[names]",
        *_aligned((name, NAMES[name]) for name in values),
        "",
        "[constants]",
        f'architectures = ["{target.architecture}"]',
        f'model_type    = "{target.model_type}"',
        "",
        "[config]",
        *_aligned([*config, *([("*rope", "rope(head_dim)")] if rope else [])]),
        "",
        "[require]",
        *_aligned(require),
    ]
    for condition, rows in groups.items():
        head = ["", "[[tensors]]", *([f'if = "{condition}"'] if condition else [])]
        lines += [*head, *_aligned(rows)] if rows else []
    lines += [f"# decide: nothing in the file becomes {name} {list(ours.shapes[name] or ())}" for name in lost]
    lines += [f"# decide: {name} {list(theirs.shapes[name] or ())} has no place" for name in left]
    members = {name.rpartition(".")[0] for name in equations}
    fused = {m: parts for m, parts in FUSED.items() if all(any(x.endswith(f".{p}") for x in members) for p in parts)}
    lines += ["", "[fused] # what vLLM loads as one parameter"] if fused else []
    lines += [f'"{module}" = {json.dumps(parts)}' for module, parts in fused.items()]
    made = "\n".join(lines) + "\n"
    flagged = tuple(name for name, source in equations.items() if PERMUTED.fullmatch(source))
    return Skeleton(made, equations, flagged, tuple(guessed), tuple(lost), tuple(left), _check(header, made))


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """(key, text) or (key, text, comment) as lines of a TOML table whose values stand below each other."""
    rows = list(rows)
    keys = [row[0] if re.fullmatch(r"[\w-]+", row[0]) else json.dumps(row[0]) for row in rows]
    width = max(map(len, keys), default=0)
    return [f'{key:{width}} = "{row[1]}" {"".join(row[2:])}'.rstrip() for key, row in zip(keys, rows, strict=True)]


def _check(header: Header, text: str) -> tuple[str, ...]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{Path(header.arch).name}.toml"
        path.write_text(text, encoding="utf-8")
        return build(header, arch_map=path).all_problems


def _shape_text(shape: Shape, texts: Counter[str] | None, numbers: Mapping[str, int]) -> str:
    """What other maps say of this tensor's shape where it fits, else the first name for each number."""
    for text, _ in (texts or Counter()).most_common():
        parts = text.strip("[] ").split(", ")
        if len(parts) == len(shape) and all(numbers.get(p) == n for p, n in zip(parts, shape, strict=True)):
            return text
    dims = (next((name for name, value in numbers.items() if value == n), str(n)) for n in shape)
    return f"[{', '.join(dims)}]"


def _facts(header: Header) -> tuple[MapScope, dict[str, Any]]:
    """What a map sees of the file, and those of NAMES that the file gives a value."""
    head = [f"arch = {json.dumps(header.arch)}", 'layers = "block_count"', "tensors = []", "[config]", "[names]"]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "names.toml"
        path.write_text("\n".join([*head, *_aligned(NAMES.items())]), encoding="utf-8")
        amap = load_map(path)
    scope = MapScope(header, amap, read_small(header))
    values: dict[str, Any] = {}
    for name, expression in amap.names.items():
        with suppress(Gguf2stError):
            values[name] = scope.evaluate(expression)
    return scope, values


def _within_layer(name: str) -> str:
    """`model.layers.{i}.mlp.up_proj.weight` -> `mlp.up_proj.weight`."""
    return name.partition("{i}.")[2] or name


def _module(name: str) -> str:
    """The last two parts: `up_proj.weight`."""
    return ".".join(name.split(".")[-2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header", type=Path, help="a GGUF file of the architecture; only its header is read")
    parser.add_argument("model", help="a class of transformers, or a checkpoint: folder, index or safetensors file")
    parser.add_argument("-o", "--output", type=Path, help="the map to write; by default ARCH.toml here")
    parser.add_argument(
        "--without", metavar="ARCH", action="append", default=[], help="learn nothing from the maps of ARCH, to try it"
    )
    options = parser.parse_args()
    try:
        header = read_header([options.header])
        path = Path(options.model)
        target = target_of_checkpoint(path) if path.exists() else target_of_class(options.model, header)
        made = skeleton(header, target, [m for m in all_maps() if m.arch not in options.without])
    except Gguf2stError as err:
        sys.exit(f"error: {err.message}{f' ({err.hint})' if err.hint else ''}")
    output = options.output or Path(f"{header.arch}.toml")
    if output.exists():
        sys.exit(f"error: {output} exists already; choose another name with -o")
    output.write_text(made.text, encoding="utf-8")
    total = len(made.equations) + len(made.lost)
    left = f"{len(made.left)} of the file have no place" if made.left else "all of the file have a place"
    print(f"{output}: {len(made.equations)} of {total} tensors of {target.architecture} are filled, {left}")
    for name in made.flagged:
        print(f"  decide: are the rows of {name} permuted?")
    for name in made.guessed:
        print(f"  decide: only the shape says {name} = {made.equations[name]}")
    for name in made.lost:
        print(f"  decide: nothing becomes {name}")
    for name in made.left:
        print(f"  decide: {name} has no place")
    for problem in made.problems:
        print(f"  problem: {problem}")


if __name__ == "__main__":
    main()
