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

from gguf2st.keys import KEYS, ROPE_BASE, SIZE

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


LEFT_OUT = "ollama's converter left it out, and its runner takes that"


@dataclass(frozen=True)
class Spelling:
    """How ollama writes one architecture.

    Attributes:
        becomes: llama.cpp's name of it.
        keys: ollama's key -> llama.cpp's, both without the architecture; an existing key of llama.cpp's is kept.
        tensors: a part of ollama's tensor name -> llama.cpp's, which must not occur in it already.
        marks: keys, names of tensors and, with a dot before them, ends of such names that say that a file of an
            architecture with the same name is ollama's.
        fix: what else is to be done: changes the metadata in place, given the tensors.
    """

    becomes: str
    keys: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    fix: "Callable[[_Respelling], None] | None" = None


@dataclass
class _Respelling:
    """One header on its way: metadata by llama.cpp's keys, tensors by llama.cpp's names, and what is to be said."""

    arch: str
    metadata: dict[str, Any]
    sources: dict[str, "Source"]
    notes: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """Value of a key of the architecture, or None."""
        return self.metadata.get(f"{self.arch}.{key}")

    def set(self, key: str, value: Any) -> None:
        """Set a key of the architecture unless the file has it."""
        self.metadata.setdefault(f"{self.arch}.{key}", value)

    def drop(self, key: str) -> None:
        """Leave out a key of the architecture that says what llama.cpp takes for granted."""
        self.metadata.pop(f"{self.arch}.{key}", None)

    def assume(self, key: str, value: Any, why: str) -> None:
        """Set a key that the file lacks, and say so."""
        if self.get(key) is None:
            self.set(key, value)
            self.notes.append(f"{key} = {value!r} is assumed: {why}")

    def width(self, tensor: str, axis: int) -> int | None:
        """One dimension of a tensor, counted from the last; None when the file lacks it."""
        source = self.sources.get(tensor)
        return source.shape[axis] if source is not None and len(source.shape) >= -axis else None


def _yarn_names(h: _Respelling) -> None:
    if h.get("rope.scaling.factor") is not None:
        h.set("rope.scaling.type", "yarn")


def _gemma3(h: _Respelling) -> None:
    h.assume("attention.layer_norm_rms_epsilon", 1e-6, LEFT_OUT)
    h.assume("rope.freq_base", 1_000_000.0, LEFT_OUT)
    h.assume("rope.freq_base_swa", 10_000.0, LEFT_OUT)
    if (h.get("context_length") or 0) >= 131072 and h.get("rope.scaling.factor") is None:
        h.assume(
            "rope.scaling.factor", 8.0, "ollama's converter left it out; the published models of this length have it"
        )
        h.set("rope.scaling.type", "linear")
    _only_tokens_with_rows(h)


def _only_tokens_with_rows(h: _Respelling) -> None:
    """Tokens of images stand behind the vocabulary, without a row of the embedding: no text has them."""
    rows, tokens = h.width("token_embd.weight", -2), h.metadata.get("tokenizer.ggml.tokens")
    if rows is None or not isinstance(tokens, list) or len(tokens) <= rows:
        return
    h.notes.append(f"{len(tokens) - rows} tokens of images have no row of the embedding and are left out")
    for key in ("tokens", "scores", "token_type"):
        if (values := h.metadata.get(f"tokenizer.ggml.{key}")) is not None:
            h.metadata[f"tokenizer.ggml.{key}"] = values[:rows]


def _paired(h: _Respelling) -> None:
    """Experts as in ollama's library since August 2025: MXFP4 under the number 4, with its numbers in another order."""
    experts = {name: s for name, s in h.sources.items() if name.endswith("_exps.weight")}
    if not experts or any(s.qtype != "type 4" or s.shape[-1] % 32 for s in experts.values()):
        return
    for name, source in experts.items():
        h.sources[name] = dataclasses.replace(source, qtype="MXFP4", nbytes=source.n_elements // 32 * 17)
    for name in [name for name in h.sources if "_exps." in name]:
        new = name.replace("_exps.", "_exps.paired_")
        h.sources[new] = dataclasses.replace(h.sources.pop(name), name=new)


def _gpt_oss(h: _Respelling) -> None:
    _paired(h)
    if (ffn := h.width("blk.0.ffn_gate_exps.weight", -2)) is not None:
        h.set("expert_feed_forward_length", ffn)
    elif (both := h.width("blk.0.ffn_gate_up_exps.paired_weight", -2)) is not None:
        h.set("expert_feed_forward_length", both // 2)
    _yarn_names(h)
    h.metadata["tokenizer.ggml.pre"] = "gpt-4o"  # ollama says "default", and means this


def _mistral3(h: _Respelling) -> None:
    scaling = f"{h.arch}.rope.scaling."
    if h.get("rope.scaling.mscale") == h.get("rope.scaling.yarn_log_multiplier"):
        h.drop("rope.scaling.mscale")  # llama.cpp's one number stands for both; two different ones are refused
    if h.get("rope.scaling.type") in ("", "default") and not h.get("rope.scaling.factor"):
        h.metadata = {key: value for key, value in h.metadata.items() if not key.startswith(scaling)}
    if h.metadata.get("tokenizer.ggml.pre", "default") in ("", "default"):
        h.metadata["tokenizer.ggml.pre"] = "tekken"


def _one_number_of_kv_heads(h: _Respelling) -> None:
    """A number for each layer, 0 where a layer has no attention, as the one number that llama.cpp writes."""
    value = h.get("attention.head_count_kv")
    counts = set(value) - {0} if isinstance(value, list | array) else set()
    if len(counts) == 1:
        h.metadata[f"{h.arch}.attention.head_count_kv"] = counts.pop()


def _experts_sum_to_one(h: _Respelling) -> None:
    """Whether the weights of the chosen experts are normalised, which llama.cpp does with these models in any case."""
    if h.get("norm_top_k_prob") is True:
        h.drop("norm_top_k_prob")


def _qwen35(h: _Respelling) -> None:
    _one_number_of_kv_heads(h)
    _experts_sum_to_one(h)
    if h.get("ssm.v_head_reordered") is True:  # the order of llama.cpp's converter
        h.drop("ssm.v_head_reordered")
    else:  # maybe the order of the published model, which the map does not undo: it refuses the key
        h.set("ssm.v_head_reordered", False)


def _qwen3next(h: _Respelling) -> None:
    _one_number_of_kv_heads(h)
    _experts_sum_to_one(h)


def _llama4(h: _Respelling) -> None:
    dense, width = h.get("intermediate_size"), h.get("intermediate_size_moe")
    if dense is not None and width is not None and width == h.get("feed_forward_length"):
        h.metadata[f"{h.arch}.feed_forward_length"] = dense  # ollama writes the width of an expert there
        h.set("expert_feed_forward_length", width)
        h.drop("intermediate_size")
        h.drop("intermediate_size_moe")
    if h.get("use_qk_norm") is (h.get("expert_count") == 16):  # as llama.cpp tells it: Scout has 16, Maverick 128
        h.drop("use_qk_norm")


def _olmo3(h: _Respelling) -> None:
    kinds = h.get("attention.layer_types")
    if isinstance(kinds, list) and set(kinds) <= {"sliding_attention", "full_attention"}:
        h.set("attention.sliding_window_pattern", [kind == "sliding_attention" for kind in kinds])
        h.drop("attention.layer_types")


def _latent_glm(h: _Respelling) -> None:
    """GLM 4.7 Flash: ollama writes the widths of a head where llama.cpp writes those of the latent attention."""
    rank, rope, head = h.get("attention.kv_lora_rank"), h.get("rope.dimension_count"), h.get("attention.key_length")
    if not all(type(n) is int for n in (rank, rope, head)):
        return
    values = {"head_count_kv": 1, "key_length": rank + rope, "value_length": rank}
    values |= {"key_length_mla": head, "value_length_mla": h.get("attention.value_length") or head}
    h.metadata |= {f"{h.arch}.attention.{key}": value for key, value in values.items()}
    h.set("expert_group_count", 1)
    h.set("expert_group_used_count", 1)
    h.metadata["tokenizer.ggml.pre"] = "glm4"


def _deepseek_ocr(h: _Respelling) -> None:
    h.assume("attention.layer_norm_rms_epsilon", 1e-6, LEFT_OUT)
    width, shared = h.width("blk.1.ffn_down_exps.weight", -1), h.width("blk.1.ffn_down_shexp.weight", -1)
    if width:
        h.set("expert_feed_forward_length", width)
        if shared and shared % width == 0:
            h.set("expert_shared_count", shared // width)


def _lfm2(h: _Respelling) -> None:
    if (ffn := h.width("blk.0.ffn_gate.weight", -2)) is not None:
        h.metadata[f"{h.arch}.feed_forward_length"] = ffn  # some files name another number
    h.metadata["tokenizer.ggml.pre"] = "lfm2"


def _nemotron(h: _Respelling) -> None:
    latent = [s.shape[-2] for name, s in h.sources.items() if name.endswith(".ffn_latent_down.weight")]
    if latent:
        h.set("moe_latent_size", latent[0])


def _gemma4(h: _Respelling) -> None:
    if h.metadata.get("tokenizer.ggml.model") == "llama":  # with merges, which that kind has none of
        h.metadata["tokenizer.ggml.model"] = "gemma4"


def _gemma3n(h: _Respelling) -> None:
    if h.metadata.get("tokenizer.ggml.scores") is not None:
        h.metadata["tokenizer.ggml.model"] = "llama"


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
    fix=_qwen35,
)
_NEMOTRON = Spelling(
    "nemotron_h_moe",
    tensors={".ffn_latent_in.": ".ffn_latent_down.", ".ffn_latent_out.": ".ffn_latent_up."},
    marks=(".ffn_latent_in.weight",),
    fix=_nemotron,
)
_SECTIONS = {"rope.mrope_section": "rope.dimension_sections"}

SPELLINGS: Mapping[str, Spelling] = {
    "deepseekocr": Spelling("deepseek2-ocr", fix=_deepseek_ocr),
    "gemma3": Spelling(
        "gemma3",
        keys={"rope.global.freq_base": "rope.freq_base", "rope.local.freq_base": "rope.freq_base_swa", **_YARN},
        marks=("mm.tokens_per_image", "vision.block_count", "rope.global.freq_base", "rope.local.freq_base"),
        fix=_gemma3,
    ),
    "gemma3n": Spelling("gemma3n", marks=("tokenizer.ggml.add_unknown_token",), fix=_gemma3n),
    "gemma4": Spelling(
        "gemma4",
        tensors={".ffn_gate_inp.per_expert_scale": ".ffn_down_exps.scale"},
        marks=("vision.block_count", "audio.block_count", "tokenizer.ggml.add_unknown_token"),
        fix=_gemma4,
    ),
    "glm4moelite": Spelling("deepseek2", fix=_latent_glm),
    "gptoss": Spelling(
        "gpt-oss",
        tensors={
            ".attn_out.": ".attn_output.",
            ".attn_sinks": ".attn_sinks.weight",
            ".ffn_norm.": ".post_attention_norm.",
        },
        fix=_gpt_oss,
    ),
    "lfm2": Spelling("lfm2", tensors={"output_norm.": "token_embd_norm."}, marks=("output_norm.weight",), fix=_lfm2),
    "llama4": Spelling("llama4", marks=("vision.block_count", "intermediate_size_moe"), fix=_llama4),
    "mistral3": Spelling(
        "mistral3",
        keys={**_YARN, "rope.scaling_beta": "attention.temperature_scale"},
        marks=("vision.block_count", "rope.scaling.beta_fast", "rope.scaling_beta"),
        fix=_mistral3,
    ),
    "nemotron_h_moe": _NEMOTRON,
    "nemotron_h_omni": dataclasses.replace(_NEMOTRON, marks=()),
    "olmo3": Spelling("olmo2", fix=_olmo3),
    "qwen25vl": Spelling("qwen2vl", keys=_SECTIONS),
    "qwen3moe": Spelling("qwen3moe", marks=("norm_top_k_prob",), fix=_experts_sum_to_one),
    "qwen3vlmoe": Spelling("qwen3vlmoe", marks=("norm_top_k_prob",), fix=_experts_sum_to_one),
    "qwen35": dataclasses.replace(_QWEN35, becomes="qwen35"),
    "qwen35moe": dataclasses.replace(_QWEN35, becomes="qwen35moe"),
    "qwen3next": Spelling("qwen3next", tensors={".ssm_dt": ".ssm_dt.bias"}, marks=(".ssm_dt",), fix=_qwen3next),
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
    h = _Respelling(spelling.becomes, renamed, tensors)
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
