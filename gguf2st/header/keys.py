"""What each metadata key below an architecture holds: the type check between a stranger's file and our arithmetic.

llama.cpp refuses a key of the wrong type. So do we, and a value out of range as well: a text, a negative number or a
float where a count belongs would otherwise end up in config.json, where nothing notices it. The table also tells a
mistyped key in an arch map from a key that a file happens to lack.

Source of the names and types: gguf-py's constants.py and gguf_writer.py (llama.cpp b11434); a test compares them.
"""

import difflib
import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gguf2st.errors import MapError

MAX_COUNT = 2**31 - 1
"""Most of anything: what Hugging Face's and vLLM's 32-bit sizes hold."""
MAX_INDEX = 10_000
"""Most layers or experts: ten times what any model has, and a guard against loops over an absurd number."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: how to say it, whether a value is one, and of a list, what each item must be."""

    text: str
    fits: Callable[[Any], bool]
    items: "Kind | None" = None


def _is_int(value: Any, low: int, high: int = MAX_COUNT) -> bool:
    return type(value) is int and low <= value <= high  # bool is an int to Python, and no number in a GGUF


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and no bool."""
    return type(value) in (int, float) and math.isfinite(value)


def _is_layerwise(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is bool or _is_int(x, 0) for x in value)


SIZE = Kind("a positive whole number", lambda v: _is_int(v, 1))
COUNT = Kind("a whole number", lambda v: _is_int(v, 0))
LAYERS = Kind(f"a whole number from 1 to {MAX_INDEX}", lambda v: _is_int(v, 1, MAX_INDEX))
EXPERTS = Kind(f"a whole number up to {MAX_INDEX}", lambda v: _is_int(v, 0, MAX_INDEX))
LAYERWISE = Kind("one whole number or bool per layer", _is_layerwise)
NUMBER = Kind("a number", is_number)
EPSILON = Kind("a positive number below 1", lambda v: is_number(v) and 0 < v < 1)
ROPE_BASE = Kind("a number above 1, up to 1e12", lambda v: is_number(v) and 1 < v <= 1e12)  # 1e4 to 1e11 in the wild
POSITIVE = Kind("a positive number", lambda v: is_number(v) and v > 0)
NOT_NEGATIVE = Kind("a number that is not negative", lambda v: is_number(v) and v >= 0)
FLAG = Kind("true or false", lambda v: type(v) is bool)
TEXT = Kind("a text", lambda v: isinstance(v, str))
LIST = Kind("a list", lambda v: isinstance(v, list))
WHOLE_NUMBER = Kind("a whole number from -2^63 to 2^63 - 1", lambda v: _is_int(v, -(2**63), 2**63 - 1))
WHOLE_NUMBERS = Kind("a list of whole numbers", lambda v: isinstance(v, list), WHOLE_NUMBER)

_BY_KIND: tuple[tuple[tuple[Kind, ...], str], ...] = (
    ((LAYERS,), "block_count"),
    ((EXPERTS,), "expert_count expert_shared_count"),
    ((EXPERTS, LAYERWISE), "expert_used_count"),
    (
        (SIZE, LAYERWISE),
        "attention.head_count attention.head_count_kv feed_forward_length expert_feed_forward_length",
    ),
    (
        (SIZE,),
        """
        attention.key_length attention.key_length_mla attention.key_length_mla_swa attention.key_length_swa
        attention.value_length attention.value_length_mla attention.value_length_mla_swa attention.value_length_swa
        attention.indexer.block_size attention.indexer.head_count attention.indexer.key_length
        context_length embedding_length vocab_size rope.dimension_count rope.dimension_count_swa
        rope.scaling.original_context_length ssm.conv_kernel ssm.group_count ssm.inner_size ssm.state_size
        ssm.time_step_rank kda.head_dim shortconv.l_cache wkv.head_size
        """,
    ),
    ((COUNT, LAYERWISE), "attention.sliding_window_pattern"),
    (
        (COUNT,),
        """
        adapters.count adapters.lora_rank altup.active_idx altup.num_inputs
        attention.decay_lora_rank attention.gate_lora_rank attention.group_norm_groups attention.iclr_lora_rank
        attention.indexer.kpool attention.indexer.local_blocks attention.indexer.top_k
        attention.kv_lora_rank attention.kv_lora_rank_swa attention.output_group_count attention.output_lora_rank
        attention.q_lora_rank attention.relative_buckets_count attention.shared_kv_layers attention.sliding_window
        attention.temperature_length attention.value_residual_mix_lora_rank attn_res.block_size block_size
        classifier.pooling_type conv_group_size conv_kernel_size convnext.block_count convnext.embedding_length
        decision.block_count decision.head_count decision.max_head_tokens decision.routing_block_count
        decoder_block_count decoder_start_token_id embedding_length_out embedding_length_per_layer_input
        expert_chunk_feed_forward_length expert_gating_func expert_group_count expert_group_used_count
        expert_latent_length expert_shared_feed_forward_length experts_per_group features_length
        full_attention_interval hash_layer_count hrm.h_cycles hrm.l_cycles hrm.layers_per_stack
        hyper_connection.count hyper_connection.low_rank hyper_connection.sinkhorn_iterations
        interleave_moe_layer_step leading_dense_block_count moe_every_n_layers moe_latent_size n_deepstack_layers
        nextn_predict_layers num_loops ple.conv_kernel ple.eos_token_id ple.heads_per_ngram ple.image_token_id
        ple.ngram_size pooling_type posnet.block_count posnet.embedding_length rescale_every_n_layers
        selector_rank selector_top_k target_hidden_size time_decay_extra_dim time_mix_extra_dim token_shift_count
        tokenizer.ggml.bos_token_id tokenizer.ggml.eos_token_id tokenizer.ggml.padding_token_id
        tokenizer.ggml.seperator_token_id tokenizer.ggml.mask_token_id
        """,
    ),
    (
        (EPSILON,),
        """
        attention.group_norm_epsilon attention.layer_norm_epsilon attention.layer_norm_rms_epsilon
        hyper_connection.epsilon
        """,
    ),
    ((POSITIVE,), "rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow"),
    ((ROPE_BASE,), "attention.compress_rope_freq_base rope.freq_base rope.freq_base_swa"),
    (
        (NOT_NEGATIVE,),
        """
        attention.clamp_kqv attention.max_alibi_bias attention.output_scale attention.scale
        attention.temperature_scale attention.value_scale attn_logit_softcapping embedding_scale expert_group_scale
        expert_weights_scale final_logit_softcapping logit_scale residual_scale rope.scale_linear
        rope.scaling.alpha rope.scaling.attn_factor rope.scaling.factor rope.scaling.yarn_attn_factor
        router_logit_softcapping
        """,
    ),
    (
        (NUMBER,),
        """
        activation.situ_beta activation.situ_linear_beta adapters.router_gain hyper_connection.magnitude
        kda.gate_lower_bound rope.scaling.yarn_ext_factor rope.scaling.yarn_log_multiplier
        """,
    ),
    (
        (FLAG,),
        """
        attention.causal attention.indexer.kpool_select_tail expert_weights_norm has_confidence_head hrm.prefix_lm
        kda.safe_gate norm_before_fc norm_before_residual rope.scaling.finetuned sample_from_anchor
        skip_loop_final_norm ssm.dt_b_c_rms swin_norm use_parallel_residual
        """,
    ),
    ((TEXT,), "decision.type hidden_activation rope.scaling.type tensor_data_layout tokenizer.ggml.model"),
    (
        (WHOLE_NUMBERS,),
        "attention.compress_ratios ple.head_offsets ple.head_vocab_sizes ple.layer_multipliers ple.layers",
    ),
    (
        (LIST,),
        """
        activation_sparsity_scale adapters.token_ids_activate adapters.token_ids_substitute
        attention.indexer.types attention.recurrent_layers attention.rope_pattern
        classifier.output_labels deepstack_mapping rope.dimension_sections swiglu_clamp_exp swiglu_clamp_shexp
        target_layers xielu.alpha_n xielu.alpha_p xielu.beta xielu.eps
        """,
    ),
)

KEYS: dict[str, tuple[Kind, ...]] = {name: kinds for kinds, names in _BY_KIND for name in names.split()}
"""Metadata key, without the architecture -> the kinds of value it may hold."""


_ZERO_IS_NONE = """
    attention.clamp_kqv attention.kv_lora_rank attention.max_alibi_bias attention.q_lora_rank attention.scale
    attention.shared_kv_layers attention.sliding_window attention.temperature_length attention.temperature_scale
    attn_logit_softcapping embedding_length_per_layer_input embedding_scale expert_chunk_feed_forward_length
    expert_count expert_group_count expert_group_used_count expert_shared_count expert_shared_feed_forward_length
    expert_used_count expert_weights_scale final_logit_softcapping leading_dense_block_count logit_scale
    moe_latent_size n_deepstack_layers nextn_predict_layers residual_scale rope.scale_linear rope.scaling.factor
    rope.scaling.yarn_log_multiplier router_logit_softcapping
"""
ZERO_IS_NONE = frozenset(_ZERO_IS_NONE.split())
"""Keys that say with 0 what they say by being absent: llama.cpp's own value for them (llama-hparams.h). Converters
write what a config.json has, such as `shared_expert_intermediate_size` 0 of Qwen3 Coder, whatever the class."""
ONE_IS_NONE = frozenset(("expert_group_count", "expert_group_used_count", "expert_weights_scale"))
"""Keys that change nothing with 1: experts in one group, and weights times 1."""


def says_nothing(key: str, value: Any) -> bool:
    """Whether a key says that there is none of what it counts, so that nothing is lost with it."""
    if type(value) not in (int, float):
        return False
    return (value == 0 and key in ZERO_IS_NONE) or (value == 1 and key in ONE_IS_NONE)


def require_key(key: str) -> tuple[Kind, ...]:
    """The kinds of a key. Raises MapError, naming the nearest, when there is no such key."""
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, n=3)
        raise MapError(
            f"there is no metadata key {key!r}{f'; did you mean {near[0]!r}?' if near else ''}",
            hint="`gguf2st inspect FILE --json` has the keys of a file; one that was never met needs a line in "
            "gguf2st/header/keys.py",
        )
    return KEYS[key]


def checked(full: str, key: str, value: Any) -> Any:
    """The value of a key (`full`: as it stands in the file) once its type and range are right; arrays become lists.

    Raises:
        MapError: not what the key holds.
    """
    kinds = require_key(key)
    value = list(value) if isinstance(value, array) else value
    if not any(kind.fits(value) for kind in kinds):
        expected = ", or ".join(kind.text for kind in kinds)
        raise MapError(f"{full} is {brief(value)}; it must be {expected}")
    if items := kinds[0].items:
        for n, item in enumerate(value):
            if not items.fits(item):
                raise MapError(f"item {n} of {full} is {brief(item)}; it must be {items.text}")
    return value


def brief(value: object, limit: int = 60) -> str:
    """A value as one short piece of text; nothing longer is ever made of it."""
    text = repr(_start(value, limit))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _start(value: object, limit: int) -> object:
    """As much of a value as a short text can show."""
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, list):
        return [_start(item, limit) for item in value[: limit // 3]] if limit > 2 else []
    return list(value[: limit // 3]) if isinstance(value, array) else value
