"""Config functions of recent and of odd models: what they make of published values, and what they refuse."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gguf2st.config import grok, latent, muse, openelm, plamo, recent_moe, step
from gguf2st.config.files import nested
from gguf2st.config.rope import has_sections
from gguf2st.errors import MapError
from tests.test_config import Scope

WINDOW = "attention.sliding_window"
PATTERN = "attention.sliding_window_pattern"
YARN: Mapping[str, Any] = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
ELM_QUERIES = [12] * 5 + [16] * 7 + [20] * 4
ELM_WIDTHS = [768, 1024, 1280, 1536, 1792, 2048, 2560, 2816, 3072, 3328, 3584, 3840, 4352, 4608, 4864, 5120]
"""Of apple/OpenELM-270M, whose config.json has them as num_query_heads and as ffn_multipliers 0.5 to 4.0."""


def _elm(queries: list[int], widths: list[int]) -> Scope:
    keys = [n // 4 for n in queries]
    head_counts = {"attention.head_count": queries, "attention.head_count_kv": keys}
    return Scope({**head_counts, "feed_forward_length": widths})


def test_keys_with_dots_become_parts() -> None:
    flat = {"model_type": "a", "text_config.head_dim": 64, "vocab_size": 8, "text_config.model_type": "b"}
    assert nested(flat) == {"model_type": "a", "text_config": {"head_dim": 64, "model_type": "b"}, "vocab_size": 8}


def test_openelm_of_270m() -> None:
    found = openelm.openelm_layers(_elm(ELM_QUERIES, ELM_WIDTHS), 16, 1280, 64)
    assert found["num_query_heads"] == ELM_QUERIES
    assert found["num_kv_heads"] == [3] * 5 + [4] * 7 + [5] * 4
    assert (found["num_gqa_groups"], found["qkv_multipliers"]) == (4, [0.5, 1.0])
    assert [openelm.divisible(1280 * factor, 256) for factor in found["ffn_multipliers"]] == ELM_WIDTHS
    published = [0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0]
    assert [openelm.divisible(1280 * factor, 256) for factor in published] == ELM_WIDTHS


@pytest.mark.parametrize(("layers", "step_", "attention"), [(16, 2, {*range(1, 16, 2)}), (3, 8, {2}), (7, 4, {2, 6})])
def test_plamo2_layers(layers: int, step_: int, attention: set[int]) -> None:
    """PLaMo 2 1B; fewer layers than half a step, of which the last has attention; a step of four."""
    queries = [32 * (i in attention) for i in range(layers)]
    scope = Scope({"attention.head_count": queries, "attention.head_count_kv": [n // 8 for n in queries]})
    expected = {"num_attention_heads": 32, "num_key_value_heads": 4, "mamba_step": step_}
    found = plamo.plamo2_heads(scope, layers)
    assert {**found, "mamba_step": 0} == {**expected, "mamba_step": 0}
    mamba = [
        (i != layers - 1) if layers <= found["mamba_step"] // 2 else i % found["mamba_step"] != found["mamba_step"] // 2
        for i in range(layers)
    ]
    assert {i for i, x in enumerate(mamba) if not x} == attention


def test_what_no_file_says_is_noted() -> None:
    laguna, thinker = Scope({WINDOW: 512}), Scope({WINDOW: 4096})
    kinds = recent_moe.laguna_layers(laguna, 5)
    assert [i for i, kind in enumerate(kinds) if kind == "full_attention"] == [0, 4]
    assert recent_moe.smallthinker_layers(thinker, 5)["rope_layout"] == [0, 1, 1, 1, 0]
    assert all("the file does not say" in note for note in laguna.notes + thinker.notes)
    assert len(laguna.notes) == len(thinker.notes) == 1
    assert recent_moe.smallthinker_layers(Scope({}), 2) == {"sliding_window_layout": [0, 0], "rope_layout": [1, 1]}


def test_sections_of_images() -> None:
    assert has_sections(Scope({"rope.dimension_sections": [8, 12, 12, 0]}))
    assert not has_sections(Scope({}))


REFUSED: Mapping[str, tuple[Callable[[], Any], str]] = {
    "OpenELM with heads that grow otherwise": (
        lambda: openelm.openelm_layers(_elm([*ELM_QUERIES[1:], 20], ELM_WIDTHS), 16, 1280, 64),
        "do not grow from 0.5 to 1.0",
    ),
    "OpenELM with a width that is no multiple": (
        lambda: openelm.openelm_layers(_elm(ELM_QUERIES, [800, *ELM_WIDTHS[1:]]), 16, 1280, 64),
        "no multiples of 256",
    ),
    "PLaMo 2 with attention here and there": (
        lambda: plamo.plamo2_heads(
            Scope({"attention.head_count": [8, 8, 0, 8], "attention.head_count_kv": [2, 2, 0, 2]}), 4
        ),
        "follow no step",
    ),
    "PLaMo 2 with two numbers of heads": (
        lambda: plamo.plamo2_heads(Scope({"attention.head_count": [8, 4], "attention.head_count_kv": [2, 2]}), 2),
        "one number",
    ),
    "PLaMo 3 with windows that follow no count": (
        lambda: plamo.plamo3_attention(Scope({WINDOW: 64, PATTERN: [True, False, False]}), 3, 32),
        "no count of layers",
    ),
    "PLaMo 3 with another yarn": (
        lambda: plamo.plamo3_attention(
            Scope({WINDOW: 64, **YARN, "rope.scaling.original_context_length": 8, "rope.scaling.yarn_beta_fast": 8.0}),
            8,
            32,
        ),
        "beta_fast 32",
    ),
    "Grok with half a yarn": (lambda: grok.grok_rope(Scope(YARN), 32), "yarn with all of its keys"),
    "Grok with heads that rotate in part": (lambda: grok.grok_rope(Scope({"rope.dimension_count": 16}), 32), "16"),
    "SmallThinker with another window": (
        lambda: recent_moe.smallthinker_layers(Scope({WINDOW: 512}), 4),
        "4096 tokens",
    ),
    "Maple without clamps": (lambda: recent_moe.maple_layers(Scope({PATTERN: [True]}), 1), "swiglu_clamp_exp is not 7"),
    "Maple with two ropes": (
        lambda: recent_moe.maple_layers(
            Scope({PATTERN: [True], "swiglu_clamp_exp": [7.0], "rope.freq_base": 1e4, "rope.freq_base_swa": 1e5}), 1
        ),
        "has one for all layers",
    ),
    "no kinds of layers": (lambda: recent_moe.sliding_or_full(Scope({}), 2), "is missing"),
    "a rotary share that no head has": (
        lambda: recent_moe.share_of(Scope({"rope.dimension_count": 48}), "rope.dimension_count", 32),
        "an even number up to 32",
    ),
    "MiMo with one number of keys": (
        lambda: recent_moe.mimo_attention(Scope({PATTERN: [0, 1], "attention.head_count_kv": [2, 2]}), 2, 32),
        "twice that",
    ),
    "MiMo with too short a list": (
        lambda: recent_moe.mimo_attention(Scope({PATTERN: [0, 1], "attention.head_count_kv": [2, 4]}), 3, 32),
        "do not fit 3 layers",
    ),
    "GLM 5.3 with limits that differ": (
        lambda: latent.glm5_layers(Scope({"attention.head_count_kv": [0, 1], "swiglu_clamp_exp": [7.0, 10.0]}), 2),
        "limits",
    ),
    "GLM 5.3 with keys that rotate": (
        lambda: latent.glm5_layers(
            Scope({"attention.head_count_kv": [0], "attention.kv_lora_rank": 512, "attention.key_length": 576}), 1
        ),
        "a part of the keys rotates",
    ),
    "GLM 5.3 with experts by softmax": (
        lambda: latent.glm5_layers(Scope({"attention.head_count_kv": [0], "expert_gating_func": 1}), 1),
        "sigmoid",
    ),
    "GLM 5.3 with another epsilon": (
        lambda: latent.glm5_layers(Scope({"attention.head_count_kv": [0], "attention.layer_norm_epsilon": 1e-5}), 1),
        "1e-6",
    ),
    "Hunyuan 4 without a list of indexers": (lambda: latent.hy_v4_layers(Scope({}), 2), "2 items, one for each layer"),
    "latent attention without its widths": (lambda: latent.latent_widths(Scope({})), "a number for each was expected"),
    "Ling 3 with latent layers here and there": (
        lambda: latent.ling3_layers(Scope({"attention.head_count_kv": [0, 1, 1, 0]}), 4),
        "not every n-th",
    ),
    "Muse Glimmer without norms": (lambda: muse.muse_attention(Scope({}), 2, 32), "not 1"),
    "Muse Glimmer with norms that are no scale": (
        lambda: muse.muse_attention(Scope({}, divisors=[3.5, 3.0]), 2, 32),
        "not 1",
    ),
    "Step with experts after none": (lambda: recent_moe.leading_dense(Routers({1, 3}), 4), "layer 2 has no experts"),
}


class Routers(Scope):
    """A file in which the given layers have a router."""

    def __init__(self, layers: set[int]) -> None:
        super().__init__({})
        self.names = {f"blk.{i}.ffn_gate_inp.weight" for i in layers}

    def has(self, tensor: str) -> bool:
        return tensor in self.names


@pytest.mark.parametrize("what", REFUSED)
def test_contradictions_are_refused(what: str) -> None:
    attempt, message = REFUSED[what]
    with pytest.raises(MapError, match=message):
        attempt()


def test_step_limits_of_one_layer_only() -> None:
    """A list of limits of which the last is one: others are none, which the class writes as 0."""
    scope = Scope({"swiglu_clamp_exp": [0.0, 7.0], "swiglu_clamp_shexp": [0.0, 16.0]})
    assert step.step_limits(scope, 2) == {"swiglu_limits": [0.0, 7.0], "swiglu_limits_shared": [0.0, 16.0]}
