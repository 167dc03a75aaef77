"""Files of ollama's own converter, read as if llama.cpp's had written them.

ollama converts some models itself. Its files spell architectures, keys and tensors otherwise, leave out what its
runner knows by itself, and hold the encoders of images and sound and the draft layers beside the language model.
`respelled` gives such a header llama.cpp's spelling, so that arch maps know one spelling only; offsets and bytes stay
as they are. What ollama says otherwise and no table here knows is left as it is, and refused by the map like any
unknown key or tensor.

Source of the tables: what ollama's `convert/` writes, and what its `llama/compat` changes before it hands published
files to llama.cpp (ollama 0.30). Each row is one fact of one of them.
"""

import dataclasses
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gguf2st.header import respelling
from gguf2st.header.keys import KEYS, ROPE_BASE, SIZE
from gguf2st.header.respelling import Respelling

if TYPE_CHECKING:
    from gguf2st.header import Header, Source

PARTS: Mapping[str, str] = {
    "v.": "encodes images; this is the language model alone",
    "a.": "encodes sound; this is the language model alone",
    "mm.": "projects images or sound into the language model; this is the language model alone",
    "s.": "encodes images; this is the language model alone",
    "mtp.": "multi-token prediction layers, which speculative decoding alone uses",
}
"""Prefix of the tensors of other parts of a model -> why they are left behind. No language model has such names."""

_PART_KEYS = ("vision.", "audio.", "mm.", "sam.", "projector.")
"""Prefixes of the keys that describe those parts."""

_OF_PARTS = (
    "image_token_id",
    "image_token_index",
    "vision_start_token_id",
    "vision_end_token_id",
    "video_token_id",
    "audio_token_id",
    "spatial_merge_size",
    "num_channels",
    "mrope_sections",
    "rope.mrope_section",
    "rope.mrope_interleaved",
)
"""Keys beside the architecture that only say where images and sound stand in a text, and how their positions count."""


@dataclass(frozen=True)
class Spelling:
    """How ollama writes one architecture.

    Attributes:
        becomes: llama.cpp's name of it.
        keys: ollama's key -> llama.cpp's, both without the architecture; an existing key of llama.cpp's is kept.
        tensors: a part of ollama's tensor name -> llama.cpp's, which must not occur in it already.
        marks: keys, names of tensors and, with a dot before them, ends of such names that say that a file of an
            architecture with the same name is ollama's.
        fix: what else is to be done, of `respelling.py`.
    """

    becomes: str
    keys: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    fix: Callable[[Respelling], None] | None = None


_YARN = {
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "rope.scaling.extrapolation_factor": "rope.scaling.yarn_ext_factor",
}
_QWEN35 = Spelling(
    "",
    tensors={".ssm_dt": ".ssm_dt.bias"},
    marks=("vision.block_count", "image_token_id", "ssm.v_head_reordered", "rope.mrope_interleaved", ".ssm_dt"),
    fix=respelling.qwen35,
)
_NEMOTRON = Spelling(
    "nemotron_h_moe",
    tensors={".ffn_latent_in.": ".ffn_latent_down.", ".ffn_latent_out.": ".ffn_latent_up."},
    marks=(".ffn_latent_in.weight",),
    fix=respelling.nemotron,
)
_SECTIONS = {"rope.mrope_section": "rope.dimension_sections"}

SPELLINGS: Mapping[str, Spelling] = {
    "deepseekocr": Spelling("deepseek2-ocr", fix=respelling.deepseek_ocr),
    "gemma3": Spelling(
        "gemma3",
        keys={"rope.global.freq_base": "rope.freq_base", "rope.local.freq_base": "rope.freq_base_swa", **_YARN},
        marks=("mm.tokens_per_image", "vision.block_count", "rope.global.freq_base", "rope.local.freq_base"),
        fix=respelling.gemma3,
    ),
    "gemma3n": Spelling("gemma3n", marks=("tokenizer.ggml.add_unknown_token",), fix=respelling.gemma3n),
    "gemma4": Spelling(
        "gemma4",
        tensors={".ffn_gate_inp.per_expert_scale": ".ffn_down_exps.scale"},
        marks=("vision.block_count", "audio.block_count", "tokenizer.ggml.add_unknown_token"),
        fix=respelling.gemma4,
    ),
    "glm4moelite": Spelling("deepseek2", fix=respelling.latent_glm),
    "gptoss": Spelling(
        "gpt-oss",
        tensors={
            ".attn_out.": ".attn_output.",
            ".attn_sinks": ".attn_sinks.weight",
            ".ffn_norm.": ".post_attention_norm.",
        },
        fix=respelling.gpt_oss,
    ),
    "lfm2": Spelling(
        "lfm2", tensors={"output_norm.": "token_embd_norm."}, marks=("output_norm.weight",), fix=respelling.lfm2
    ),
    "llama4": Spelling("llama4", marks=("vision.block_count", "intermediate_size_moe"), fix=respelling.llama4),
    "mistral3": Spelling(
        "mistral3",
        keys={**_YARN, "rope.scaling_beta": "attention.temperature_scale"},
        marks=("vision.block_count", "rope.scaling.beta_fast", "rope.scaling_beta"),
        fix=respelling.mistral3,
    ),
    "nemotron_h_moe": _NEMOTRON,
    "nemotron_h_omni": dataclasses.replace(_NEMOTRON, marks=()),
    "olmo3": Spelling("olmo2", fix=respelling.olmo3),
    "qwen25vl": Spelling("qwen2vl", keys=_SECTIONS),
    "qwen3moe": Spelling("qwen3moe", marks=("norm_top_k_prob",), fix=respelling.experts_sum_to_one),
    "qwen3vlmoe": Spelling("qwen3vlmoe", marks=("norm_top_k_prob",), fix=respelling.experts_sum_to_one),
    "qwen35": dataclasses.replace(_QWEN35, becomes="qwen35"),
    "qwen35moe": dataclasses.replace(_QWEN35, becomes="qwen35moe"),
    "qwen3next": Spelling(
        "qwen3next", tensors={".ssm_dt": ".ssm_dt.bias"}, marks=(".ssm_dt",), fix=respelling.qwen3next
    ),
}
"""general.architecture as ollama writes it -> how ollama writes it."""


def respelled(header: "Header") -> "Header":
    """The header in llama.cpp's spelling, its other parts set aside; the same where there is nothing to do."""
    arch = header.metadata.get("general.architecture")
    if not isinstance(arch, str) or not arch:
        return header
    beside = {n: why for n in header.sources for prefix, why in PARTS.items() if n.startswith(prefix)}
    prefix = f"{arch}."
    keys = {key.removeprefix(prefix) for key in header.metadata if key.startswith(prefix)}
    of_parts = {key for key in keys if key.startswith(_PART_KEYS)}
    spelling = SPELLINGS.get(arch)
    if spelling and arch == spelling.becomes and not _marked(header, keys, spelling):
        spelling = None
    if not (beside or of_parts or spelling):
        return header
    left = of_parts | {key for key in _OF_PARTS if key in keys and (spelling is None or key not in spelling.keys)}
    metadata = {key: value for key, value in header.metadata.items() if key.removeprefix(prefix) not in left}
    sources = {name: source for name, source in header.sources.items() if name not in beside}
    notes: list[str] = []
    if spelling:
        metadata, sources, notes = _in_llama_cpps_words(arch, spelling, metadata, sources)
    sources |= {name: header.sources[name] for name in beside}
    return dataclasses.replace(header, metadata=metadata, sources=sources, beside=beside, notes=tuple(notes))


def _marked(header: "Header", keys: set[str], spelling: Spelling) -> bool:
    """Whether a file is ollama's, by what llama.cpp's converter never writes."""
    ends = tuple(mark for mark in spelling.marks if mark.startswith("."))
    return any(mark in keys or mark in header.metadata or mark in header.sources for mark in spelling.marks) or (
        bool(ends) and any(name.endswith(ends) for name in header.sources)
    )


def _in_llama_cpps_words(
    arch: str, spelling: Spelling, metadata: Mapping[str, Any], sources: "Mapping[str, Source]"
) -> "tuple[dict[str, Any], dict[str, Source], list[str]]":
    renamed: dict[str, Any] = {}
    for full, value in metadata.items():
        key = full.removeprefix(f"{arch}.") if full.startswith(f"{arch}.") else None
        if key is None or f"{arch}.{spelling.keys.get(key)}" in metadata:
            new = full if key is None or key not in spelling.keys else None  # llama.cpp's own key says it already
        else:
            new = f"{spelling.becomes}.{spelling.keys.get(key, key)}"
        if new is not None and not (value == 0 and _must_be_positive(new.removeprefix(f"{spelling.becomes}."))):
            renamed[new] = value
    renamed["general.architecture"] = spelling.becomes
    tensors = {}
    for name, source in sources.items():
        for theirs, ours in spelling.tensors.items():
            new = name.replace(theirs, ours)
            if ours not in name and new not in sources:
                name = new
        tensors[name] = dataclasses.replace(source, name=name)
    h = Respelling(spelling.becomes, renamed, tensors)
    if spelling.fix:
        spelling.fix(h)
    _ends(h.metadata)
    spelled = f", which is {spelling.becomes} to llama.cpp" if arch != spelling.becomes else ""
    return h.metadata, h.sources, [f"a file of ollama's converter: {arch}{spelled}", *h.notes]


def _must_be_positive(key: str) -> bool:
    """Whether a key says nothing with 0, which ollama writes for what the model's config.json does not say."""
    return any(kind in (SIZE, ROPE_BASE) for kind in KEYS.get(key, ()))


def _ends(metadata: dict[str, Any]) -> None:
    """Further tokens that end a text, which llama.cpp has two keys for."""
    ids = metadata.get("tokenizer.ggml.eos_token_ids")
    if not isinstance(ids, list | array):
        return
    others = [i for i in ids if i != metadata.get("tokenizer.ggml.eos_token_id")]
    for key, number in zip(("eot_token_id", "eom_token_id"), others, strict=False):
        metadata.setdefault(f"tokenizer.ggml.{key}", number)
