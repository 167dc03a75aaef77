"""What is packed how, from headers alone: groups, the table of what stays dense, tensor parallelism, config.json."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import match_name

from gguf2st import api
from gguf2st.config.quantization import quantization_config
from gguf2st.header import Header, Source, read_header
from gguf2st.plan import DENSE, Entry, Plan, vllm_modules
from gguf2st.plan.choice import choose
from gguf2st.quants.layout import TYPES
from tests.make_gguf import tiny_model
from tests.oracle.tiny import oracle_gguf


def declared(header: Header, qtype: Callable[[str], str]) -> Header:
    """The header with other types for the matrices that divide into their blocks."""

    def of(source: Source) -> Source:
        kind = TYPES[qtype(source.name)]
        if len(source.shape) < 2 or source.shape[-1] % kind.block or not source.name.endswith(".weight"):
            return source
        return dataclasses.replace(source, qtype=kind.name, nbytes=source.n_elements // kind.block * kind.nbytes)

    return dataclasses.replace(header, sources={name: of(source) for name, source in header.sources.items()})


def oracle(case: str, qtype: str | Callable[[str], str] = "Q4_0", **options: Any) -> Plan:
    of = qtype if callable(qtype) else lambda name: qtype
    return api.make_plan(declared(read_header([oracle_gguf(case)]), of), **{"repack": "exact", **options})


def notes(path: Path, qtype: str, repack: str, **sizes: Any) -> list[str]:
    tiny_model(path, "llama", qtype=qtype, tied=False, **sizes)
    return [note for note in api.make_plan(path, repack=repack).notes if "tensor parallel" in note]


def test_tensor_parallelism_needs_whole_groups(tmp_path: Path) -> None:
    """down_proj is divided by columns: 96 of them are three groups of 32. Rows of the others may be any number."""
    fits = notes(tmp_path / "a.gguf", "Q4_0", "exact", hidden=256, heads=8, kv_heads=2, ffn=256)
    assert fits == ["tensor parallel 1, 2, 4 and 8: every rank gets whole groups of the packed weights"]
    assert notes(tmp_path / "b.gguf", "Q4_0", "exact", hidden=256, heads=8, kv_heads=2, ffn=96) == [
        "tensor parallel 1: every rank gets whole groups of the packed weights",
        "not tensor parallel 2, 4 and 8: 96 columns in groups of 32 of model.layers.{0..1}.mlp.down_proj",
    ]


def test_tensor_parallelism_needs_whole_words_of_zero_points(tmp_path: Path) -> None:
    """Eight zero points of 4 bits share a word: 352 rows on eight ranks are 44 each. Two heads of 32 keys on eight
    ranks are one head each, and there each is four times."""
    found = notes(tmp_path / "a.gguf", "Q4_1", "int4", hidden=256, heads=8, kv_heads=2, ffn=352)
    assert found == [
        "tensor parallel 1: every rank gets whole groups of the packed weights",
        "not tensor parallel 8: 352 rows in words of 8 of model.layers.{0..1}.mlp.gate_proj, "
        "model.layers.{0..1}.mlp.up_proj",
        "not tensor parallel 2, 4 and 8: 352 columns in groups of 32 of model.layers.{0..1}.mlp.down_proj",
    ]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("case", "dense", "packed"),
    [
        ("qwen3moe", r"mlp\.gate$|embed_tokens", r"q_proj|experts\.\d+\.up_proj|lm_head"),
        ("jamba", r"mamba\.|lm_head|router", r"q_proj|down_proj"),
        ("falcon_h1", r"lm_head|conv1d", r"mamba\.in_proj|mamba\.out_proj|q_proj"),
        ("deepseek_v3", r"kv_b_proj|mlp\.gate$", r"o_proj|kv_a_proj"),
        ("minicpm3", r"q_a_proj", r"kv_a_proj|kv_b_proj|o_proj"),
        ("qwen35", r"in_proj_a|in_proj_b|conv1d", r"in_proj_qkv|in_proj_z"),
        ("glm5-next", r"self_attn\.|mlp\.gate$|gate_proj|up_proj", r"layers\.0\.mlp\.down_proj|lm_head"),
        ("bailingmoe3_q_lora", r"q_a_proj|kv_a_proj|kv_b_proj", r"o_proj|dense|g_proj|f_proj|down_proj|lm_head"),
        ("kimi_linear", r"layers\.0\.self_attn\.[qkvb]_proj|f_[ab]_proj", r"layers\.2\.self_attn\.q_proj|o_proj"),
        ("kimi-k3", r"self_attn\.[qkvbg]_proj|[qf]_a_proj|f_b_proj|routed_expert_up_proj", r"o_proj|down_proj"),
    ],
)
def test_what_vllm_builds_without_quantization_is_dense(case: str, dense: str, packed: str) -> None:
    """Spot checks of the table, which tests/vllm/test_modules.py holds to vLLM."""
    found = {e.module: e.scheme for e in oracle(case).entries if e.name.endswith(".weight") and len(e.shape) > 1}
    assert {m for m, scheme in found.items() if re.search(dense, m) and scheme != DENSE} == set()
    for part in packed.split("|"):
        assert any(scheme != DENSE for m, scheme in found.items() if re.search(part, m)), part


def test_reasons_of_the_table() -> None:
    assert vllm_modules.unquantized("LlamaForCausalLM", "blk.7.ffn_up.weight") == ""
    assert vllm_modules.unquantized("LlamaForCausalLM", "output.weight") == ""
    assert "JambaForCausalLM" in vllm_modules.unquantized("JambaForCausalLM", "output.weight")
    assert "routers" in vllm_modules.unquantized("anything", "blk.12.ffn_gate_inp.weight")
    for table in (vllm_modules.EVERYWHERE, *vllm_modules.BY_CLASS.values()):
        assert all(why and not why.startswith(" ") for why in table.values())


@pytest.mark.oracle
def test_layers_that_must_be_alike(tmp_path: Path) -> None:
    """vLLM looks Falcon H1's mamba up by another layer's number: one layer in 8 bits makes all of them."""
    plan = oracle("falcon_h1", lambda name: "Q8_0" if name == "blk.1.ssm_in.weight" else "Q4_0")
    assert {e.scheme for e in plan.entries if e.module.endswith("mamba.in_proj")} == {"int8_g32"}
    assert {e.scheme for e in plan.entries if e.module.endswith("mamba.out_proj")} == {"int4_g32"}


@pytest.mark.oracle
def test_experts_without_a_gate() -> None:
    """vLLM 0.32 asks for the gate by the name None."""
    targets = quantization_config(oracle("nemotron_h_moe"))["config_groups"]["int4_g32"]["targets"]
    for name in ("up_proj", "down_proj", "None"):
        assert any(match_name(f"backbone.layers.1.mixer.experts.0.{name}", t) for t in targets), name


@pytest.mark.oracle
@pytest.mark.parametrize("case", ["llama", "qwen3moe", "falcon_h1", "bert", "gemma3n", "phi_3", "exaone", "qwen35moe"])
def test_targets_say_what_was_chosen_and_nothing_else(case: str) -> None:
    """As compressed-tensors matches them, for layers that differ."""

    def qtype(name: str) -> str:
        return ("Q4_0", "Q8_0", "F32")[sum(name.encode()) % 3]

    plan = oracle(case, qtype)
    config = quantization_config(plan)
    parsed = QuantizationConfig.model_validate(config)
    for e in plan.entries:
        if e.name.endswith(".weight") and len(e.shape) > 1:
            found = [n for n, g in parsed.config_groups.items() if any(match_name(e.module, t) for t in g.targets)]
            assert found == ([] if e.scheme == DENSE else [e.scheme]), e.module
    for group in config["config_groups"].values():
        for target in group["targets"]:
            pattern = target.removeprefix("re:")
            # What vLLM fuses ends in a member's name: a dot must stand before it.
            assert pattern.startswith(r"(.*\.)?"), target
            for fused in ("qkv_proj", "gate_up_proj", "model.layers.0.self_attn.qkv_proj", "x.mlp.gate_up_proj"):
                assert not re.match(pattern, fused) or case == "phi_3", target


def test_a_scheme_falls_back_to_the_next(tmp_path: Path) -> None:
    """A weight of several tensors of different types has no packed zero points, which lie across rows."""
    path = tiny_model(tmp_path / "m.gguf", "llama", qtype=lambda n: "Q4_1" if "attn_q" in n else "Q5_1", hidden=64)
    plan = api.make_plan(path)
    q, k, v = (f"blk.0.attn_{p}.weight" for p in "qkv")
    joined = Entry("model.layers.0.self_attn.qkv_proj.weight", (q, k, v), (("concat",),), (128, 64), True)
    one = Entry("model.layers.0.self_attn.kv_proj.weight", (k, v), (("concat",),), (64, 64), True)
    found = choose(dataclasses.replace(plan, entries=(joined, one), notes=()), repack="int4")
    assert [e.scheme for e in found.entries] == ["int8_g32", "int4_asym_g32"]


def test_a_map_that_names_no_modules_is_taken_to_have_the_usual_ones(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "m.gguf", "llama", qtype=lambda n: "Q8_0" if "attn_v" in n else "Q4_0")
    plan = dataclasses.replace(api.make_plan(path), fused={}, notes=())
    found = {e.module.rpartition(".")[2]: e.scheme for e in choose(plan, repack="exact").entries}
    assert found["q_proj"] == found["k_proj"] == found["v_proj"] == "int8_g32"
    assert found["o_proj"] == found["up_proj"] == "int4_g32"
