"""Projections that vLLM loads as one parameter: do their formats agree, and does no pattern mean some of them alone?

vLLM gives such a parameter one format and does not say that its members differ: what it then computes is garbage.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from gguf2st.fold import listing
from gguf2st.verification.checkpoint import Checkpoint, content
from gguf2st.verification.formats import Rules

_Group: TypeAlias = tuple[str, tuple[str, ...]]

USUAL: tuple[_Group, ...] = (
    ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
    ("qkv_proj", ("query", "key", "value")),
    ("gate_up_proj", ("gate_proj", "up_proj")),
    ("gate_up_proj", ("w1", "w3")),
    ("gate_up_proj", ("c_fc_0", "c_fc_1")),
    ("w13", ("w1", "w3")),
    ("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa")),
    ("in_proj_qkvz", ("in_proj_qkv", "in_proj_z")),
    ("in_proj_ba", ("in_proj_b", "in_proj_a")),
)
"""Parameter -> its members in one parent, in every class of vLLM 0.32 that has such members, but those of `APART`."""

_INDEXER: _Group = ("wk_weights_proj", ("wk", "weights_proj"))
_DEEPSEEK_V4: tuple[_Group, ...] = (("fused_wqa_wkv", ("wq_a", "wkv")), ("fused_wkv_wgate", ("wkv", "wgate")))
_KIMI: tuple[_Group, ...] = (
    ("in_proj_qkvgfab", ("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj")),
    ("fused_qkv_a_g_proj", ("q_a_proj", "kv_a_proj_with_mqa", "g_proj")),
)
_LING_3: tuple[_Group, ...] = (("qkvb_proj", ("q_proj", "k_proj", "v_proj", "b_proj")),)

OF_CLASS: Mapping[str, tuple[_Group, ...]] = {
    "BailingMoeV3ForCausalLM": _LING_3,
    "BailingMoeV3VLForConditionalGeneration": _LING_3,
    "DeepseekV32ForCausalLM": (_INDEXER,),
    "DeepseekV4ForCausalLM": _DEEPSEEK_V4,
    "Glm5NextForCausalLM": (
        _INDEXER,
        ("in_proj_qkvbfg_a", ("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "g_a_proj")),
    ),
    "GlmMoeDsaForCausalLM": (_INDEXER,),
    "HYV4ForCausalLM": (_INDEXER,),
    "InklingForCausalLM": (("qkvr", ("wq_du", "wk_dv", "wv_dv", "wr_du")),),
    "KimiK3ForConditionalGeneration": _KIMI,
    "KimiLinearForCausalLM": _KIMI,
    "MiniMaxM3SparseForCausalLM": (("qkv_proj", ("q_proj", "k_proj", "v_proj", "index_q_proj", "index_k_proj")),),
    "NomicBertModel": (("gate_up_proj", ("fc12", "fc11")),),
    "OlmoHybridForCausalLM": (("in_proj_qkvg", ("q_proj", "k_proj", "v_proj", "g_proj")),),
    "QWenLMHeadModel": (("gate_up_proj", ("w2", "w1")),),
    "Qwen4ExpForCausalLM": (("kv_proj", ("key_proj", "value_proj")),),
}
"""HF class -> what its class in vLLM 0.32 fuses beyond that: `packed_modules_mapping` and `stacked_params_mapping`."""

APART: Mapping[str, frozenset[str]] = {
    "LagunaForCausalLM": frozenset({"gate_up_proj"}),
    "MiniCPM3ForCausalLM": frozenset({"fused_qkv_a_proj"}),
    "SarvamMLAForCausalLM": frozenset({"fused_qkv_a_proj"}),
}
"""HF class -> usual parameters whose members are parameters of their own in its class in vLLM 0.32."""


def fused_in(hf_class: str) -> tuple[_Group, ...]:
    """What vLLM loads as one parameter in a class: (its name there, names of the members in one parent).

    Args:
        hf_class: first of the configuration's `architectures`; of an unknown class, what is usual.
    """
    apart = APART.get(hf_class, frozenset[str]())
    return (*OF_CLASS.get(hf_class, ()), *(group for group in USUAL if group[0] not in apart))


def fused_problems(ckpt: Checkpoint, rules: Rules, modules: Sequence[str]) -> Iterator[str]:
    """Every parameter whose members would not be read as they lie there; `modules` are those with a matrix."""
    groups = fused_in(ckpt.hf_class)
    yield from _formats(groups, rules, modules)
    yield from _global_scales(ckpt, groups)


def _formats(groups: Sequence[_Group], rules: Rules, modules: Sequence[str]) -> Iterator[str]:
    children: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        parent, _, name = module.rpartition(".")
        if not parent.rpartition(".")[0].endswith(".experts"):
            children[parent].add(name)
    mixed: dict[str, list[str]] = defaultdict(list)
    for parent, names in children.items():
        for together, members in groups:
            there = [m for m in members if m in names]
            if len(there) > 1 and (problem := _mixed(rules, parent, together, there)):
                mixed[problem].append(parent)
    yield from (f"{listing(parents)}: {problem}" for problem, parents in mixed.items())


def _mixed(rules: Rules, parent: str, together: str, members: Sequence[str]) -> str:
    """Why these members of `parent` cannot be one parameter; "" when they can."""
    prefix = f"{parent}." if parent else ""
    formats = {m: rules.of(prefix + m) for m in members}
    if len(set(formats.values())) > 1:
        each = ", ".join(f"{m} {f or '16-bit'}" for m, f in formats.items())
        return f"vLLM loads these as one parameter of one format and does not say that they differ: {each}"
    own = formats[members[0]]
    taken, pattern = rules.fused(prefix + together, [prefix + m for m in members])
    if taken != own:
        return (
            f"{pattern!r} matches {together}, vLLM's name for {', '.join(members)}, which are then "
            f"{taken or '16-bit'} instead of {own or '16-bit'}"
        )
    return ""


def _global_scales(ckpt: Checkpoint, groups: Sequence[_Group]) -> Iterator[str]:
    """Members of one parameter in NVFP4 must share their global scale: vLLM takes the greatest for all of them."""
    scales: dict[tuple[str, str], dict[bytes, list[str]]] = defaultdict(lambda: defaultdict(list))
    together = {member: name for name, members in groups[::-1] for member in members}
    for weight, packed in ckpt.packed.items():
        parent, _, last = weight.removesuffix(".weight").rpartition(".")
        if packed.format.layout == "nvfp4" and last in together:
            scales[parent, together[last]][content(packed.parts["weight_global_scale"])].append(last)
    for (parent, name), found in scales.items():
        if len(found) > 1:
            members = ", ".join(sorted(member for group in found.values() for member in group))
            yield f"{parent}: weight_global_scale of {members} differs; vLLM takes one for all of {name}"
