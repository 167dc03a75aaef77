"""Tensors against each other and against config.json, without knowing the architecture.

Layers of a model are alike: a layer that alone lacks a tensor, or has it in another shape, was damaged. Where that is
not so by design, config.json says it with one list item per layer (`layer_types`), or many layers differ. What is
wrong in every layer alike is found only where a convention of names and configuration keys tells (`_promises`).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Any, TypeAlias

from gguf2st.fold import listing
from gguf2st.quants.layout import INT64
from gguf2st.verification.checkpoint import DTYPES, Checkpoint, Tensor
from gguf2st.verification.packed import is_part, logical_tensors, understood

LAYER_LISTS = frozenset({"layers", "layer", "h", "blocks", "block"})
"""What classes of transformers call the list of their layers."""

USUAL_ROOTS = ("", "model", "transformer", "gpt_neox", "model.decoder", "model.language_model", "language_model.model")
"""Where that list lies when it holds all layers; elsewhere a layer of config.json may be something else."""

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

HEADS = (".lm_head.weight", ".head.weight", ".embed_out.weight", ".output.weight")
"""What the projection to the vocabulary is called."""

MAX_INDEX = 1_000_000
"""No model has so many layers or experts; a guard against counting up to an absurd number."""

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")

Members: TypeAlias = Mapping[int, Mapping[str, frozenset[tuple[str, tuple[int, ...]]]]]
"""Number in the list -> tensor name below it, inner numbers as # -> the (dtype, shape) of such tensors."""


def consistency(ckpt: Checkpoint) -> Iterator[str]:
    """Every disagreement, one line each."""
    tensors = logical_tensors(ckpt)
    # Of a quantization that is not understood here, only names are compared.
    quantized = "quantization_config" in ckpt.config and not understood(ckpt.rules)
    lists = _lists(tensors, dtypes=ckpt.rules is None)
    main = _main_list(ckpt.config, lists)
    if not quantized:
        yield from _dtypes(ckpt.config, tensors, ckpt.packed)
    yield from _layer_count(ckpt.config, lists, main)
    yield from _expert_counts(ckpt.config, lists, main)
    for name, members in lists.items():
        kinds = _kinds(ckpt.config, members) if name == main else dict.fromkeys(members, 0)
        yield from _gaps(name, members, _empty_layers(ckpt.config) if name == main else frozenset())
        yield from _odd_members(name, members, kinds, compare_shapes=not quantized)
    if "ForCausalLM" in str(ckpt.config.get("architectures")):
        yield from _head_and_embedding(ckpt.config, tensors, quantized)
        if main is not None:
            yield from _siblings(main, lists[main])
            yield from _biases(ckpt.config, main, lists[main])
            yield from _final_norm(tensors, main, lists[main])
            if not quantized:
                yield from _promises(ckpt.config, main, lists[main])


def _lists(tensors: Mapping[str, Tensor], *, dtypes: bool) -> dict[str, Members]:
    """Numbered modules by the name of their list: layers, and experts inside each layer.

    `dtypes`: whether matrices are told apart by their dtype; in a quantized model it differs from layer to layer.
    """
    found: dict[str, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(set)))
    for name, tensor in tensors.items():
        parts = name.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
        for i in numbers:
            if i and ((parts[i - 1] in LAYER_LISTS and i == numbers[0]) or parts[i - 1] == "experts"):
                rest = ".".join("#" if part.isdecimal() else part for part in parts[i + 1 :])
                dtype = tensor.dtype if dtypes or len(tensor.shape) < 2 else ""
                found[".".join(parts[:i])][int(parts[i])][rest].add((dtype, tensor.shape))
    return {
        name: {n: {rest: frozenset(kinds) for rest, kinds in rows.items()} for n, rows in members.items()}
        for name, members in found.items()
    }


def _main_list(config: Mapping[str, Any], lists: Mapping[str, Members]) -> str | None:
    """The layers of the language model: the longest list outside encoders of other inputs."""
    others = ("vision", "visual", "audio", "encoder", "experts", "mtp")
    names = [n for n in lists if not any(word in n for word in others)]
    if config.get("is_encoder_decoder") is True:
        return None
    return max(names, key=lambda n: len(lists[n]), default=None)


def _dtypes(config: Mapping[str, Any], tensors: Mapping[str, Tensor], packed: Collection[str]) -> Iterator[str]:
    dtype = config.get("dtype") or config.get("torch_dtype")
    others = [
        name
        for name, t in tensors.items()
        if DTYPES.get(t.dtype, t.dtype) not in (dtype, "float32", *_whole(name))
        and name not in packed
        and not is_part(name)
    ]
    if dtype and others:
        yield f"config.json says {dtype}, but these are not: {listing(others)}"


def _whole(name: str) -> tuple[str, ...]:
    """The dtype of whole numbers, where a tensor may have some: tables and indices may, weights and biases may not."""
    return () if name.endswith((".weight", ".bias")) else (INT64,)


def _layer_count(config: Mapping[str, Any], lists: Mapping[str, Members], main: str | None) -> Iterator[str]:
    stated = next((config[key] for key in LAYER_COUNTS if isinstance(config.get(key), int)), None)
    if main is None or stated is None or main.rpartition(".")[0] not in USUAL_ROOTS:
        return
    extra = config.get("num_nextn_predict_layers")
    allowed = {stated, stated + (extra if isinstance(extra, int) else 0)}  # further layers that predict more tokens
    empty = _empty_layers(config)
    found = {name: max(members.keys() | (empty if name == main else set())) + 1 for name, members in lists.items()}
    if allowed.isdisjoint(found.values()):
        yield f"config.json says {stated} layers, the tensors of {main} {found[main]}"


def _expert_counts(config: Mapping[str, Any], lists: Mapping[str, Members], main: str | None) -> Iterator[str]:
    stated = {config[key] for key in EXPERT_COUNTS if isinstance(config.get(key), int)}
    for name, members in lists.items():
        if stated and main is not None and name.startswith(f"{main}.") and name.endswith(".experts"):
            n = max(members) + 1
            if n < min(stated):  # some have experts beyond the number that is stated
                yield f"config.json says {min(stated)} experts, the tensors of {name} {n}"


def _kinds(config: Mapping[str, Any], members: Members) -> dict[int, Hashable]:
    """Number -> what the lists of config.json with one item per layer say about it."""
    n = max(members) + 1
    inner = [c for c in config.values() if isinstance(c, dict)]
    pairs = [pair for c in (config, *inner) for pair in c.items() if not pair[0].endswith("token_id")]
    columns = [v for k, v in pairs if (isinstance(v, list) or ("pattern" in k and isinstance(v, str))) and len(v) == n]
    return {i: json.dumps([column[i] for column in columns]) for i in members}


def _empty_layers(config: Mapping[str, Any]) -> frozenset[int]:
    """Layers of which nothing is left: `block_configs` of DeciLM and Nemotron says "no_op" for each of their parts."""
    blocks = config.get("block_configs")
    found = set()
    for i, block in enumerate(blocks if isinstance(blocks, list) else ()):
        parts = [part for part in block.values() if isinstance(part, dict)] if isinstance(block, dict) else []
        if parts and all(part.get("no_op") is True for part in parts):
            found.add(i)
    return frozenset(found)


def _gaps(name: str, members: Members, empty: frozenset[int]) -> Iterator[str]:
    if max(members) > MAX_INDEX:
        yield f"{name}.{max(members)} has a number that no model has"
    elif gaps := sorted(set(range(max(members) + 1)) - members.keys() - empty):
        yield f"no tensors at all for {listing(f'{name}.{i}' for i in gaps)}"


def _odd_members(name: str, members: Members, kinds: Mapping[int, Hashable], *, compare_shapes: bool) -> Iterator[str]:
    """Members that lack a tensor which most of their kind have, have a bias alone, or have another shape or dtype."""
    lost: list[str] = []
    biases: list[str] = []
    shapes: list[str] = []
    for kind in dict.fromkeys(kinds.values()):
        group = [i for i in members if kinds[i] == kind]
        for odd, usual in _odd({i: frozenset(members[i]) for i in group}):
            missing, more = usual - members[odd].keys(), members[odd].keys() - usual
            # A first layer may do without a norm or what it would take from the layer before (ModernBERT, Zaya).
            if missing and not more and (odd > 0 or any(rest.endswith("_proj.weight") for rest in missing)):
                lost += [f"{name}.{odd}.{rest}" for rest in sorted(missing)]
            if more and not missing:
                alone = {rest for rest in more if rest.endswith(".bias") and rest[:-4] + "weight" in usual}
                biases += [f"{name}.{odd}.{rest}" for rest in sorted(alone)]
        for rest in dict.fromkeys(r for i in group for r in members[i]) if compare_shapes else ():
            have = {i: members[i][rest] for i in group if rest in members[i]}
            for odd, usual_shape in _odd(have):
                is_, others = (
                    " and ".join(f"{d} {list(s)}".strip() for d, s in sorted(x)) for x in (have[odd], usual_shape)
                )
                shapes.append(f"{name}.{odd}.{rest} is {is_}, in the other members of {name} {others}")
    if lost:
        yield f"missing: {listing(lost)} (the other members of {name} have them)"
    if biases:
        yield f"biases that only these members of {name} have: {listing(biases)}"
    yield from shapes


def _odd(values: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
    """(number, usual value) for the few members whose value is not the usual one: one alone, or a fifth of all."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    usual, most = counts.most_common(1)[0]
    for number, value in values.items():
        n = counts[value]
        if value != usual and n < most and (n == 1 or 4 * n <= most):
            yield number, usual


def _head_and_embedding(config: Mapping[str, Any], tensors: Mapping[str, Tensor], quantized: bool) -> Iterator[str]:
    embeddings = [n for n in tensors if n.endswith(("embed_tokens.weight", "wte.weight"))]
    tied = config.get("tie_word_embeddings")
    outside = [n for n in tensors if not any(part.isdecimal() for part in n.split("."))]
    heads = [n for n in outside if f".{n}".endswith(HEADS)]
    if not any("emb" in n or "wte" in n for n in outside if "rotary" not in n and "position" not in n):
        yield "there is no token embedding: a server would answer garbage"
    if tied is True and heads:
        yield f"tie_word_embeddings is true, so {heads[0]} would be ignored"
    if tied is False and embeddings and not heads:
        yield "tie_word_embeddings is false, but there is no lm_head.weight: a server would answer garbage"
    vocab = config.get("vocab_size")
    for name in () if quantized or not isinstance(vocab, int) else (*heads, *embeddings):
        if tensors[name].shape[:1] != (vocab,):
            yield f"{name} has the shape {list(tensors[name].shape)}, config.json a vocab_size of {vocab}"


def _modules(members: Members) -> dict[str, set[str]]:
    """Names of projections by their parent: {"self_attn": {"q_proj", ...}, "mlp": {...}}."""
    parents: dict[str, set[str]] = defaultdict(set)
    for rows in members.values():
        for rest in rows:
            *parent, module, _ = ["", *rest.split(".")] if rest.count(".") else ["", "", rest]
            parents[".".join(parent).lstrip(".")].add(module)
    return parents


def _siblings(name: str, members: Members) -> Iterator[str]:
    """Projections that are nowhere, although no architecture has the others without them."""
    parents = _modules(members)
    for parent, modules in parents.items():
        where = f"{name}.#.{parent}"
        qkv = {"q_proj", "k_proj", "v_proj"}
        attention = parent.rpartition(".")[2] in ("self_attn", "attn", "attention")
        latent = any("kv" in m or "q_a" in m or "q_b" in m for m in modules)
        if attention and not latent and len(lost := qkv - modules) == 1:
            yield f"no layer has {where}.{lost.pop()}, but all have its siblings"
        inside = any(other.startswith(f"{parent}.") for other in parents)
        if parent == "self_attn" and not inside and {m for m in modules if "norm" not in m} == {"o_proj"}:
            yield f"no layer has {where}.q_proj, k_proj and v_proj, but all have o_proj"
        if parent == "self_attn" and qkv <= modules and not {m for m in modules - qkv if "norm" not in m}:
            yield f"no layer has an output projection such as {where}.o_proj"
        if {"gate_proj", "up_proj", "down_proj"} - modules in ({"down_proj"}, {"up_proj"}):
            lost = {"down_proj", "up_proj"} - modules
            yield f"no layer has {where}.{lost.pop()}, but all have its siblings"


def _biases(config: Mapping[str, Any], name: str, members: Members) -> Iterator[str]:
    """attention_bias and mlp_bias against the biases that are there."""
    everything = {rest for rows in members.values() for rest in rows}
    for key, modules in (
        ("attention_bias", [f"self_attn.{x}_proj" for x in "qkvo"]),
        ("mlp_bias", [f"mlp.{x}_proj" for x in ("gate", "up", "down")]),
    ):
        found = [f"{name}.#.{m}.bias" for m in modules if f"{m}.bias" in everything]
        if config.get(key) is False and found:
            yield f"{key} is false, so these would be ignored: {', '.join(found)}"
        if config.get(key) is True and f"{modules[0]}.weight" in everything and not found:
            yield f"{key} is true, but there is no {name}.#.{modules[0]}.bias"


def _final_norm(tensors: Mapping[str, Tensor], name: str, members: Members) -> Iterator[str]:
    """Layers that begin with a norm are followed by one."""
    if not any("input_layernorm.weight" in rows for rows in members.values()):
        return
    vectors = [n for n, t in tensors.items() if not n.startswith(f"{name}.") and len(t.shape) == 1]
    if not any("norm" in n or "ln" in n for n in vectors):
        yield f"there is no norm after the last of {name}"


def _promises(config: Mapping[str, Any], name: str, members: Members) -> Iterator[str]:
    """Shapes that follow from config.json, where its keys and the tensors have their usual names.

    Some architectures have wider projections in a part of their layers: one layer with the promised shape is enough.
    """
    for rest, allowed in _usual_shapes(config).items():
        found = {shape for rows in members.values() for _, shape in rows.get(rest, ())}
        if found and not found & allowed:
            yield (
                f"{name}.#.{rest} has the shape {' or '.join(str(list(s)) for s in sorted(found))}, "
                f"config.json promises {list(min(allowed))}"
            )


def _usual_shapes(config: Mapping[str, Any]) -> dict[str, set[tuple[int, ...]]]:
    hidden, heads, ffn = (_int(config, k) for k in ("hidden_size", "num_attention_heads", "intermediate_size"))
    kv_heads, head_dim = _int(config, "num_key_value_heads"), _int(config, "head_dim")
    if not hidden:
        return {}
    shapes: dict[str, set[tuple[int, ...]]] = {
        f"{norm}.weight": {(hidden,)} for norm in ("input_layernorm", "post_attention_layernorm")
    }
    if ffn:
        # Dense layers before layers of experts may have a width of their own.
        widths = {ffn, _int(config, "prefix_dense_intermediate_size") or ffn}
        shapes |= {f"mlp.{x}_proj.weight": {(n, hidden) for n in widths} for x in ("gate", "up")}
        shapes["mlp.down_proj.weight"] = {(hidden, n) for n in widths}
    if heads and not any("lora_rank" in key or key == "v_head_dim" for key in config):
        dim = head_dim or hidden // heads
        # Gated attention computes a gate of the same width with the query.
        shapes["self_attn.q_proj.weight"] = {(heads * dim, hidden), (2 * heads * dim, hidden)}
        shapes["self_attn.o_proj.weight"] = {(hidden, heads * dim)}
        if kv_heads:
            shapes |= {f"self_attn.{x}_proj.weight": {(kv_heads * dim, hidden)} for x in "kv"}
    return shapes


def _int(config: Mapping[str, Any], key: str) -> int:
    """The number, or 0 when there is none."""
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else 0
