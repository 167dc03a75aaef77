"""The small files of a checkpoint: the configurations, and whether its tokenizer can be made."""

from collections.abc import Mapping
from typing import Any

from gguf2st import config
from gguf2st import tokenizer as tokenizers
from gguf2st.config.quantization import quantization_config
from gguf2st.header import Header
from gguf2st.plan import Plan


def configurations(plan: Plan) -> dict[str, Any]:
    """generation_config.json, config.json and those of an embedding model by name, in the order to write them."""
    special = tokenizers.special_tokens(plan.header.metadata)
    model = {**plan.config, **config.token_ids(special), **plan.config}  # a map may know better
    if quantization := quantization_config(plan):
        model["quantization_config"] = quantization
    return {
        **plan.files,
        "generation_config.json": config.generation_config(special, plan.header.metadata),
        "config.json": config.with_dtype(model, plan.dtype),
    }


def tokenizer_metadata(header: Header, pre: str | None) -> Mapping[str, object]:
    """The file's metadata, with another way to split words if `pre` names one."""
    return header.metadata if pre is None else tokenizers.with_pretokenizer(header.metadata, pre)


def plan_tokenizer(plan: Plan, metadata: Mapping[str, object]) -> tokenizers.TokenizerPlan:
    """The tokenizer that a conversion would write.

    Raises:
        TokenizerError: it cannot be rebuilt, or is not the model's.
    """
    tokenizer = tokenizers.plan_tokenizer(metadata)
    if isinstance(n_rows := plan.config.get("vocab_size"), int):
        tokenizer.require_rows(n_rows)
    return tokenizer
