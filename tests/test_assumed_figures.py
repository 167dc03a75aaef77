"""What no file says: the figures are those of the published models, and each is said in the report.

transformers' configuration classes have the values of a class's first published model as defaults.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers as transformers_module
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import gguf2st
from gguf2st.archmap.mapfile import all_maps
from gguf2st.config import attention, classic, encoders, falcon, latent, ministral, mla, partial, windows
from gguf2st.errors import MapError
from tests.oracle.rewrite import Metadata, Tensors, rewritten
from tests.test_config import Scope

transformers: Any = transformers_module  # its constructors carry no types

YARN: Mapping[str, Any] = {
    "rope.freq_base": 1e6,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 16.0,
    "rope.scaling.original_context_length": 16384,
}
MISTRAL_V01: Mapping[str, Any] = {**windows.MISTRAL, "rope.freq_base": 10000.0}


def test_llama_4_is_that_of_transformers_defaults() -> None:
    scope = Scope({})
    found = ministral.llama4_attention(scope, 48, 16)
    published = transformers.Llama4TextConfig()
    for key in ("attention_chunk_size", "floor_scale", "attn_scale", "no_rope_layers", "layer_types", "use_qk_norm"):
        assert found[key] == getattr(published, key), key
    assert [key for key in ("attention_chunk_size", "use_qk_norm") if not any(key in n for n in scope.notes)] == []


def test_ministral_3_is_that_of_transformers_defaults() -> None:
    published = transformers.Ministral3Config().rope_parameters
    keys = {**YARN, "attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 1.0}
    found = ministral.ministral3_rope(Scope(keys), 128)["rope_parameters"]
    for key in ("rope_type", "rope_theta", "mscale", "mscale_all_dim", "llama_4_scaling_beta"):
        assert found[key] == published[key], key


@pytest.mark.parametrize(
    ("multiplier", "apply_scale", "magnitude"),
    [(1.0, False, 1.0), (0.0, True, 0.1 * math.log(16.0) + 1.0), (None, True, 0.1 * math.log(16.0) + 1.0)],
)
def test_the_magnitude_of_ministral_s_yarn(multiplier: float | None, apply_scale: bool, magnitude: float) -> None:
    """Mistral's own configuration says `apply_scale`, of which llama.cpp's converter makes a multiplier of 0 or 1
    (conversion/mistral.py). vLLM makes an attention_factor of 1 of a false one, and of a true one yarn's own
    (transformers_utils/configs/mistral.py): what transformers computes of ours must be the same.
    """
    keys = {**YARN, "attention.temperature_scale": 0.1}
    keys |= {} if multiplier is None else {"rope.scaling.yarn_log_multiplier": multiplier}
    found = ministral.ministral3_rope(Scope(keys), 128)
    config = transformers.Ministral3Config(head_dim=128, rope_parameters=found["rope_parameters"])
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](config, device="cpu")
    assert factor == pytest.approx(magnitude, rel=1e-12)
    assert found["rope_scaling"].get("apply_yarn_scaling", True) is apply_scale  # the word of older vLLMs


@pytest.mark.parametrize(
    ("keys", "found", "said"), [({"hrm.prefix_lm": True}, True, "llama.cpp never"), ({}, False, "all the same")]
)
def test_what_readers_make_of_a_prefix_is_said(keys: dict[str, Any], found: bool, said: str) -> None:
    scope = Scope(keys)
    assert attention.prefix_lm(scope) is found
    assert said in scope.notes[0]


def test_ministral_3_wants_one_of_two_magnitudes() -> None:
    keys = {**YARN, "attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 0.5}
    with pytest.raises(MapError, match="0 and 1 are known"):
        ministral.ministral3_rope(Scope(keys), 128)


def test_mistral_4_is_that_of_transformers_defaults() -> None:
    scope = Scope({**YARN, "rope.scaling.yarn_log_multiplier": 0.1})
    found = latent.mistral4_rope(scope, 64, 128)["rope_parameters"]
    published = transformers.Mistral4Config().rope_parameters
    for key in ("mscale", "mscale_all_dim", "llama_4_scaling_beta"):
        assert found[key] == published[key], key
    assert any("llama_4_scaling_beta" in note for note in scope.notes)


@pytest.mark.parametrize(("layers", "experts", "groups"), [(61, 256, None), (60, 160, (8, 3)), (27, 64, (1, 1))])
def test_groups_of_deepseek_before_the_keys(layers: int, experts: int, groups: tuple[int, int] | None) -> None:
    """V3 as transformers has it, V2 as its config.json; V2 Lite has one group."""
    published = transformers.DeepseekV3Config()
    scope = Scope({})
    found = mla.deepseek_groups(scope, layers, experts)
    assert (found["n_group"], found["topk_group"]) == (groups or (published.n_group, published.topk_group))
    assert any("n_group" in note for note in scope.notes)
    assert mla.deepseek_groups(Scope({"expert_group_count": 4, "expert_group_used_count": 2}), layers, experts) == {
        "n_group": 4,
        "topk_group": 2,
    }


def test_falcon_2_and_phi_35_moe() -> None:
    """Of the config.json of tiiuae/falcon-11B and microsoft/Phi-3.5-MoE-instruct: no class has them as defaults."""
    assert (falcon.FALCON_2_THETA, partial.PHIMOE_MSCALE) == (500042.0, 1.243163121016122)


@pytest.mark.parametrize(
    ("keys", "context", "window", "notes"),
    [
        ({"attention.sliding_window": 2047}, 4096, 2047, 0),
        ({"attention.sliding_window": 0}, 16384, None, 0),  # Phi 4
        ({}, 4096, 2047, 1),
        ({}, 131072, None, 1),
    ],
)
def test_window_of_phi_3(keys: dict[str, Any], context: int, window: int | None, notes: int) -> None:
    scope = Scope(keys)
    assert windows.phi3_window(scope, context) == window
    assert len(scope.notes) == notes


@pytest.mark.parametrize(
    ("more", "vocab", "notes"),
    [
        ({}, 32000, 1),
        ({}, 32002, 1),  # with the tokens of a chat format
        ({"rope.freq_base": 1e6}, 32000, 0),  # v0.2
        ({"rope.freq_base": 1e6}, 32768, 0),  # v0.3
        ({"block_count": 80}, 32000, 0),
    ],
)
def test_the_window_of_mistral_7b_is_said_to_be_lost(more: dict[str, Any], vocab: int, notes: int) -> None:
    scope = Scope({**MISTRAL_V01, **more})
    assert windows.mistral_window(scope, vocab) == {}
    assert len(scope.notes) == notes


@pytest.mark.parametrize(
    ("layers", "hidden", "found"), [(44, 6144, "gelu_fast"), (36, 5120, "gelu"), (32, 4096, "gelu")]
)
def test_activation_of_gpt_neox(layers: int, hidden: int, found: str) -> None:
    """config.json of GPT-NeoX-20B, of Pythia 12B and of Pythia 6.9B and RedPajama-INCITE 7B."""
    scope = Scope({})
    assert classic.gptneox_activation(scope, layers, hidden) == found
    assert [note for note in scope.notes if note.startswith(f"hidden_act = '{found}' is assumed")]


@pytest.mark.parametrize(("keys", "found", "notes"), [({}, "mean", 1), ({"classifier.pooling_type": 2}, "cls", 0)])
def test_pooling_of_a_classifier(keys: dict[str, Any], found: str, notes: int) -> None:
    scope = Scope(keys)
    assert encoders.classifier_pooling(scope) == found
    assert len(scope.notes) == notes


def _without(*keys: str) -> Callable[[Metadata, Tensors], None]:
    def edit(metadata: Metadata, _tensors: Tensors) -> None:
        for key in keys:
            del metadata[key]

    return edit


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("case", "keys", "said"),
    [
        ("grok", ("grok.attn_logit_softcapping", "grok.router_logit_softcapping"), "router_logit_softcapping = 30.0"),
        ("modern-bert", ("modern-bert.hidden_activation",), "hidden_activation = 'gelu'"),
        ("qwen", ("qwen.rope.freq_base",), "rope.freq_base = 10000"),
        ("gemma2", ("gemma2.final_logit_softcapping",), "final_logit_softcapping = 30.0"),
        ("starcoder2", (), "sliding_window = 4096"),
        ("gpt2", (), "activation_function = 'gelu_new'"),
        ("t5encoder_gated", (), "feed_forward_proj = 'gated-gelu'"),
    ],
)
def test_what_a_file_lacks_is_said(case: str, keys: tuple[str, ...], said: str, tmp_path: Path) -> None:
    plan = gguf2st.make_plan(rewritten(case, tmp_path / "less.gguf", _without(*keys)))
    assert plan.all_problems == ()
    assert [note for note in plan.notes if note.startswith(said) and "is assumed" in note]


def test_no_map_falls_back_on_a_figure_without_saying_so() -> None:
    """`key or 30.0` in [config] is a figure that no file says. `assumed` would say it; 0 and 1 are no figures."""
    silent = {}
    for amap in all_maps():
        for key, expression in amap.config.items():
            for fallback in expression.text.split(" or ")[1:]:
                figure = fallback.split()[0].rstrip(")")
                if figure.replace(".", "").isdigit() and float(figure) not in (0, 1) and " == " not in fallback:
                    silent[f"{amap.name}: {key}"] = expression.text
    assert silent == {}
