"""What a case of the round trip is, and the pieces that tables of cases are made of."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

CLASSIFIER = "AutoModelForSequenceClassification"


@dataclass(frozen=True)
class Case:
    """One tiny checkpoint.

    Attributes:
        config: transformers configuration class; the class that `auto` gives for it is the model.
        options: constructor arguments on top of `BASE` (a key of BASE is overridden, None included).
        tokenizer: "bpe" (byte-level, tokenizer.json), "glm" (the same with GLM's special tokens), "spm" (sentencepiece,
            tokenizer.model), "gemma4" (BPE on text), "wpm" (WordPiece) or "unigram" (sentencepiece.bpe.model).
        dtype: what the original checkpoint is stored in.
        flags: layout switches of llama.cpp's converter (`fuse_qkv`, `fuse_gate_up_exps`, `no_mtp`), `gpt2_vocab`
            for a class that insists on the tokenizer files of its published checkpoints, and `no_mask_token` for one
            that writes the id which the mask has in the vocabulary of its published checkpoints.
        hparams: keys that the converter finds in config.json instead of transformers' spelling of them, where it
            expects the one of the published checkpoints; None removes a key.
        published: all of config.json, where transformers would write the same in other words than the published one.
        remade: from transformers' tensors to those of the checkpoint, where it writes names that it does not read, or
            where published weights are rounded.
        spelled: from transformers' tensors to the published checkpoint's, where the converter knows no others. It reads
            the result; what comes back is compared with transformers' own.
        files: JSON files of the checkpoint beside its own, by name, such as those of sentence-transformers.
        auto: transformers' AutoModel class.
        arguments: of the model's constructor, beside its configuration.
        weights: names and shapes of a checkpoint that no class of transformers writes. Then `config` is empty,
            `options` is all of its config.json, and weights and configuration are compared, but no logits.
        becomes: configuration class that the GGUF still tells; empty when it is `config`.
        lost: architecture keys that the GGUF does not hold, each with the reason.
        differs: configuration key -> (value that must be found, reason), where ours is not the original's on purpose.
        keeps: pattern of tensor names -> what the converter's float32 arithmetic leaves of a tensor.
        goes_on: from transformers' outputs to llama.cpp's, where that goes further with a classifier's.
        tolerance: greatest difference of llama.cpp's logits; 1e-5 is float32 in another order. None: llama.cpp cannot
            run the case, for the reason `unrunnable`.
    """

    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Literal["bpe", "glm", "spm", "gemma4", "wpm", "unigram"] = "bpe"
    dtype: Literal["float32", "bfloat16"] = "float32"
    flags: tuple[str, ...] = ()
    hparams: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    remade: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    spelled: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    files: Mapping[str, Any] = field(default_factory=dict)
    auto: str = "AutoModelForCausalLM"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    becomes: str = ""
    lost: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    keeps: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    goes_on: Callable[[Tensor], Tensor] | None = None
    tolerance: float | None = 1e-5
    unrunnable: str = ""

    def written(self) -> Mapping[str, Any]:
        """What the checkpoint and the GGUF depend on."""
        names = ("config", "options", "tokenizer", "dtype", "flags", "hparams", "auto", "arguments", "weights")
        more: dict[str, Any] = {"published": self.published} if self.published else {}
        for key in ("remade", "spelled"):
            if made := getattr(self, key):  # with all that it may call
                more |= {key: [made.__name__, Path(inspect.getfile(made)).read_text()]}
        more |= {"files": self.files} if self.files else {}
        return {name: getattr(self, name) for name in names} | more


def respelled(tensors: dict[str, Tensor], parts: Mapping[str, str]) -> dict[str, Tensor]:
    """The same tensors, with other parts of names in place of some, one after the other."""
    for old, new in parts.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    return tensors


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


def pooled(mode: str, width: int = 64) -> Mapping[str, Any]:
    """Files of an embedding model, by sentence-transformers; `mode` is mean_tokens, cls_token or lasttoken."""
    names = ("mean_tokens", "cls_token", "lasttoken", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    flags = {f"pooling_mode_{name}": name == mode for name in names}
    return {
        "modules.json": [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (path, kind) in enumerate(kinds)
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": width, **flags, "include_prompt": True},
    }


def with_bf16(cases: Mapping[str, Case], *names: str) -> dict[str, Case]:
    """The cases, and for each of `names` one stored as checkpoints are published: nothing may be lost then."""
    return {**cases, **{f"{name}_bf16": replace(cases[name], dtype="bfloat16") for name in names}}
