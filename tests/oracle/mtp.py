"""Checkpoints with a layer that predicts further tokens (MTP), as published: transformers' classes have none.

`Case.spelled` adds it to what the converter reads, so that llama.cpp's converter itself writes the layer into the GGUF.
"""

from torch import Tensor


def appended(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One more layer, a copy of the last, with four tensors of its own: DeepSeek, GLM, Bailing."""
    last = max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    more = {
        name.replace(f"model.layers.{last}.", f"model.layers.{last + 1}."): tensor + 1
        for name, tensor in tensors.items()
        if name.startswith(f"model.layers.{last}.")
    }
    norm = next(tensor for name, tensor in tensors.items() if name.endswith("input_layernorm.weight"))
    more[f"model.layers.{last + 1}.eh_proj.weight"] = norm.new_ones(len(norm), 2 * len(norm))
    for own in ("enorm", "hnorm", "shared_head.norm"):
        more[f"model.layers.{last + 1}.{own}.weight"] = norm.new_ones(len(norm))
    return {**tensors, **more}


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same under names of its own, a copy of the last layer with attention: Qwen 3 Next and 3.5."""
    return _apart(tensors, max(int(name.split(".")[2]) for name in tensors if "self_attn.q_proj" in name))


def apart_dense(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy of the first layer, which has no experts: EXAONE MoE."""
    return _apart(tensors, 0)


def _apart(tensors: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    more = {
        name.replace(f"model.layers.{layer}.", "mtp.layers.0."): tensor + 1
        for name, tensor in tensors.items()
        if name.startswith(f"model.layers.{layer}.")
    }
    norm = tensors["model.norm.weight"]
    more["mtp.fc.weight"] = norm.new_ones(len(norm), 2 * len(norm))
    for own in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        more[f"mtp.{own}.weight"] = norm.new_ones(len(norm))
    return {**tensors, **more}


def nemotron(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Two layers, one with attention and one with experts, which the converter makes one of: Nemotron 3."""
    attention = max(int(name.split(".")[2]) for name in tensors if "mixer.q_proj" in name)
    experts = max(int(name.split(".")[2]) for name in tensors if "mixer.gate" in name)
    more = {
        name.replace(f"backbone.layers.{i}.", f"mtp.layers.{n}."): tensor + 1
        for n, i in enumerate((attention, experts))
        for name, tensor in tensors.items()
        if name.startswith(f"backbone.layers.{i}.")
    }
    norm = tensors["backbone.norm_f.weight"]
    more["mtp.layers.0.eh_proj.weight"] = norm.new_ones(len(norm), 2 * len(norm))
    for own in ("0.enorm", "0.hnorm", "1.final_layernorm"):
        more[f"mtp.layers.{own}.weight"] = norm.new_ones(len(norm))
    return {**tensors, **more}


def mimo(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Three dense layers with a window, under names of their own: MiMo V2."""
    first, norm = "model.layers.0.", tensors["model.norm.weight"]
    window = min(int(name.split(".")[2]) for name in tensors if "sink" in name)
    more = {}
    for n in range(3):
        layer = f"model.mtp.layers.{n}."
        for name, tensor in tensors.items():
            if name.startswith(f"model.layers.{window}.") and ".mlp." not in name:
                more[name.replace(f"model.layers.{window}.", layer)] = tensor + 1
            elif name.startswith(f"{first}mlp."):
                more[name.replace(first, layer)] = tensor + 1
        more[f"{layer}eh_proj.weight"] = norm.new_ones(len(norm), 2 * len(norm))
        more |= {f"{layer}{own}.weight": norm.new_ones(len(norm)) for own in ("enorm", "hnorm", "final_layernorm")}
    return {**tensors, **more}
