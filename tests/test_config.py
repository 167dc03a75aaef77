"""config.json functions against transformers' own rope code and configuration classes."""

import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as transformers_module
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from gguf2st import config
from gguf2st.config import attention, rope
from gguf2st.config.rope_fit import Llama3, fit_llama3
from gguf2st.errors import MapError
from gguf2st.header import shortest_float32

transformers: Any = transformers_module  # its constructors carry no types


class Scope:
    """A FileScope over plain values."""

    def __init__(self, keys: Mapping[str, Any], divisors: list[float] | None = None) -> None:
        self.keys, self.divisors = keys, divisors
        self.read: set[str] = set()
        self.notes: list[str] = []

    def get(self, key: str) -> Any:
        self.read.add(key)
        return self.keys.get(key)

    def tensor(self, name: str, why: str) -> list[float] | None:
        return self.divisors

    def has(self, tensor: str) -> bool:
        return False

    def note(self, text: str) -> None:
        self.notes.append(text)


def _config(head_dim: int, parameters: Mapping[str, Any]) -> Any:
    return transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters=dict(parameters),
    )


def _inv_freq(head_dim: int, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Frequencies that transformers computes from rope parameters."""
    if parameters["rope_type"] == "default":  # each model computes these itself
        theta = torch.tensor(parameters["rope_theta"], dtype=torch.float)
        return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
    scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    frequencies: torch.Tensor = scale(_config(head_dim, parameters), "cpu")[0]
    return frequencies


def _llama3(factor: float, original: int, high: float = 4.0, low: float = 1.0, theta: float = 5e5) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _divisors(head_dim: int, parameters: Mapping[str, Any]) -> list[float]:
    """What scales transformers' plain frequencies to its scaled ones, as float32; 1 or the factor where it copies."""
    plain = _inv_freq(head_dim, {"rope_type": "default", "rope_theta": parameters["rope_theta"]})
    ratios = (plain / _inv_freq(head_dim, parameters)).tolist()
    return [next((x for x in (1.0, parameters["factor"]) if math.isclose(x, r, rel_tol=2e-7)), r) for r in ratios]


DETERMINED = [
    (128, _llama3(8.0, 8192)),  # Llama 3.1
    (64, _llama3(32.0, 8192)),  # Llama 3.2 1B
    (128, _llama3(32.0, 8192)),  # Llama 3.2 3B
    (64, _llama3(8.0, 8192)),
    (128, _llama3(16.0, 8192, high=2.0)),
    (64, _llama3(4.0, 32768, theta=1e4)),
    (16, _llama3(8.0, 64, theta=1e4)),
    (128, _llama3(8.0, 8192, high=32.0)),
    (96, _llama3(4.0, 4096, theta=1e4)),
    (256, _llama3(8.0, 32768, theta=1e6)),
    (128, _llama3(2.5, 10000)),
    (128, _llama3(64.0, 16384, theta=1e7)),
    (80, _llama3(8.0, 2048, theta=1e4)),
    (128, _llama3(40.0, 4096, high=8.0, theta=1e5)),
    (128, _llama3(1.5, 131072, theta=5e6)),
]


@pytest.mark.parametrize(("head_dim", "parameters"), DETERMINED)
def test_llama3_is_fitted_back_exactly(head_dim: int, parameters: dict[str, Any]) -> None:
    scope = Scope({"rope.freq_base": parameters["rope_theta"]}, _divisors(head_dim, parameters))
    written = rope.rope(scope, head_dim)
    assert written["rope_parameters"] == parameters
    assert written["rope_scaling"] == {k: v for k, v in parameters.items() if k != "rope_theta"}
    assert written["rope_theta"] == parameters["rope_theta"]
    assert scope.notes == []


UNDETERMINED = [
    (128, _llama3(16.0, 8192, high=1.5)),
    (16, _llama3(8.0, 8192)),
    (8, _llama3(32.0, 8192)),
    (4, _llama3(8.0, 8192)),
    (4, _llama3(8.0, 700, theta=1e4)),
    (32, _llama3(8.0, 131072, theta=1e4)),  # no frequency is divided by the whole factor
    (64, _llama3(8.0, 3000, high=1.25)),
    (128, _llama3(8.0, 65536, theta=1e4)),
    (64, _llama3(8.0, 8192, low=2.0, high=8.0)),  # the same as 4096, 1, 4
    (128, _llama3(32.0, 8192, low=4.0, high=16.0)),
]


@pytest.mark.parametrize(("head_dim", "parameters"), UNDETERMINED)
def test_what_is_written_gives_the_same_frequencies(head_dim: int, parameters: dict[str, Any]) -> None:
    scope = Scope(
        {"rope.freq_base": parameters["rope_theta"], "context_length": 131072}, _divisors(head_dim, parameters)
    )
    written = rope.rope(scope, head_dim)["rope_parameters"]
    wanted = _inv_freq(head_dim, parameters)
    torch.testing.assert_close(_inv_freq(head_dim, written), wanted, rtol=4e-6, atol=0)
    assert written == parameters or parameters["low_freq_factor"] != 1.0 or scope.notes != []


@pytest.mark.parametrize("seed", range(60))
def test_random_settings_give_the_same_frequencies(seed: int) -> None:
    rng = np.random.default_rng(seed)
    head_dim = int(rng.choice([64, 80, 96, 128, 256]))
    parameters = _llama3(
        float(rng.choice([2.0, 4.0, 8.0, 10.5, 16.0, 32.0, 64.0])),
        int(rng.integers(1024, 65536)),
        high=float(rng.choice([2.0, 3.5, 4.0, 8.0])),
        theta=float(rng.choice([5e5, 1e6, 1e7])),
    )
    scope = Scope({"rope.freq_base": parameters["rope_theta"]}, _divisors(head_dim, parameters))
    written = rope.rope(scope, head_dim)["rope_parameters"]
    assert written["factor"] == parameters["factor"]
    torch.testing.assert_close(_inv_freq(head_dim, written), _inv_freq(head_dim, parameters), rtol=2e-5, atol=0)


def test_llama3_on_numbers_of_llama_cpp_s_converter(llamacpp: Any) -> None:
    """The real tensor of Llama 3.2 1B, by the formula with which llama.cpp's own tools check it."""
    theta, dims, factor, original = 5e5, 64, 32.0, 8192
    freqs = 1.0 / (theta ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims))
    waves = 2 * math.pi / freqs
    smooth = (original / waves - 1.0) / 3.0
    middle = 1 / ((1 - smooth) / factor + smooth)
    divisors = torch.where(waves < original / 4, 1.0, torch.where(waves > original, factor, middle)).tolist()
    assert fit_llama3(divisors, theta, dims, 131072) == Llama3(factor, original, 4.0, unique=True)


@pytest.mark.parametrize("theta", [1.0, 1e12])
@pytest.mark.parametrize(
    "divisors", [[2.0, 1.0], [0.5, 8.0], [1.0, math.nan], [1.0, math.inf], [1.0, -2.0], [1.0, 0.0], [3.0, 3.0]]
)
def test_no_settings_for_what_follows_no_rule(divisors: list[float], theta: float) -> None:
    assert fit_llama3(divisors * 4, theta, 16, 8192) is None


def test_all_ones_are_no_scaling() -> None:
    assert "rope_scaling" not in rope.rope(Scope({}, [1.0] * 8), 16)


@pytest.mark.parametrize(
    ("divisors", "message"), [([1.0] * 7 + [8.0], "has 8 values for 32"), ([2.0] + [1.0] * 15, "no known scaling")]
)
def test_rope_factors_that_do_not_fit(divisors: list[float], message: str) -> None:
    with pytest.raises(MapError, match=message):
        rope.rope(Scope({}, divisors), 32)


def test_no_scaling() -> None:
    assert rope.rope(Scope({"rope.freq_base": 1e6}), 64) == {
        "rope_theta": 1e6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
    assert rope.rope(Scope({}), 64)["rope_theta"] == 10000.0


@pytest.mark.parametrize(
    "keys",
    [
        {"rope.scaling.type": "none"},
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope.scaling.type": "linear"},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
        {"rope.scaling.factor": 0.0},
        {"rope.scale_linear": 1.0},
    ],
)
def test_scaling_that_scales_nothing(keys: dict[str, Any]) -> None:
    assert "rope_scaling" not in rope.rope(Scope(keys), 64)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scale_linear": 4.0},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.scaling.finetuned": True},
    ],
)
def test_linear_scaling(keys: dict[str, Any]) -> None:
    written = rope.rope(Scope(keys), 64)["rope_parameters"]
    plain = _inv_freq(64, {"rope_type": "default", "rope_theta": 10000.0})
    torch.testing.assert_close(_inv_freq(64, written), plain / 4.0, rtol=1e-7, atol=0)


@pytest.mark.parametrize("attention_factor", [None, 1.0, 1.25])
@pytest.mark.parametrize(("fast", "slow"), [(None, None), (16.0, 2.0)])
def test_yarn_scaling(attention_factor: float | None, fast: float | None, slow: float | None) -> None:
    """The keys that llama.cpp's converter writes for transformers' parameters give those parameters back."""
    optional = {"attention_factor": attention_factor, "beta_fast": fast, "beta_slow": slow}
    parameters = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    parameters |= {key: value for key, value in optional.items() if value is not None}
    keys = {
        "rope.freq_base": 1e6,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32768,
        "rope.scaling.yarn_attn_factor": attention_factor,
        "rope.scaling.yarn_beta_fast": fast,
        "rope.scaling.yarn_beta_slow": slow,
    }
    written = rope.rope(Scope(keys), 128)["rope_parameters"]
    assert written == parameters
    ours, theirs = (ROPE_INIT_FUNCTIONS["yarn"](_config(128, p), "cpu") for p in (written, parameters))
    assert torch.equal(ours[0], theirs[0])
    assert ours[1] == theirs[1]


@pytest.mark.parametrize("lacking", ["rope.scaling.factor", "rope.scaling.original_context_length"])
def test_yarn_needs_its_numbers(lacking: str) -> None:
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 4096}
    with pytest.raises(MapError, match="yarn"):
        rope.rope(Scope({k: v for k, v in keys.items() if k != lacking}), 64)


WHOLE_HEADS: dict[str, tuple[int, ...]] = {"rope": (64,), "gemma3_attention": (6, 4, 64, 256)}
"""Functions for models that rotate whole heads, and arguments for them."""


@pytest.mark.parametrize(("name", "arguments"), WHOLE_HEADS.items())
def test_partial_rotary_embedding_is_refused(name: str, arguments: tuple[int, ...]) -> None:
    with pytest.raises(MapError, match=r"rope\.dimension_count is 32"):
        config.FUNCTIONS[name].fn(Scope({"rope.dimension_count": 32}), *arguments)


@pytest.mark.parametrize(("name", "arguments"), WHOLE_HEADS.items())
def test_functions_read_what_they_declare(name: str, arguments: tuple[int, ...]) -> None:
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 4096}
    scope = Scope(keys | {"attention.sliding_window": 512})
    config.FUNCTIONS[name].fn(scope, *arguments)
    reads = config.FUNCTIONS[name].reads
    assert [k for k in scope.read if not any(k == r or (r.endswith(".") and k.startswith(r)) for r in reads)] == []


@pytest.mark.parametrize("layers", [1, 5, 6, 7, 18, 26, 34, 48, 62])
def test_gemma3_layers_are_transformers_defaults(layers: int) -> None:
    theirs = transformers.Gemma3TextConfig(num_hidden_layers=layers)
    scope = Scope({"attention.sliding_window": theirs.sliding_window, "rope.freq_base": 1e6})
    heads, head_dim, hidden = theirs.num_attention_heads, theirs.head_dim, theirs.hidden_size
    ours = attention.gemma3_attention(scope, layers, heads, head_dim, hidden)
    assert ours["layer_types"] == theirs.layer_types
    again = transformers.Gemma3TextConfig(num_hidden_layers=layers, **ours)
    assert again.rope_parameters == theirs.rope_parameters
    assert again.sliding_window == theirs.sliding_window
    assert ours["query_pre_attn_scalar"] == (hidden // heads if layers == 62 else head_dim)
    # what transformers 4.50 makes of the pattern, where it has no layer_types yet
    if pattern := ours.get("sliding_window_pattern"):
        assert ours["layer_types"] == [
            "sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)
        ]


@pytest.mark.parametrize(
    ("pattern", "full"),
    [(3, [2, 5]), (1, [0, 1, 2, 3, 4, 5, 6]), (2, [1, 3, 5]), (0, []), ([True, False] * 3 + [True], [1, 3, 5]),
     ([1, 1, 0, 1, 1, 1, 1], [2]), ([True] * 7, [])],
)  # fmt: skip
def test_gemma3_pattern_in_the_file(pattern: Any, full: list[int]) -> None:
    keys = {"attention.sliding_window": 512, "attention.sliding_window_pattern": pattern}
    types = attention.gemma3_attention(Scope(keys), 7, 4, 64, 256)["layer_types"]
    assert [i for i, kind in enumerate(types) if kind == "full_attention"] == full


def test_gemma3_pattern_of_another_length_is_refused() -> None:
    keys = {"attention.sliding_window": 512, "attention.sliding_window_pattern": [True] * 6}
    with pytest.raises(MapError, match="6 items for 7 layers"):
        attention.gemma3_attention(Scope(keys), 7, 4, 64, 256)


def test_gemma3_without_a_window() -> None:
    ours = attention.gemma3_attention(Scope({}), 7, 4, 64, 256)
    assert ours["layer_types"] == ["full_attention"] * 7
    assert ours["sliding_window"] is None


def test_gemma3_scaling_is_for_full_layers() -> None:
    keys = {"attention.sliding_window": 512, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0}  # fmt: skip
    ours = attention.gemma3_attention(Scope(keys), 7, 4, 64, 256)
    assert ours["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }


FLOATS = [1e-6, 1e-5, 5e-7, 0.1, 500000.0, 1e6, 10000.0, 0.7, 3.4e38, 1.1754944e-38, 1e-45, 8.0, 1 / 3, -0.02, 0.0]


@pytest.mark.parametrize("value", FLOATS)
def test_floats_are_written_in_their_shortest_form(value: float) -> None:
    stored = np.float32(value)
    shortest = shortest_float32(float(stored))
    assert np.float32(shortest) == stored
    assert shortest == float(str(stored))  # numpy prints the shortest digits that name a float32
    assert json.loads(json.dumps(shortest)) == shortest


@pytest.mark.parametrize("seed", range(3))
def test_any_float32_survives(seed: int) -> None:
    bits = np.random.default_rng(seed).integers(0, 2**32, 2000, dtype=np.uint32)
    for stored in bits.view(np.float32):
        if np.isfinite(stored):
            assert np.float32(shortest_float32(float(stored))) == stored


def _tokens(**fields: Any) -> Any:
    return SimpleNamespace(**{"bos": 1, "end_ids": (2,), "pad": None, "suppressed": (), **fields})


def test_token_ids() -> None:
    assert config.token_ids(_tokens()) == {"bos_token_id": 1, "eos_token_id": 2}
    assert config.token_ids(_tokens(bos=None, end_ids=(2, 5), pad=0)) == {"eos_token_id": [2, 5], "pad_token_id": 0}
    assert config.token_ids(_tokens(bos=0, end_ids=())) == {"bos_token_id": 0}


def test_generation_config() -> None:
    metadata = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": math.nan,
        "general.sampling.min_p": True,
        "general.sampling.penalty_repeat": "1.1",
    }
    found = config.generation_config(_tokens(), metadata)
    assert found == {"bos_token_id": 1, "eos_token_id": 2, "do_sample": True, "temperature": 0.6, "top_k": 20}
    assert transformers.GenerationConfig(**found).top_k == 20
    assert "do_sample" not in config.generation_config(_tokens(), {})
    assert config.generation_config(_tokens(suppressed=(7, 3)), {})["suppress_tokens"] == [7, 3]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtype_under_both_names(dtype: str) -> None:
    written = config.with_dtype({"hidden_size": 8}, dtype)
    assert written == {"hidden_size": 8, "dtype": dtype, "torch_dtype": dtype}
    assert transformers.LlamaConfig(num_attention_heads=1, **written).dtype == getattr(torch, dtype)
