"""Rotary embeddings: theta, partial rotary, and linear, yarn or llama3 scaling."""

from collections.abc import Mapping
from typing import Any

from gguf2st.config.functions import FileScope, function, given
from gguf2st.config.rope_fit import fit_llama3
from gguf2st.errors import MapError

YARN = {"extrapolation_factor": 1.0, "attention_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
"""What llama.cpp runs yarn with, whatever the file says (llama-hparams.h; llama-context.cpp for the first). Two of its
architectures read some of these keys (grok.cpp, mistral3.cpp); those who follow config.json read them in all."""


@function("rope.")
def rope(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """Rotary embedding over whole heads: theta, and linear, yarn or llama3 scaling.

    Raises:
        MapError: partial rotary embedding, or scaling that has no known form.
    """
    theta = theta_of(scope, "rope.freq_base")
    require_whole_heads(scope, head_dim)
    scaling = scaling_of(scope) or llama3_scaling(scope, theta, head_dim)
    out = {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta} | scaling}
    return out | ({"rope_scaling": scaling} if scaling else {})


def by_kind(theta: float, local: float, scaling: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` where only layers that see everything have `theta` and the scaling, and the others `local`."""
    return {
        "full_attention": {"rope_type": "default", "rope_theta": theta, **scaling},
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def require_whole_heads(scope: FileScope, head_dim: int) -> None:
    """Raise MapError when the rotary embedding covers another number of dimensions than a head has."""
    dims = given(scope, "rope.dimension_count", head_dim)
    if dims != head_dim:
        raise MapError(f"rope.dimension_count is {dims}, but a head has {head_dim} dimensions")


@function("rope.dimension_sections")
def has_sections(scope: FileScope) -> bool:
    """Whether the rotary dimensions are shared out among the axes of an image; a text has one position on all."""
    return scope.get("rope.dimension_sections") is not None


@function("rope.dimension_sections")
def text_sections(scope: FileScope) -> bool:
    """Whether the axes of an image that rotary dimensions follow are the first three, on which a text has its position.

    llama.cpp gives a text position 0 on the fourth (llama-batch.cpp), which the classes of these models do not have.
    """
    return not any(given(scope, "rope.dimension_sections", [])[3:])


def theta_of(scope: FileScope, key: str) -> float:
    """Rope base; llama.cpp's default where the key is absent (hparams.rope_freq_base_train = 10000)."""
    theta = scope.get(key)
    if theta is None:
        scope.note(f"{key} = 10000 is assumed: the file does not say, and llama.cpp takes that")
    return 10000.0 if theta is None else float(theta)


def scaling_of(scope: FileScope) -> dict[str, Any]:
    """Rope scaling from metadata, in Hugging Face's words; {} when there is none.

    Files from before `rope.scaling.type` hold only a factor, which llama.cpp takes as linear. Of yarn without a context
    length of its own, llama.cpp takes the model's (load_hparams in llama-model.cpp).
    """
    factor = given(scope, "rope.scaling.factor", given(scope, "rope.scale_linear", 0.0))
    kind = given(scope, "rope.scaling.type", "linear" if factor else "none")
    original = scope.get("rope.scaling.original_context_length")
    scope.get("rope.scaling.finetuned")  # says how the model was trained; changes no computation
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise MapError(f"rope.scaling.type is {kind!r}; this architecture's map knows none, linear and yarn")
    if original is None:
        original = scope.get("context_length")
    if not factor or not original:
        raise MapError("rope.scaling.type is 'yarn' without rope.scaling.factor or any context length")
    out = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    for key, ours in (
        ("yarn_ext_factor", "extrapolation_factor"),
        ("yarn_attn_factor", "attention_factor"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        if (value := scope.get(f"rope.scaling.{key}")) is not None:
            out[ours] = value
    if unread := {key: out[key] for key, usual in YARN.items() if out.get(key, usual) != usual}:
        found, usual = (", ".join(f"{key} = {x[key]:g}" for key in unread) for x in (unread, YARN))
        scope.note(f"{found} of yarn: the file says so; but for Grok and Mistral 3, llama.cpp runs it with {usual}")
    return out


def llama3_scaling(scope: FileScope, theta: float, dims: int) -> dict[str, Any]:
    """llama3 scaling, which a GGUF holds only as `rope_freqs.weight`; {} without that tensor, or when it is all ones.

    Raises:
        MapError: the tensor follows no such rule.
    """
    divisors = scope.tensor("rope_freqs.weight", "became rope parameters of type llama3")
    if divisors is None or all(d == 1.0 for d in divisors):
        return {}
    if len(divisors) != dims // 2:
        raise MapError(f"rope_freqs.weight has {len(divisors)} values for {dims} rotary dimensions")
    found = fit_llama3(divisors, theta, dims, given(scope, "context_length", 0))
    if found is None:
        raise MapError(
            "rope_freqs.weight follows no known scaling rule (llama3 with low_freq_factor 1 was tried)",
            hint="such a model cannot be expressed in config.json; please report it with the tensor's values",
        )
    if not found.unique:
        scope.note("rope_freqs.weight fits several llama3 settings; the ones written give the same frequencies")
    return {
        "rope_type": "llama3",
        "factor": found.factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": found.high,
        "original_max_position_embeddings": found.original,
    }
