"""Rotary embeddings over a part of each head, and longrope, whose divisors a GGUF holds as tensors."""

import math
from typing import Any

from gguf2st.config.functions import FileScope, assumed, function, given, nonzero
from gguf2st.config.rope import scaling_of, theta_of
from gguf2st.errors import MapError
from gguf2st.header import shortest_float32

PHIMOE_MSCALE = 1.243163121016122
"""short_mscale and long_mscale of microsoft/Phi-3.5-MoE-instruct, the only published model of its class (config.json
there; transformers' tests/models/phimoe and mlx-lm's tests have the same figure)."""


@function("rope.")
def partial_rope(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """Rotary embedding over the first `rope.dimension_count` dimensions of a head, as a share of it.

    transformers 4.x and vLLM read the share as partial_rotary_factor, transformers 5 reads it in rope_parameters.
    """
    theta, share, scaling = theta_of(scope, "rope.freq_base"), rotary_share(scope, head_dim), scaling_of(scope)
    parameters = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share} | scaling
    out = {"rope_theta": theta, "partial_rotary_factor": share, "rope_parameters": parameters}
    return out | ({"rope_scaling": scaling} if scaling else {})


def rotary_share(scope: FileScope, head_dim: int) -> float:
    """The share of a head that rotates, such that `int(head_dim * share)` is rope.dimension_count again.

    Raises:
        MapError: more dimensions than a head has, or an odd number of them.
    """
    dims = given(scope, "rope.dimension_count", head_dim)
    if dims > head_dim or dims % 2:
        raise MapError(f"rope.dimension_count is {dims}; an even number up to {head_dim}, a head's width, was expected")
    share = dims / head_dim
    return share if int(head_dim * share) == dims else math.nextafter(share, 1.0)


@function("rope.")
def longrope(scope: FileScope, head_dim: int, context_length: int) -> dict[str, Any]:
    """Rotary embedding over whole heads with the divisors of `rope_factors_long` and `rope_factors_short`, if any."""
    return _longrope(scope, head_dim, context_length, {})


@function("rope.")
def phi3_rope(scope: FileScope, head_dim: int, context_length: int) -> dict[str, Any]:
    """`longrope` over a part of each head."""
    share = rotary_share(scope, head_dim)
    out = _longrope(scope, int(head_dim * share), context_length, {"partial_rotary_factor": share})
    return out | {"partial_rotary_factor": share}


@function("rope.")
def phimoe_rope(scope: FileScope, head_dim: int, context_length: int) -> dict[str, Any]:
    """`longrope` with factors on the attention that no GGUF holds: those of the published model are taken."""
    out = longrope(scope, head_dim, context_length)
    if out["rope_parameters"]["rope_type"] == "longrope":
        scope.note(f"short_mscale = long_mscale = {PHIMOE_MSCALE} is assumed: the published model's, not in the file")
        scales = {"short_mscale": PHIMOE_MSCALE, "long_mscale": PHIMOE_MSCALE}
        out["rope_parameters"] = out["rope_parameters"] | scales
        out["rope_scaling"] = out["rope_scaling"] | scales
    return out


def _longrope(scope: FileScope, dims: int, context_length: int, partial: dict[str, float]) -> dict[str, Any]:
    """Rope keys for `dims` rotary dimensions. transformers 4.x refuses a Phi 3 with more than three keys in
    rope_scaling, and reads the original context length beside it.

    Raises:
        MapError: one set of divisors without the other, a wrong number of them, other scaling, or a factor on the
            attention that does not follow from the two context lengths.
    """
    theta = theta_of(scope, "rope.freq_base")
    if not partial and (found := given(scope, "rope.dimension_count", dims)) != dims:
        raise MapError(f"rope.dimension_count is {found}, but {dims} dimensions rotate")
    original = given(scope, "rope.scaling.original_context_length", context_length)
    attention = scope.get("rope.scaling.attn_factor")
    kind = given(scope, "rope.scaling.type", "none")
    scope.get("rope.scaling.finetuned")  # says how the model was trained; changes no computation
    sets = {
        name: scope.tensor(f"rope_factors_{name}.weight", "became rope parameters of type longrope")
        for name in ("short", "long")
    }
    if all(values is None for values in sets.values()):
        if kind != "none":
            raise MapError(
                f"rope.scaling.type is {kind!r}, but the file has no rope_factors_long and rope_factors_short"
            )
        return {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta, **partial}}
    if kind not in ("none", "longrope"):
        raise MapError(f"rope.scaling.type is {kind!r}, but the file has the tensors of longrope")
    factors: dict[str, Any] = {}
    for name, values in sets.items():
        if values is None or len(values) != dims // 2:
            n = "missing" if values is None else f"{len(values)} values"
            raise MapError(f"rope_factors_{name}.weight is {n}; {dims // 2} values, for {dims} rotary dimensions, fit")
        factors[f"{name}_factor"] = [shortest_float32(x) for x in values]
    scale = context_length / original
    expected = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    if attention is not None and abs(attention - expected) > 1e-5:
        raise MapError(
            f"rope.scaling.attn_factor is {attention}; context lengths {original} and {context_length} give {expected}"
        )
    if attention is None and expected != 1.0:
        scope.note(
            f"rope.scaling.attn_factor is not in the file: transformers and vLLM take {expected:.6g}, which follows"
            f" from context lengths of {original} and {context_length} tokens; llama.cpp takes 1"
        )
    both = {"original_max_position_embeddings": original}
    return {
        "rope_theta": theta,
        "rope_scaling": {"type": "longrope", **factors} | ({} if partial else both),
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": theta,
            **partial,
            **factors,
            **both,
        },
    }


@function("embedding_scale", "logit_scale", "residual_scale")
def minicpm_scales(scope: FileScope, layers: int, hidden: int, head_dim: int) -> dict[str, float]:
    """MiniCPM's factors as Granite's multipliers.

    Files from before the keys: those of MiniCPM 1B and 2B (scale_emb 12, scale_depth 1.4, dim_model_base 256), which
    llama.cpp has built in for them (models/minicpm.cpp), the last one upside down. 0 in the file is no factor there.

    Raises:
        MapError: logits are divided by 0.
    """
    why = "llama.cpp takes it for a file from before the key"
    built_in = {
        "embedding_multiplier": ("embedding_scale", 12.0, why),
        "residual_multiplier": ("residual_scale", 1.4 / math.sqrt(layers), why),
        "logits_scaling": ("logit_scale", hidden / 256, "MiniCPM 1B and 2B have it; llama.cpp takes its reciprocal"),
    }
    if scope.get("logit_scale") == 0:
        raise MapError("logit_scale is 0, and llama.cpp divides the logits by it")
    found = {
        ours: assumed(scope, value, ours, reason) if scope.get(key) is None else nonzero(scope, key, 1.0)
        for ours, (key, value, reason) in built_in.items()
    }
    return found | {"attention_multiplier": 1 / math.sqrt(head_dim)}
