"""DeepSeek and its kin: rope under multi-head latent attention, and the groups that experts are chosen from."""

from typing import Any

from gguf2st.config.functions import FileScope, function
from gguf2st.config.rope import rope

PUBLISHED_GROUPS = {160: (8, 3), 256: (8, 4)}
"""Number of experts -> (n_group, topk_group) of DeepSeek-V2, V2.5 and of V3, R1, whose config.json all say so."""


@function("rope.")
def mla_rope(scope: FileScope, dims: int) -> dict[str, Any]:
    """Rotary embedding over the `dims` rotary dimensions of a latent-attention head.

    Under yarn, DeepSeek scales the attention itself by mscale_all_dim. llama.cpp's converter writes a tenth of that
    (conversion/deepseek.py) and takes mscale to be equal to it, as it is in every published model.
    """
    out = rope(scope, dims)
    tenth = scope.get("rope.scaling.yarn_log_multiplier") or 0.0
    if out["rope_parameters"]["rope_type"] == "yarn" and tenth:
        mscale = float(f"{10 * tenth:.7g}")  # float32 holds no more digits
        both = {"mscale": mscale, "mscale_all_dim": mscale}
        out["rope_parameters"] = out["rope_parameters"] | both
        out["rope_scaling"] = out["rope_scaling"] | both
    return out


@function("expert_group_count", "expert_group_used_count")
def expert_groups(scope: FileScope, n_experts: int) -> dict[str, Any]:
    """How many groups the experts form, and from how many of them a token may choose.

    Converters before October 2025 did not write it, and llama.cpp runs such files without groups. What the published
    models of this number of experts say is taken then, with a note.
    """
    groups, used = scope.get("expert_group_count"), scope.get("expert_group_used_count")
    if groups is None or used is None:
        groups, used = PUBLISHED_GROUPS.get(n_experts, (1, 1))
        scope.note(
            f"n_group = {groups}, topk_group = {used} are assumed: the file does not say; "
            f"published DeepSeek models of {n_experts} experts have these"
            if n_experts in PUBLISHED_GROUPS
            else f"n_group = {groups}, topk_group = {used} are assumed: the file does not say; llama.cpp runs it so"
        )
    return {"n_group": groups, "topk_group": used}


@function("expert_group_count", "expert_group_used_count")
def deepseek_v2_groups(scope: FileScope, n_experts: int) -> dict[str, Any]:
    """`expert_groups` and topk_method, which is greedy where there is one group only."""
    out = expert_groups(scope, n_experts)
    return out | {"topk_method": "group_limited_greedy" if out["n_group"] > 1 else "greedy"}


@function()
def mlp_layer_types(scope: FileScope, dense: int, layers: int) -> dict[str, list[str]]:
    """Which layers have experts: all after the first `dense` ones."""
    return {"mlp_layer_types": ["dense"] * min(dense, layers) + ["sparse"] * (layers - min(dense, layers))}
