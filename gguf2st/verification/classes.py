"""Which class of transformers a checkpoint is of: one that speaks, or one that encodes or judges a text."""

import inspect
from collections.abc import Iterable
from typing import Any


def named_class(config: Any) -> Any:
    """The class that config.json names, if it is transformers' own and for such a configuration; None otherwise.

    AutoModelForCausalLM gives an encoder or a classifier another class, with a head that the checkpoint does not have.
    An encoder in code of its repository (LlamaBidirectionalModel) has the names of transformers' model without a head.
    """
    import transformers

    for name in config.architectures or ():
        found = getattr(transformers, str(name), None)
        if found is not None and getattr(found, "config_class", None) is type(config):
            return found
        if str(name).endswith("Model") and not str(name).endswith("LMHeadModel"):
            return transformers.MODEL_MAPPING.get(type(config), None)
    return None


def arguments_of(kind: Any, tensors: Iterable[str]) -> dict[str, bool]:
    """What a class wants to be told beside its configuration: an encoder may go without its pooling layer.

    llama.cpp's converter leaves it out: vectors of tokens are pooled otherwise, and nothing else reads it.
    """
    optional = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    return {"add_pooling_layer": False} if optional and not any(n.startswith("pooler.") for n in tensors) else {}


def on_meta(config: Any, tensors: Iterable[str]) -> Any:
    """The model of a configuration, without memory for its weights; `tensors` are the names of those of a checkpoint.

    Raises whatever transformers raises.
    """
    import torch
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    kind = named_class(config)
    with torch.device("meta"):
        return (
            kind(config, **arguments_of(kind, tensors)) if kind else auto.from_config(config, trust_remote_code=False)
        )


def speaks(model: Any) -> bool:
    """Whether it gives the next token of a text that it reads."""
    return bool(model.can_generate()) and not model.config.is_encoder_decoder
