"""What a case of the round trip is, and the pieces that tables of cases are made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One tiny checkpoint.

    Attributes:
        config: transformers configuration class; the class that `auto` gives for it is the model.
        options: constructor arguments on top of `BASE` (a key of BASE is overridden, None included).
        tokenizer: "bpe" (byte-level, tokenizer.json), "glm" (the same with GLM's special tokens), "spm" (sentencepiece,
            tokenizer.model), "gemma4" (BPE on text), "wpm" (WordPiece) or "unigram" (sentencepiece.bpe.model).
        dtype: what the original checkpoint is stored in.
        flags: layout switches of llama.cpp's converter (`fuse_qkv`, `fuse_gate_up_exps`, `no_mtp`), and `gpt2_vocab`
            for a class that insists on the tokenizer files of its published checkpoints.
        hparams: keys that the converter finds in config.json instead of transformers' spelling of them, where it
            expects the one of the published checkpoints; None removes a key.
        auto: transformers' AutoModel class.
        arguments: of the model's constructor, beside its configuration.
        weights: names and shapes of a checkpoint that no class of transformers writes. Then `config` is empty,
            `options` is all of its config.json, and weights and configuration are compared, but no logits.
        becomes: configuration class that the GGUF still tells; empty when it is `config`.
        lost: architecture keys that the GGUF does not hold, each with the reason.
        differs: configuration key -> (value that must be found, reason), where ours is not the original's on purpose.
        keeps: pattern of tensor names -> what the converter's float32 arithmetic leaves of a tensor.
        tolerance: greatest difference of llama.cpp's logits; 1e-5 is float32 in another order. None: llama.cpp cannot
            run the case, for the reason `unrunnable`.
    """

    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Literal["bpe", "glm", "spm", "gemma4", "wpm", "unigram"] = "bpe"
    dtype: Literal["float32", "bfloat16"] = "float32"
    flags: tuple[str, ...] = ()
    hparams: Mapping[str, Any] = field(default_factory=dict)
    auto: str = "AutoModelForCausalLM"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    becomes: str = ""
    lost: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    keeps: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    tolerance: float | None = 1e-5
    unrunnable: str = ""

    def written(self) -> Mapping[str, Any]:
        """What the checkpoint and the GGUF depend on."""
        names = ("config", "options", "tokenizer", "dtype", "flags", "hparams", "auto", "arguments", "weights")
        return {name: getattr(self, name) for name in names}


BASE: Mapping[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
MOE: Mapping[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
TIED: Mapping[str, Any] = {"tie_word_embeddings": True}
BIASES: Mapping[str, Any] = {"attention_bias": True, "mlp_bias": True}


def rope(kind: str, factor: float, theta: float = 10000.0, **more: float) -> Mapping[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, "factor": factor, **more}}


def llama3(factor: float, original: int, theta: float = 10000.0) -> Mapping[str, Any]:
    """Scaling of Llama 3.1 and 3.2; `original` is such that each of its three bands has some frequencies."""
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original}
    return rope("llama3", factor, theta, **bands)


def yarn(factor: float, original: int, theta: float = 1e6, **more: float) -> Mapping[str, Any]:
    return rope("yarn", factor, theta, original_max_position_embeddings=original, **more)


def with_bf16(cases: Mapping[str, Case], *names: str) -> dict[str, Case]:
    """The cases, and for each of `names` one stored as checkpoints are published: nothing may be lost then."""
    return {**cases, **{f"{name}_bf16": replace(cases[name], dtype="bfloat16") for name in names}}
