"""Files of Gemma, Phi, OLMoE, StableLM and MiniCPM that today's converter does not write, or cannot."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file
from torch import Tensor

import gguf2st
from gguf2st.header import read_header
from gguf2st.plan import Plan
from gguf2st.plan.build import build
from tests.oracle.llamacpp import LlamaCpp, in_child
from tests.oracle.rewrite import rewritten
from tests.oracle.tiny import oracle_gguf, original, prepare

transformers: Any = transformers_module  # its constructors carry no types
pytestmark = pytest.mark.oracle

Array = npt.NDArray[Any]
Metadata = dict[str, Any]
Edit = Callable[[Metadata, dict[str, Array]], None]

IDS = torch.arange(5, 45)[None]


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """All checkpoints at once: the start of the converter costs more than the conversions."""
    others = ("stablelm_parallel", "olmoe", "gemma2_odd", "minicpm", "gemma_embedding")
    assert not prepare(sorted({*others, *SHARED, *(case for case, _, _ in BAD.values())}))


def converted(path: Path, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and config.json."""
    gguf2st.convert(path, folder, dtype="float32")
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def before(case: str) -> dict[str, Tensor]:
    return load_file(original(case) / "model.safetensors")


def planned(path: Path) -> Plan:
    return build(read_header([path]))


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(found) == sorted(expected)
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []


def assert_llama_cpp_agrees(path: Path, folder: Path, tolerance: float) -> None:
    """llama.cpp computes of the file what transformers computes of the folder made of it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(IDS).logits[0]
    found = torch.from_numpy(in_child(_logits, path))
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def _logits(path: Path) -> npt.NDArray[np.float32]:
    with LlamaCpp(path, n_ctx=64, n_threads=1) as model:
        return model.logits(IDS[0].tolist())


@pytest.fixture
def llama_cpp_s_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers with llama.cpp's GELU, a float16 table, and its deviation of n values, which divides by n - 1.

    In 30 layers as narrow as ours these two make 3 of a logit; in layers of thousands the second is nothing.
    """
    gelu, std = torch.nn.functional.gelu, torch.std

    def rounded_gelu(x: Tensor, approximate: str = "none") -> Tensor:
        return gelu(x.half().float(), approximate=approximate).half().float()

    monkeypatch.setattr(torch.nn.functional, "gelu", rounded_gelu)
    monkeypatch.setattr(torch, "std", lambda x, **options: std(x, **{**options, "unbiased": True}))


def _random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def test_stablelm_with_a_norm_per_head(tmp_path: Path) -> None:
    """StableLM 2 12B. The converter of this release drops the norms and stops; earlier ones stacked them so."""
    heads, kv_heads, head_dim, layers = 4, 2, 16, 3
    norms = {
        f"blk.{i}.attn_{kind}_norm.weight": 1 + 0.2 * _random(n, head_dim)
        for i in range(layers)
        for kind, n in (("q", heads), ("k", kv_heads))
    }
    path = rewritten("stablelm_parallel", tmp_path / "m.gguf", lambda _, tensors: tensors.update(norms))
    found, config = converted(path, tmp_path / "out")
    expected = before("stablelm_parallel") | {
        f"model.layers.{i}.self_attn.{kind}_layernorm.norms.{head}.weight": torch.from_numpy(row)
        for i in range(layers)
        for kind in "qk"
        for head, row in enumerate(norms[f"blk.{i}.attn_{kind}_norm.weight"])
    }
    assert_same(found, expected)
    assert config["qk_layernorm"]
    assert_llama_cpp_agrees(path, tmp_path / "out", 1e-5)


SHARED = {"gemma3n_e2b": (30, 20, [32] * 30), "gemma4_per_layer": (12, 6, [32, 32, 32, 32, 32, 64] * 2)}
"""Case -> layers, the first that shares, head widths."""


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.usefixtures("llama_cpp_s_arithmetic")
def test_keys_and_values_that_nothing_reads_are_kept(case: str, tmp_path: Path) -> None:
    """Published checkpoints have them in layers that use others'; transformers does not write them."""
    layers, first, widths = SHARED[case]
    unread = {
        f"blk.{i}.attn_{x}.weight": _random(*shape)
        for i in range(first, layers)
        for x, shape in (("k", (2 * widths[i], 64)), ("v", (2 * widths[i], 64)), ("k_norm", (widths[i],)))
    }
    path = rewritten(case, tmp_path / "m.gguf", lambda _, tensors: tensors.update(unread))
    found, _ = converted(path, tmp_path / "out")
    hf = {"attn_k": "k_proj", "attn_v": "v_proj", "attn_k_norm": "k_norm"}
    expected = before(case)
    for name, values in unread.items():
        i, x = name.split(".")[1:3]
        expected[f"model.layers.{i}.self_attn.{hf[x]}.weight"] = torch.from_numpy(values)
    assert_same(found, expected)
    assert_llama_cpp_agrees(path, tmp_path / "out", 5e-2)


def _split_phi3(_: Metadata, tensors: dict[str, Array]) -> None:
    for i in range(2):
        q, k, v = np.split(tensors.pop(f"blk.{i}.attn_qkv.weight"), [64, 96])
        tensors |= {f"blk.{i}.attn_q.weight": q, f"blk.{i}.attn_k.weight": k, f"blk.{i}.attn_v.weight": v}


def _single_experts(_: Metadata, tensors: dict[str, Array]) -> None:
    for name in [name for name in tensors if "_exps." in name]:
        block, i, stem = name.split(".")[:3]
        tensors |= {
            f"{block}.{i}.{stem.removesuffix('_exps')}.{e}.weight": np.ascontiguousarray(expert)
            for e, expert in enumerate(tensors.pop(name))
        }


@pytest.mark.parametrize(("case", "edit"), [("phi_3", _split_phi3), ("olmoe", _single_experts)])
def test_other_layouts_give_the_same_tensors(case: str, edit: Edit, tmp_path: Path) -> None:
    found, _ = converted(rewritten(case, tmp_path / "m.gguf", edit), tmp_path / "out")
    assert_same(found, before(case))


def _without(*keys: str) -> Edit:
    def edit(metadata: Metadata, _: dict[str, Array]) -> None:
        for key in keys:
            del metadata[key]

    return edit


def test_gemma2_from_before_its_keys(tmp_path: Path) -> None:
    """Then all files were of published models, whose values transformers has as defaults."""
    keys = ("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")
    plan = planned(rewritten("gemma2_odd", tmp_path / "m.gguf", _without(*(f"gemma2.{key}" for key in keys))))
    published = transformers.Gemma2Config()
    assert not plan.problems
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window"):
        assert plan.config[key] == getattr(published, key)
        assert [note for note in plan.notes if note.startswith(f"{key} = ") and "assumed" in note]


@pytest.mark.parametrize("case", ["gemma2_odd", "gemma3"])
def test_the_scale_of_queries_that_no_file_holds_is_said(case: str) -> None:
    assert [note for note in planned(oracle_gguf(case)).notes if note.startswith("query_pre_attn_scalar = ")]


def test_minicpm_from_before_its_keys(tmp_path: Path) -> None:
    """scale_emb 12, scale_depth 1.4 and dim_model_base 256 of MiniCPM 1B and 2B."""
    keys = ("minicpm.embedding_scale", "minicpm.residual_scale", "minicpm.logit_scale")
    plan = planned(rewritten("minicpm", tmp_path / "m.gguf", _without(*keys)))
    assert not plan.problems
    assert plan.config["embedding_multiplier"] == 12
    assert plan.config["residual_multiplier"] == pytest.approx(1.4 / math.sqrt(4))
    assert plan.config["logits_scaling"] == 64 / 256
    assert sum("assumed" in note for note in plan.notes) == 3


def test_embedding_heads_of_sentence_transformers_are_left_behind_with_a_reason(tmp_path: Path) -> None:
    def edit(metadata: Metadata, tensors: dict[str, Array]) -> None:
        metadata["gemma-embedding.dense_2_feat_out"] = np.uint32(96)
        tensors["dense_2.weight"] = _random(96, 64)

    plan = planned(rewritten("gemma_embedding", tmp_path / "m.gguf", edit))
    assert not plan.problems
    assert not plan.unmapped
    assert "2_Dense" in plan.dropped["dense_2.weight"]


def _set(key: str, value: Any) -> Edit:
    return lambda metadata, _: metadata.update({key: value})


def _drop(name: str) -> Edit:
    def edit(_: Metadata, tensors: dict[str, Array]) -> None:
        del tensors[name]

    return edit


def _reorder_rope_freqs(_: Metadata, tensors: dict[str, Array]) -> None:
    tensors["rope_freqs.weight"] = tensors["rope_freqs.weight"][::-1].copy()


BAD: dict[str, tuple[str, Edit, str]] = {
    "one set of divisors": ("phi_3_longrope", _drop("rope_factors_long.weight"), "rope_factors_long.weight is missing"),
    "longrope without divisors": ("phi_3", _set("phi3.rope.scaling.type", "longrope"), "no rope_factors_long"),
    "another factor on the attention": (
        "phi_3_longrope",
        _set("phi3.rope.scaling.attn_factor", np.float32(2)),
        "attn_factor",
    ),
    "more rotary dimensions than a head has": (
        "phi2",
        _set("phi2.rope.dimension_count", np.uint32(18)),
        "dimension_count",
    ),
    "an odd number of rotary dimensions": ("phi2", _set("phi2.rope.dimension_count", np.uint32(7)), "dimension_count"),
    "an epsilon the class has not": ("olmo", _set("olmo.attention.layer_norm_epsilon", np.float32(1e-6)), "epsilon"),
    "a norm is missing": ("stablelm", _drop("blk.0.ffn_norm.weight"), "ffn_norm is missing"),
    "several key/value heads": ("starcoder", _set("starcoder.attention.head_count_kv", np.uint32(2)), "key/value head"),
    "a frequency scaling of no known form": ("gemma4", _reorder_rope_freqs, "rope_freqs.weight is not"),
    "sparsity of other layers": (
        "gemma3n",
        _set("gemma3n.activation_sparsity_scale", [1.0]),
        "activation_sparsity_scale",
    ),
    "a rope base for windows": (
        "cohere2",
        _set("cohere2.rope.freq_base_swa", np.float32(1e6)),
        "rope base of their own",
    ),
    "a causal embedding model": (
        "gemma_embedding",
        _set("gemma-embedding.attention.causal", True),
        "attention is causal",
    ),
    "three experts a token": ("phimoe", _set("phimoe.expert_used_count", np.uint32(3)), "two experts"),
}


@pytest.mark.parametrize(("case", "edit", "words"), BAD.values(), ids=BAD)
def test_what_config_json_cannot_say_is_a_problem(case: str, edit: Edit, words: str, tmp_path: Path) -> None:
    plan = planned(rewritten(case, tmp_path / "m.gguf", edit))
    assert [line for line in plan.problems if words in line], plan.problems
