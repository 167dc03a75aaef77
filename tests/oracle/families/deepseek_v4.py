"""DeepSeek V4, whose published experts are four bits wide: the converter takes no others."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.oracle.case import Case, respelled

GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Values of the codes 0 to 7 of E2M1; 8 to 15 are the same below zero."""


def fp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (rows, cols / 2), first of each two in the low bits; exponents + 127 (rows, cols / 32); and the values."""
    groups = weight.float().reshape(len(weight), -1, 32)
    exponents = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9).log2().floor() - 2
    scaled = groups / exponents.exp2()
    codes = (scaled.abs().clamp(max=6)[..., None] - GRID).abs().argmin(-1)
    values = GRID[codes] * scaled.sign() * exponents.exp2()
    bits = (codes + 8 * (scaled < 0)).to(torch.uint8).reshape(len(weight), -1, 2)
    return bits[..., 0] | bits[..., 1] << 4, (exponents + 127).to(torch.uint8)[..., 0], values.reshape(weight.shape)


def remade(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published names, experts that four bits hold, and a table that routes tokens here and there."""
    names = {"model.layers.": "layers.", "model.embed_tokens.": "embed.", "model.norm.": "norm."}
    tensors = respelled(tensors, {**names, "model.hc_head.hc_": "hc_head_", ".attn.norm.": ".attn.kv_norm."})
    generator = torch.Generator().manual_seed(4)
    for name, tensor in tensors.items():
        if is_expert(name):
            tensors[name] = fp4(tensor)[2]
        elif name.endswith("tid2eid"):
            order = torch.rand(len(tensor), N_EXPERTS, generator=generator).argsort(-1)
            tensors[name] = order[:, : tensor.shape[1]].contiguous()
    return tensors


def is_expert(name: str) -> bool:
    return ".experts." in name


def published(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts as codes and exponents."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if is_expert(name):
            out[name], out[name.replace(".weight", ".scale")], _ = fp4(tensor)
        else:
            out[name] = tensor
    return out


N_EXPERTS = 4
RATIOS: Mapping[str, int] = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("intermediate_size", "num_key_value_heads", "tie_word_embeddings")),
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 64,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 48,
    "o_groups": 2,
    "o_lora_rank": 32,
    "index_n_heads": 2,
    "index_head_dim": 64,
    "index_topk": 16,  # as many as there are, for llama.cpp, which rounds, would choose others
    "sliding_window": 16,
    "n_routed_experts": N_EXPERTS,
    "num_nextn_predict_layers": 0,
    "topk_method": "noaux_tc",
    "num_experts_per_tok": 2,
}


def deepseek_v4(kinds: tuple[str, ...], hashed: int, scaling: Mapping[str, Any] | None = None, **options: Any) -> Case:
    full = [next(kind for kind in RATIOS if kind.startswith(start)) for start in kinds]
    given = {
        **SIZES,
        "num_hidden_layers": len(kinds),
        "layer_types": full,
        "mlp_layer_types": ["hash_moe"] * hashed + ["moe"] * (len(kinds) - hashed),
        **({"rope_parameters": {"rope_type": "yarn", **scaling}} if scaling else {}),
        **options,
    }
    given = {key: value for key, value in given.items() if value is not None or key not in ("intermediate_size",)}
    published_keys = {
        "compress_ratios": [RATIOS[kind] for kind in full],
        "num_hash_layers": hashed,
        "qk_rope_head_dim": 16,
        "rope_parameters": None,
        "rope_scaling": {"type": "yarn", **scaling} if scaling else None,
    }
    return Case(
        "DeepseekV4Config",
        given,
        remade=remade,
        spelled=published,
        hparams=published_keys,
        tolerance=0.1,  # llama.cpp rounds to eight bits what it multiplies by weights of four
    )


YARN: Mapping[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1}
_PLAIN: dict[str, Case] = {
    "deepseek4": deepseek_v4(("sliding", "heavily", "compressed", "sliding", "compressed"), 2),
    "deepseek4_yarn": deepseek_v4(("heavily", "compressed", "sliding"), 1, YARN, o_groups=4, num_experts_per_tok=3),
}
CASES = _PLAIN
