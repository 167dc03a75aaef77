"""`check` tells what each `--repack` mode would give: the sizes are those of the conversion itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import gguf2st
from gguf2st.cli import cli
from gguf2st.schemes import SCHEMES
from gguf2st.serving import hardware, preflight
from tests.make_gguf import tiny_model


def weight_nbytes(folder: Path) -> int:
    """Of all tensors, without headers."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with open(file, "rb") as f:
            total += file.stat().st_size - 8 - int.from_bytes(f.read(8), "little")
    return total


@pytest.mark.parametrize(
    ("qtype", "modes"),
    [
        ("F16", []),
        ("Q4_0", [("exact", {"int4_g32"})]),  # near and int4 give the same
        ("Q4_1", [("near", {"int8_g32"}), ("int4", {"int4_asym_g32"})]),
        (
            lambda name: "Q8_0" if "ffn" in name else "Q4_1",
            [("exact", {"int8_g32"}), ("near", {"int8_g32"}), ("int4", {"int8_g32", "int4_asym_g32"})],
        ),
    ],
    ids=["F16", "Q4_0", "Q4_1", "mixed"],
)
def test_repackings(qtype: object, modes: list[tuple[str, set[str]]], tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m.gguf", "qwen3", qtype=qtype, tied=False)  # type: ignore[arg-type]
    found = preflight.preflight_source(source)
    assert [(r.mode, set(r.formats)) for r in found.repackings] == modes
    gguf2st.convert(source, tmp_path / "none")
    assert found.weights_nbytes == weight_nbytes(tmp_path / "none")
    for one in found.repackings:
        gguf2st.convert(source, tmp_path / one.mode, repack=one.mode)
        assert one.weights_nbytes == weight_nbytes(tmp_path / one.mode)
        assert one.dtype == json.loads((tmp_path / one.mode / "config.json").read_text())["dtype"]
        assert one.kernels.keys() == one.formats.keys()
        assert 0 < sum(one.formats.values()) < one.weights_nbytes


KIMI = {
    "num_hidden_layers": 4,
    "num_attention_heads": 96,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4]},
    "model_max_length": 1000,
}


@pytest.mark.parametrize(
    ("config", "nbytes"),
    [
        (KIMI, 1 * 576 * 2 * 1000),
        ({**KIMI, "model_max_length": None, "max_position_embeddings": 2000}, 1 * 576 * 2 * 2000),
        ({**KIMI, "linear_attn_config": {}, "layer_types": ["linear_attention", "full_attention"] * 2}, 2 * 576 * 2000),
        ({**KIMI, "linear_attn_config": None, "layer_types": ["deepseek_sparse_attention"] * 4}, 4 * 576 * 2000),
    ],
)
def test_layers_with_linear_attention_have_no_cache_that_grows(config: dict[str, Any], nbytes: int) -> None:
    """Of the others each keeps 512 + 64 values of 16 bits a token."""
    assert preflight.preflight(config, dtype="bfloat16", weights_nbytes=1).kv_nbytes == nbytes


@pytest.mark.parametrize(("model_type", "read"), [("llama", True), ("kimi_linear", True), ("deepseek", False)])
def test_configurations_that_only_a_repository_can_read(model_type: str, read: bool) -> None:
    """transformers 5.19 has the first, vLLM 0.32 the second, and neither the third, whose class vLLM has."""
    config = {"architectures": ["DeepseekForCausalLM"], "model_type": model_type}
    found = preflight.preflight(config, dtype="bfloat16", weights_nbytes=1)
    assert found.served == "native"
    assert ("--hf-config-path" in found.served_text) is not read


GPUS = "GPUs of compute capability 8.0 (Ampere) and later"


@pytest.mark.parametrize(
    ("hf_class", "config", "no_cpu"),
    [
        ("Qwen4ExpForCausalLM", {}, "sparse attention has kernels for GPUs only"),
        ("KimiLinearForCausalLM", {}, "its linear attention (KDA) has Triton kernels only"),
        ("Glm5NextForCausalLM", {}, "its linear attention (KDA) has Triton kernels only"),
        ("DeepseekV4ForCausalLM", {}, "its kernels there want AMX and a Triton for CPUs"),
        ("DeepseekV32ForCausalLM", {}, "it refuses sparse attention there"),
        ("MambaForCausalLM", {}, "Mamba layers of the first kind fail there"),
        ("NemotronHForCausalLM", {"n_routed_experts": 8}, "experts without a gate have no kernel there"),
        ("NemotronHForCausalLM", {}, ""),
        ("Step3p5ForCausalLM", {"swiglu_limits": [0, 7.0]}, "experts with a clamped SwiGLU have no kernel there"),
        ("Step3p5ForCausalLM", {"swiglu_limits": [0, 0]}, ""),
        ("LlamaForCausalLM", {}, ""),
        ("Qwen3NextForCausalLM", {}, ""),
        ("Mamba2ForCausalLM", {}, ""),
    ],
)
def test_classes_that_run_on_no_cpu(hf_class: str, config: dict[str, Any], no_cpu: str) -> None:
    """tests/vllm/test_cpu.py lets vLLM itself say so."""
    found = preflight.preflight(config | {"architectures": [hf_class]}, dtype="bfloat16", weights_nbytes=1)
    assert found.format_text == (f"{GPUS}; no CPU: {no_cpu}" if no_cpu else f"CPUs, and {GPUS}")


def test_a_class_that_vllm_lacks_runs_on_nothing() -> None:
    found = preflight.preflight({"architectures": ["Grok1ForCausalLM"]}, dtype="bfloat16", weights_nbytes=1)
    assert found.format_text == "on nothing, as it has no class"


def test_what_is_named_beside_the_maps_is_vllms_too() -> None:
    """No class is spelled otherwise than vLLM does."""
    assert set(preflight.read_table()["native"]) >= hardware.NO_CPU.keys()


@pytest.mark.parametrize(
    ("scheme", "experts", "no_cpu", "text"),
    [
        ("int4_g32", False, "", "GPUs from 7.5 (kernels: Marlin; Humming on 9.0) and CPUs"),
        (
            "int4_g32",
            True,
            "",
            "GPUs from 7.5 (kernels: Marlin; Humming on 9.0) and CPUs with AMX",
        ),
        (
            "int4_g32",
            True,
            "a reason",
            "GPUs from 7.5 (kernels: Marlin; Humming on 9.0), no CPU",
        ),
        (
            "int8_g32",
            False,
            "a reason",
            "GPUs from 7.5 (kernels: Marlin; Humming on 9.0), no CPU",
        ),
    ],
)
def test_packed_formats_of_such_classes(scheme: str, experts: bool, no_cpu: str, text: str) -> None:
    assert hardware.kernels_of(scheme, experts=experts, no_cpu=no_cpu) == text


def test_every_scheme_says_what_serves_it() -> None:
    assert hardware.KERNELS.keys() == SCHEMES.keys()


def test_check_shows_them(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m.gguf", qtype="Q4_1", tied=False, hidden=96, heads=6, kv_heads=6)
    shown = CliRunner().invoke(cli, ["check", str(source)])
    assert shown.exit_code == 0
    assert "--repack near gives " in shown.output
    told = "int4_asym_g32 runs on GPUs from 7.5 (kernels: Marlin; Humming on 9.0) and CPUs"
    assert f"; {told}; not tensor parallel" in shown.output
    told = json.loads(CliRunner().invoke(cli, ["check", str(source), "--json"]).output)
    near, int4 = told["serving"]["repackings"]
    assert (near["mode"], int4["mode"]) == ("near", "int4")
    assert near["formats"].keys() == {"int8_g32"}
    assert "96 columns in groups of 32" in near["notes"][0]
