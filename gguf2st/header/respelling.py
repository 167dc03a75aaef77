"""What ollama's converter says otherwise than llama.cpp's by more than a name: one function for each architecture.

Source: what ollama's `convert/` writes, and what its `llama/compat` changes before it hands published files on (0.30).
"""

import dataclasses
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gguf2st.header.keys import brief

if TYPE_CHECKING:
    from gguf2st.header import Source

LEFT_OUT = "ollama's converter left it out, and its runner takes that"
ONE_TOKENIZER = "the published models of this architecture all have it"


@dataclass
class Respelling:
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

    def read_as(self, key: str, value: str, why: str) -> None:
        """Replace what the file says of its tokenizer, and say so."""
        found = self.metadata.get(f"tokenizer.ggml.{key}")
        if found != value:
            self.metadata[f"tokenizer.ggml.{key}"] = value
            said = "left out" if found is None else brief(found)
            self.notes.append(f"tokenizer.ggml.{key} is {said} in the file, and read as {value!r}: {why}")

    def width(self, tensor: str, axis: int) -> int | None:
        """One dimension of a tensor, counted from the last; None when the file lacks it."""
        source = self.sources.get(tensor)
        return source.shape[axis] if source is not None and len(source.shape) >= -axis else None


def _yarn_names(h: Respelling) -> None:
    if h.get("rope.scaling.factor") is not None:
        h.set("rope.scaling.type", "yarn")


def gemma3(h: Respelling) -> None:
    """Gemma 3: numbers that the runner takes for granted, and tokens of images behind the vocabulary."""
    h.assume("attention.layer_norm_rms_epsilon", 1e-6, LEFT_OUT)
    h.assume("rope.freq_base", 1_000_000.0, LEFT_OUT)
    h.assume("rope.freq_base_swa", 10_000.0, LEFT_OUT)
    if (h.get("context_length") or 0) >= 131072 and h.get("rope.scaling.factor") is None:
        h.assume(
            "rope.scaling.factor", 8.0, "ollama's converter left it out; the published models of this length have it"
        )
        h.set("rope.scaling.type", "linear")
    _only_tokens_with_rows(h)


def _only_tokens_with_rows(h: Respelling) -> None:
    """Tokens of images stand behind the vocabulary, without a row of the embedding: no text has them."""
    rows, tokens = h.width("token_embd.weight", -2), h.metadata.get("tokenizer.ggml.tokens")
    if rows is None or not isinstance(tokens, list) or len(tokens) <= rows:
        return
    h.notes.append(f"{len(tokens) - rows} tokens of images have no row of the embedding and are left out")
    for key in ("tokens", "scores", "token_type"):
        if (values := h.metadata.get(f"tokenizer.ggml.{key}")) is not None:
            h.metadata[f"tokenizer.ggml.{key}"] = values[:rows]


def _neighbours(h: Respelling) -> None:
    """Experts as in ollama's library since August 2025: MXFP4 under the number 4, neighbouring numbers in a byte.

    Rows of gate and up, where they are one tensor, take turns, which they never do in llama.cpp's files.
    """
    experts = {name: s for name, s in h.sources.items() if name.endswith("_exps.weight")}
    if not experts or any(s.qtype != "type 4" or s.shape[-1] % 32 for s in experts.values()):
        return
    for name, source in experts.items():
        nbytes = source.n_elements // 32 * 17
        h.sources[name] = dataclasses.replace(source, qtype="MXFP4", nbytes=nbytes, neighbours=True)
    for name in [name for name in h.sources if ".ffn_gate_up_exps." in name]:
        new = name.replace("_exps.", "_exps.paired_")
        h.sources[new] = dataclasses.replace(h.sources.pop(name), name=new)


def gpt_oss(h: Respelling) -> None:
    """gpt-oss: the older layout of experts, whose width no key says."""
    _neighbours(h)
    if (ffn := h.width("blk.0.ffn_gate_exps.weight", -2)) is not None:
        h.set("expert_feed_forward_length", ffn)
    elif (both := h.width("blk.0.ffn_gate_up_exps.paired_weight", -2)) is not None:
        h.set("expert_feed_forward_length", both // 2)
    _yarn_names(h)
    h.read_as("pre", "gpt-4o", ONE_TOKENIZER)


def mistral3(h: Respelling) -> None:
    """Mistral 3: scaling by yarn, or none, in words of its own."""
    scaling = f"{h.arch}.rope.scaling."
    if h.get("rope.scaling.mscale") == h.get("rope.scaling.yarn_log_multiplier"):
        h.drop("rope.scaling.mscale")  # llama.cpp's one number stands for both; two different ones are refused
    if h.get("rope.scaling.type") in ("", "default") and not h.get("rope.scaling.factor"):
        h.metadata = {key: value for key, value in h.metadata.items() if not key.startswith(scaling)}
    if h.metadata.get("tokenizer.ggml.pre", "default") in ("", "default"):
        h.read_as("pre", "tekken", ONE_TOKENIZER)


def _one_number_of_kv_heads(h: Respelling) -> None:
    """A number for each layer, 0 where a layer has no attention, as the one number that llama.cpp writes."""
    value = h.get("attention.head_count_kv")
    counts = set(value) - {0} if isinstance(value, list | array) else set()
    if len(counts) == 1:
        h.metadata[f"{h.arch}.attention.head_count_kv"] = counts.pop()


def experts_sum_to_one(h: Respelling) -> None:
    """Whether the weights of the chosen experts are normalised, which llama.cpp does with these models in any case."""
    if h.get("norm_top_k_prob") is True:
        h.drop("norm_top_k_prob")


def qwen35(h: Respelling) -> None:
    """Qwen 3.5: llama.cpp's order of heads, or another, which is refused."""
    _one_number_of_kv_heads(h)
    experts_sum_to_one(h)
    if h.get("ssm.v_head_reordered") is True:  # the order of llama.cpp's converter
        h.drop("ssm.v_head_reordered")
    else:  # maybe the order of the published model, which the map does not undo: it refuses the key
        h.set("ssm.v_head_reordered", False)


def qwen3next(h: Respelling) -> None:
    """Qwen 3 Next: keys for what llama.cpp takes for granted."""
    _one_number_of_kv_heads(h)
    experts_sum_to_one(h)


def llama4(h: Respelling) -> None:
    """Llama 4: the widths of dense layers and experts change places."""
    dense, width = h.get("intermediate_size"), h.get("intermediate_size_moe")
    if dense is not None and width is not None and width == h.get("feed_forward_length"):
        h.metadata[f"{h.arch}.feed_forward_length"] = dense  # ollama writes the width of an expert there
        h.set("expert_feed_forward_length", width)
        h.drop("intermediate_size")
        h.drop("intermediate_size_moe")
    if h.get("use_qk_norm") is (h.get("expert_count") == 16):  # as llama.cpp tells it: Scout has 16, Maverick 128
        h.drop("use_qk_norm")


def olmo3(h: Respelling) -> None:
    """Olmo 3: which layers have a window."""
    kinds = h.get("attention.layer_types")
    if isinstance(kinds, list) and set(kinds) <= {"sliding_attention", "full_attention"}:
        h.set("attention.sliding_window_pattern", [kind == "sliding_attention" for kind in kinds])
        h.drop("attention.layer_types")


def latent_glm(h: Respelling) -> None:
    """GLM 4.7 Flash: ollama writes the widths of a head where llama.cpp writes those of the latent attention."""
    rank, rope, head = h.get("attention.kv_lora_rank"), h.get("rope.dimension_count"), h.get("attention.key_length")
    if not all(type(n) is int for n in (rank, rope, head)):
        return
    values = {"head_count_kv": 1, "key_length": rank + rope, "value_length": rank}
    values |= {"key_length_mla": head, "value_length_mla": h.get("attention.value_length") or head}
    h.metadata |= {f"{h.arch}.attention.{key}": value for key, value in values.items()}
    h.set("expert_group_count", 1)
    h.set("expert_group_used_count", 1)
    h.read_as("pre", "glm4", ONE_TOKENIZER)


def deepseek_ocr(h: Respelling) -> None:
    """DeepSeek OCR: what the runner knows, and what tensors tell."""
    h.assume("attention.layer_norm_rms_epsilon", 1e-6, LEFT_OUT)
    width, shared = h.width("blk.1.ffn_down_exps.weight", -1), h.width("blk.1.ffn_down_shexp.weight", -1)
    if width:
        h.set("expert_feed_forward_length", width)
        if shared and shared % width == 0:
            h.set("expert_shared_count", shared // width)


def lfm2(h: Respelling) -> None:
    """LFM2: its width is that of its tensors."""
    if (ffn := h.width("blk.0.ffn_gate.weight", -2)) is not None:
        h.metadata[f"{h.arch}.feed_forward_length"] = ffn  # some files name another number
    h.read_as("pre", "lfm2", ONE_TOKENIZER)


def nemotron(h: Respelling) -> None:
    """Nemotron: the width of latent experts, which tensors tell."""
    latent = [s.shape[-2] for name, s in h.sources.items() if name.endswith(".ffn_latent_down.weight")]
    if latent:
        h.set("moe_latent_size", latent[0])


def gemma4(h: Respelling) -> None:
    """Gemma 4: its kind of tokenizer."""
    if h.metadata.get("tokenizer.ggml.model") == "llama":
        h.read_as("model", "gemma4", "it has merges")


def gemma3n(h: Respelling) -> None:
    """Gemma 3n: its kind of tokenizer."""
    if h.metadata.get("tokenizer.ggml.scores") is not None:
        h.read_as("model", "llama", "it has scores")
