"""What transformers 5.24 with compressed-tensors 0.20 makes of a packed checkpoint that vLLM reads as meant.

Found by loading each family packed in each format (tests/test_repack_families.py, tests/test_quantized_loading.py hold
these tables to it). gguf2st unpacks weights itself wherever it runs a model: nothing here is said against a checkpoint.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gguf2st.config.quantization import quantization_config
from gguf2st.fold import listing
from gguf2st.plan import DENSE, Plan
from gguf2st.verification.checkpoint import Checkpoint, content
from gguf2st.verification.formats import Format, read_rules

READER = "transformers 5.24 with compressed-tensors 0.20"

_ASKS = "its code asks linear layers for `weight`, which packed ones lack before their first use"
_JOINS = "transformers joins its convolutions as it loads them, and wants them packed like the rest"
_SPLITS = "transformers splits weights of its as it loads them, and does not so with packed ones"
_RANDOM = ", and fills what it then lacks with random numbers"
_RENAMES = f"transformers renames its weights as it loads them, and does not so with parts of packed ones{_RANDOM}"
_STACKED = f"transformers looks for each expert alone, and those of a layer are one tensor here{_RANDOM}"
_FLOAT32 = "it keeps its gates in float32, and multiplies them with packed ones in 16 bits"

UNLESS_DEQUANTIZED: Mapping[str, str] = {
    "FalconForCausalLM": _ASKS,
    "GPTBigCodeForCausalLM": _ASKS,
    "HYV4ForCausalLM": _FLOAT32,
    "Mamba2ForCausalLM": _ASKS,
    "ModernBertModel": _ASKS,
    "T5EncoderModel": _ASKS,
    "T5ForConditionalGeneration": _ASKS,
    "UMT5EncoderModel": _ASKS,
    "UMT5ForConditionalGeneration": _ASKS,
}
"""HF class -> why transformers runs it packed only when it is told to dequantize."""

NEVER: Mapping[str, str] = {
    "BailingMoeV3ForCausalLM": _JOINS,
    "DeepseekV4ForCausalLM": _RENAMES,
    "HrmTextForCausalLM": _SPLITS,
    "JinaEmbeddingsV3Model": _SPLITS + _RANDOM,
    "KimiLinearForCausalLM": _JOINS,
    "Llama4ForCausalLM": _STACKED,
    "SarvamMoEForCausalLM": _SPLITS + _RANDOM,
}
"""HF class -> why transformers does not load it packed."""


@dataclass(frozen=True)
class Contents:
    """What the limits depend on.

    Attributes:
        hf_class: first of `architectures`.
        packed: name of a weight -> its format.
        dense_experts: matrices of single experts that are not packed.
        rescaled: weights in nvfp4 whose global scale is not 1.
        read: the format in which transformers reads all experts.
    """

    hf_class: str
    packed: Mapping[str, Format]
    dense_experts: tuple[str, ...]
    rescaled: tuple[str, ...]
    read: Format | None

    @cached_property
    def experts(self) -> dict[str, Format]:
        """The packed weights of single experts."""
        return {name: form for name, form in self.packed.items() if _one_expert(name)}

    @cached_property
    def formats(self) -> str:
        """All formats; empty unless there are several."""
        found = sorted({str(form) for form in self.packed.values()})
        return " and ".join(found) if len(found) > 1 else ""

    def in_layout(self, *layouts: str) -> str:
        """Those of the layouts that occur."""
        found = {form.layout for form in self.packed.values()}
        return " and ".join(layout for layout in layouts if layout in found)


def _one_expert(name: str) -> bool:
    """Whether a tensor belongs to one expert, not to a stack of them."""
    return name.partition(".experts.")[2].split(".")[0].isdecimal()


def _misread(c: Contents) -> str:
    odd = [name for name, form in c.experts.items() if form != c.read]
    return f"all experts as {c.read}, without a word: wrongly {listing(odd)}" if odd else ""


def _class(table: Mapping[str, str]) -> Callable[[Contents], str]:
    return lambda c: f"{c.hf_class} packed: {table[c.hf_class]}" if c.hf_class in table else ""


def _experts_with_zero_points(c: Contents) -> str:
    return listing([name for name, form in c.experts.items() if not form.symmetric])


def _zero_points(c: Contents) -> str:
    asymmetric = any(not form.symmetric for form in c.packed.values())
    return "zero points" if asymmetric and not _experts_with_zero_points(c) else ""


LIMITS: tuple[tuple[Callable[[Contents], str], str], ...] = (
    (_class(NEVER), "cannot load {}"),
    (_class(UNLESS_DEQUANTIZED), "cannot run {}; told to dequantize, it can, where all is in one format"),
    (lambda c: listing(c.dense_experts), "cannot load experts in 16 bits beside packed weights: {}"),
    (_misread, "reads {}"),
    (_experts_with_zero_points, "cannot load experts with zero points: {}"),
    (_zero_points, "cannot load {}, unless it is told to dequantize and all is in one format"),
    (
        lambda c: c.in_layout("mxfp4", "nvfp4"),
        "cannot run {}, unless it is told to dequantize and all is in one format",
    ),
    (
        lambda c: listing([name for name in c.rescaled if _one_expert(name)]),
        "told to dequantize, misreads experts whose weight_global_scale is not 1: {}",
    ),
    (lambda c: c.formats, "told to dequantize, reads all weights in one format, mostly without a word: wrongly {}"),
)
"""(what of a checkpoint it concerns, empty for nothing; what transformers does with that)."""


def transformers_limits(ckpt: Checkpoint) -> Iterator[str]:
    """One line for each limit that a checkpoint meets."""
    if ckpt.rules is None or ckpt.rules.method != "compressed-tensors":
        return
    inside = {part.name for packed in ckpt.packed.values() for part in packed.parts.values()}
    dense = (n for n, t in ckpt.tensors.items() if _one_expert(n) and len(t.shape) > 1 and n not in inside)
    scales = {name: p.parts.get("weight_global_scale") for name, p in ckpt.packed.items()}
    one = struct.pack("<f", 1.0)
    rescaled = (name for name, scale in scales.items() if scale is not None and content(scale) != one)
    packed = {name: p.format for name, p in ckpt.packed.items()}
    yield from _met(Contents(ckpt.hf_class, packed, tuple(dense), tuple(rescaled), ckpt.rules.experts()))


def planned_limits(plan: Plan) -> Iterator[str]:
    """The same of the checkpoint that a plan makes."""
    stated = quantization_config(plan)
    rules = read_rules({"quantization_config": stated} if stated else {}, (), [])
    if rules is None or rules.method != "compressed-tensors":
        return
    packed = {e.name: form for e in plan.entries if e.scheme != DENSE and (form := rules.of(e.module))}
    dense = (e.name for e in plan.entries if e.scheme == DENSE and len(e.shape) > 1 and _one_expert(e.name))
    rescaled = (e.name for e in plan.entries if e.scheme != DENSE and e.scale != 1.0)
    hf_class = next(iter(plan.config.get("architectures", ())), "")
    yield from _met(Contents(hf_class, packed, tuple(dense), tuple(rescaled), rules.experts()))


def _met(contents: Contents) -> Iterator[str]:
    for concerns, words in LIMITS if contents.packed else ():
        if found := concerns(contents):
            yield f"{READER} {words.format(found)}"
