"""What transformers calls modules that checkpoints, and vLLM, call otherwise.

transformers 5.24 renames the weights of some models as it loads them, and looks up how they are packed by the new
names; what it does not find it fills with random numbers. Read from its `conversion_mapping`, to which
tests/test_repack_families.py holds this table.
"""

import re
from collections.abc import Mapping, Sequence

RENAMED: Mapping[str, Sequence[tuple[str, str]]] = {
    "BailingMoeV3ForCausalLM": (
        (r"\.attention\.", ".self_attn."),
        (r"\.self_attn\.f_proj$", ".self_attn.forget_gate.f_proj"),
        (r"\.self_attn\.dense$", ".self_attn.o_proj"),
    ),
    "ExaoneForCausalLM": (
        (r"^transformer\.h\.", "model.layers."),
        (r"\.attn\.attention\.", ".self_attn."),
        (r"\.self_attn\.out_proj$", ".self_attn.o_proj"),
        (r"\.mlp\.c_fc_0$", ".mlp.gate_proj"),
        (r"\.mlp\.c_fc_1$", ".mlp.up_proj"),
        (r"\.mlp\.c_proj$", ".mlp.down_proj"),
    ),
    "HYV3ForCausalLM": ((r"\.mlp\.shared_mlp\.", ".mlp.shared_experts."),),
    "HYV4ForCausalLM": ((r"\.linear_gate$", ".gate_proj"),),
    "JinaEmbeddingsV3Model": ((r"^encoder\.layers\.", "layers."), (r"\.mixer\.out_proj$", ".self_attn.o_proj")),
    "LagunaForCausalLM": ((r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),),
    "SarvamMoEForCausalLM": ((r"\.attention\.", ".self_attn."), (r"\.self_attn\.dense$", ".self_attn.o_proj")),
}
"""HF class -> (pattern, what it becomes), in order, for modules that may be packed."""


def renamed(hf_class: str, module: str) -> str:
    """The module's name in transformers, which is mostly its own.

    Args:
        hf_class: first of the configuration's `architectures`.
        module: as the checkpoint calls it: `transformer.h.3.mlp.c_fc_0`.
    """
    for pattern, text in RENAMED.get(hf_class, ()):
        module = re.sub(pattern, text, module)
    return module
