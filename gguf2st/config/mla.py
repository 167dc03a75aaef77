"""DeepSeek and its kin: rope under multi-head latent attention, and the groups that experts are chosen from."""

from typing import Any

from gguf2st.config.functions import FileScope, function, given, nonzero
from gguf2st.config.rope import rope
from gguf2st.errors import MapError

PUBLISHED_GROUPS = {(60, 160): (8, 3), (61, 256): (8, 4)}
"""Layers and experts -> (n_group, topk_group) of DeepSeek-V2 and V2.5 (config.json of deepseek-ai/DeepSeek-V2: 8 and 3,
group_limited_greedy), and of V3 and R1 (transformers' DeepseekV3Config, whose defaults are theirs: 8 and 4)."""

KIMI_K2 = (61, 384)
"""Layers and experts of Kimi K2, whose yarn has beta_fast 1 and beta_slow 1; Kimi K2.5 and 2.6 have 32 and 1, as usual,
and are told by their norms' epsilon."""
KIMI_K2_5_EPS = 5e-6


@function("rope.")
def mla_rope(scope: FileScope, dims: int) -> dict[str, Any]:
    """Rotary embedding over the `dims` rotary dimensions of a latent-attention head.

    Under yarn, DeepSeek scales the attention itself by mscale_all_dim. llama.cpp's converter writes a tenth of that
    (conversion/deepseek.py) and takes mscale to be equal to it, as it is in every published model.
    """
    out = rope(scope, dims)
    tenth = given(scope, "rope.scaling.yarn_log_multiplier", 0.0)
    if out["rope_parameters"]["rope_type"] != "yarn":
        return out
    if not tenth:
        scope.note(
            "yarn without mscale_all_dim, as the file has no rope.scaling.yarn_log_multiplier: transformers and vLLM"
            " scale what rotates, as DeepSeek's own code does without it; llama.cpp scales the whole of each score"
        )
    else:
        mscale = float(f"{10 * tenth:.7g}")  # float32 holds no more digits
        both = {"mscale": mscale, "mscale_all_dim": mscale}
        out["rope_parameters"] = out["rope_parameters"] | both
        out["rope_scaling"] = out["rope_scaling"] | both
    return out


@function("rope.")
def deepseek_rope(scope: FileScope, dims: int, layers: int, experts: int, eps: float) -> dict[str, Any]:
    """`mla_rope`; where the file of a Kimi K2 has no bounds of yarn, those of its config.json, which are not usual.

    Converters before late 2025 did not write them, and llama.cpp runs such files with 32 and 1.
    """
    out = mla_rope(scope, dims)
    parameters = out["rope_parameters"]
    if (layers, experts) != KIMI_K2 or eps >= KIMI_K2_5_EPS or "beta_fast" in parameters:
        return out
    scope.note("beta_fast = 1, beta_slow = 1 of yarn are assumed: the file does not say; Kimi K2 has these")
    bounds = {"beta_fast": 1.0, "beta_slow": 1.0}
    return out | {key: out[key] | bounds for key in ("rope_parameters", "rope_scaling") if out.get(key)}


@function("expert_group_count", "expert_group_used_count")
def expert_groups(scope: FileScope) -> dict[str, int]:
    """How many groups the experts form, and from how many of them a token may choose: one where the file has neither.

    Converters before October 2025 did not write it, and llama.cpp runs such files without groups.
    """
    return _groups(scope, (1, 1), "llama.cpp runs it so")


@function("expert_group_count", "expert_group_used_count")
def deepseek_groups(scope: FileScope, layers: int, experts: int) -> dict[str, int]:
    """`expert_groups`; where the file has none, those of the published DeepSeek of as many layers and experts."""
    if (layers, experts) in PUBLISHED_GROUPS:
        why = f"the published DeepSeek of {layers} layers and {experts} experts has these"
        return _groups(scope, PUBLISHED_GROUPS[layers, experts], why)
    return expert_groups(scope)


@function("expert_group_count", "expert_group_used_count")
def deepseek_v2_groups(scope: FileScope, layers: int, experts: int) -> dict[str, Any]:
    """`deepseek_groups` and topk_method, which is greedy where there is one group only."""
    out = deepseek_groups(scope, layers, experts)
    return out | {"topk_method": "group_limited_greedy" if out["n_group"] > 1 else "greedy"}


def group_counts(scope: FileScope) -> tuple[int, int]:
    """How many groups the experts form and how many of them a token may choose from: (1, 1) for 0 or 1 group.

    llama.cpp (build_moe_ffn in llama-graph.cpp) does not look at the second number then.

    Raises:
        MapError: groups of which a token may choose none, or more than there are.
    """
    groups, used = nonzero(scope, "expert_group_count", 1), nonzero(scope, "expert_group_used_count", 0)
    if groups == 1:
        return 1, 1
    if not 1 <= used <= groups:
        raise MapError(f"expert_group_used_count is {used}; a number from 1 to {groups}, the groups, was expected")
    return groups, used


def _groups(scope: FileScope, otherwise: tuple[int, int], why: str) -> dict[str, int]:
    if scope.get("expert_group_count") is not None:
        groups, used = group_counts(scope)
    else:
        scope.get("expert_group_used_count")
        groups, used = otherwise
        scope.note(f"n_group = {groups}, topk_group = {used} are assumed: the file does not say; {why}")
    return {"n_group": groups, "topk_group": used}


@function()
def mlp_layer_types(scope: FileScope, dense: int, layers: int) -> dict[str, list[str]]:
    """Which layers have experts: all after the first `dense` ones."""
    return {"mlp_layer_types": ["dense"] * min(dense, layers) + ["sparse"] * (layers - min(dense, layers))}
