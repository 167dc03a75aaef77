"""`convert(repack=...)`, end to end: what compressed-tensors reads equals what gguf-py reads from the source, exactly
or within the stated bound; modules that vLLM loads as one are packed alike; config.json says so."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

import gguf2st
from gguf2st import api, execute
from gguf2st.errors import SchemeError, SourceError, UsageError
from gguf2st.kernels import cpu, device
from gguf2st.output.small_files import configurations
from gguf2st.plan.choice import choose
from gguf2st.quants.layout import TYPES
from gguf2st.report import Report
from gguf2st.schemes import targets
from tests.make_gguf import ARCHS, quantize, tiny_model
from tests.oracle import repacked
from tests.oracle.dequantized import hf_tensors
from tests.oracle.rewrite import rewritten
from tests.oracle.terminal import run

EXACT = {
    "Q4_0": "int4_g32",
    "Q5_0": "int8_g32",
    "Q8_0": "int8_g32",
    "IQ4_NL": "int8_g32",
    "TQ1_0": "int4_g128",
    "TQ2_0": "int4_g128",
    "MXFP4": "mxfp4",
    "NVFP4": "nvfp4",
}
"""What holds the same numbers as each type."""
NEAR = ("Q4_1", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ3_S")
AFFINE = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")


def model(path: Path, arch: str = "llama", qtype: Any = "Q4_0", **options: Any) -> Path:
    """Rows of 256 columns, which every type divides into blocks."""
    sizes: dict[str, Any] = {"hidden": 256, "heads": 8, "kv_heads": 4, "head_dim": 32, "ffn": 256, "expert_ffn": 256}
    return tiny_model(path, arch, **{"layers": 2, "tied": False, "qtype": qtype, **sizes, **options})


def convert(source: Path, out: Path, **options: Any) -> Report:
    return gguf2st.convert(source, out, threads=1, **options)


def originals(source: Path) -> dict[str, Tensor]:
    """HF name -> float32, by gguf-py."""
    return dict(hf_tensors(source, torch.float32))


def relative_rmse(found: Tensor, expected: Tensor) -> float:
    difference = found.double() - expected.double()
    return math.sqrt(float(difference.square().sum() / expected.double().square().sum()))


def same_bits(found: Tensor, expected: Tensor) -> bool:
    # ggml's -0 is 0 where codes are integers; both are the same number.
    return torch.equal((found + 0.0).view(torch.int32), (expected + 0.0).view(torch.int32))


@pytest.mark.parametrize(
    ("arch", "qtype"), [("llama", q) for q in EXACT] + [(a, q) for a in ARCHS for q in ("Q4_0", "Q8_0") if a != "llama"]
)
def test_exact_weights_are_gguf_pys(arch: str, qtype: str, tmp_path: Path) -> None:
    source, out = model(tmp_path / "m.gguf", arch, qtype), tmp_path / "out"
    report = convert(source, out, repack="exact")
    found, expected = repacked.weights(out), originals(source)
    linears = {n for n in expected if n.endswith("_proj.weight")} | {"lm_head.weight"}
    assert found.keys() == linears
    assert set(repacked.groups(out).values()) == {EXACT[qtype]}
    for name, weight in found.items():
        assert same_bits(weight, expected[name]), name
    dtype = torch.bfloat16 if arch == "gemma3" else torch.float16
    for name, tensor in repacked.stored(out).items():
        if name in expected:
            assert torch.equal(tensor, expected[name].to(dtype)), name
    assert repacked.untargeted(out) == set()
    assert report.rel_rmse == {}
    assert {t.result for t in report.types if t.scheme != "dense"} == {"exact"}


@pytest.mark.parametrize("qtype", NEAR)
def test_near_weights_are_within_the_bound_and_the_report_says_how_far(qtype: str, tmp_path: Path) -> None:
    source, out = model(tmp_path / "m.gguf", "llama", qtype), tmp_path / "out"
    report = convert(source, out, repack="near")
    found, expected = repacked.weights(out), originals(source)
    assert set(repacked.groups(out).values()) == {"int8_g32"}
    exact = {row.qtype for row in report.types if row.result == "exact"}
    if qtype in exact:  # its numbers fit into 8 bits and a scale after all
        assert all(same_bits(weight, expected[name]) for name, weight in found.items())
        return
    assert report.rel_rmse.keys() == found.keys()
    for name, weight in found.items():
        measured = relative_rmse(weight, expected[name])
        assert measured <= 0.01, name
        assert report.rel_rmse[name] == pytest.approx(measured, rel=1e-4), name
    (row,) = (t for t in report.types if t.scheme == "int8_g32")
    assert (row.result, row.worst_rel_rmse) == ("bounded", max(report.rel_rmse.values()))


@pytest.mark.parametrize("qtype", AFFINE)
def test_int4_of_types_with_a_minimum(qtype: str, tmp_path: Path) -> None:
    source, out = model(tmp_path / "m.gguf", "llama", qtype), tmp_path / "out"
    report = convert(source, out, repack="int4")
    found, expected = repacked.weights(out), originals(source)
    assert set(repacked.groups(out).values()) == {"int4_asym_g32"}
    for name, weight in found.items():
        measured = relative_rmse(weight, expected[name])
        assert measured < 0.15, name
        assert report.rel_rmse[name] == pytest.approx(measured, rel=1e-4, abs=1e-7), name


def test_int4_keeps_what_has_no_minimum(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf", qtype=lambda n: "Q6_K" if "ffn" in n else "Q4_K")
    convert(source, tmp_path / "out", repack="int4")
    by_leaf = {m.rpartition(".")[2]: group for m, group in repacked.groups(tmp_path / "out").items()}
    assert by_leaf["q_proj"] == by_leaf["o_proj"] == by_leaf["lm_head"] == "int4_asym_g32"
    assert by_leaf["up_proj"] == by_leaf["down_proj"] == "int8_g32"


Qtype = Callable[[str], str]


def of(default: str, **by_part: str) -> Qtype:
    """The type of a tensor by a part of its name; `_` stands for a dot."""
    return lambda name: next((q for part, q in by_part.items() if part in name.replace(".", "_")), default)


MIXED: Mapping[str, tuple[str, Qtype, str, dict[str, str]]] = {
    "Q4_K_M's attn_v": (
        "near",
        of("Q4_K", attn_v="Q6_K"),
        "llama",
        {"q_proj": "int8_g32", "k_proj": "int8_g32", "v_proj": "int8_g32", "o_proj": "int8_g32"},
    ),
    "a promotion, to the last bit": (
        "exact",
        of("Q4_0", attn_v="Q8_0"),
        "llama",
        {"q_proj": "int8_g32", "k_proj": "int8_g32", "v_proj": "int8_g32", "o_proj": "int4_g32", "up_proj": "int4_g32"},
    ),
    "one member is not quantized": (
        "exact",
        of("Q4_0", attn_k="F16"),
        "llama",
        {"q_proj": "", "k_proj": "", "v_proj": "", "o_proj": "int4_g32", "gate_proj": "int4_g32"},
    ),
    "one member loses something": (
        "exact",
        of("Q4_0", ffn_up="Q4_K"),
        "qwen2",
        {"gate_proj": "", "up_proj": "", "down_proj": "int4_g32", "q_proj": "int4_g32"},
    ),
    "no scheme for both": (
        "exact",
        of("Q4_0", ffn_up="MXFP4"),
        "llama",
        {"gate_proj": "", "up_proj": "", "down_proj": "int4_g32"},
    ),
    "zero points beside none": (
        "int4",
        of("Q4_K", attn_q="Q4_0"),
        "llama",
        {"q_proj": "int4_asym_g32", "k_proj": "int4_asym_g32", "o_proj": "int4_asym_g32"},
    ),
    "experts": (
        "near",
        of("Q4_0", ffn_down_exps="Q6_K"),
        "qwen3moe",
        {"gate_proj": "int8_g32", "up_proj": "int8_g32", "down_proj": "int8_g32", "q_proj": "int4_g32"},
    ),
    "experts, one matrix not quantized": (
        "near",
        of("Q4_0", ffn_down_exps="F16"),
        "qwen3moe",
        {"gate_proj": "", "up_proj": "", "down_proj": "", "o_proj": "int4_g32"},
    ),
}


@pytest.mark.parametrize("case", MIXED)
def test_what_vllm_loads_as_one_is_packed_alike(case: str, tmp_path: Path) -> None:
    repack, qtype, arch, wanted = MIXED[case]
    source, out = model(tmp_path / "m.gguf", arch, qtype), tmp_path / "out"
    report = convert(source, out, repack=repack)
    found = repacked.groups(out)
    for module in {n.removesuffix(".weight") for n in originals(source)}:
        leaf = module.rpartition(".")[2]
        assert found.get(module, "") == wanted.get(leaf, found.get(module, "")), module
    assert repacked.untargeted(out) == set()
    expected = originals(source)
    for name, weight in repacked.weights(out).items():
        assert relative_rmse(weight, expected[name]) <= (0.15 if repack == "int4" else 0.01), name
        if repack == "exact":
            assert same_bits(weight, expected[name]), name
    told = " ".join(f"{modules}: {why}" for modules, why in report.choices.items())
    assert "v_proj (Q8_0)" in told or case != "a promotion, to the last bit"
    if "" in wanted.values():
        assert "self_attn" in told or "mlp" in told


def test_reasons_name_the_member_that_is_the_cause(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf", qtype=of("Q4_0", blk_1_attn_k="F16", blk_0_ffn_up="Q6_K"))
    choices = gguf2st.convert(source, repack="exact", dry_run=True).choices
    with_k = "dequantized: together with k_proj, which is not packed: its type is not quantized"
    assert choices == {
        "model.layers.1.self_attn.q_proj": with_k,
        "model.layers.1.self_attn.v_proj": with_k,
        "model.layers.0.mlp.gate_proj": (
            "dequantized: together with up_proj, which is not packed: no scheme holds the numbers of Q6_K"
        ),
        "model.layers.0.mlp.up_proj": "dequantized: no scheme holds the numbers of Q6_K",
    }


def test_layers_that_differ_are_named(tmp_path: Path) -> None:
    """Twelve layers, so that 1 is not 10 or 11."""
    source = model(tmp_path / "m.gguf", layers=12, qtype=of("Q4_0", blk_1_ffn_down="Q8_0", blk_10_ffn_down="F16"))
    convert(source, tmp_path / "out", repack="exact")
    found = repacked.groups(tmp_path / "out")
    expected = {f"model.layers.{i}.mlp.down_proj": "int8_g32" if i == 1 else "int4_g32" for i in range(12) if i != 10}
    assert {m: g for m, g in found.items() if m.endswith("down_proj")} == expected
    assert repacked.untargeted(tmp_path / "out") == set()


def test_the_configuration_stays_small(tmp_path: Path) -> None:
    """As many targets for many experts and layers as for few."""
    tables = []
    for n, sizes in enumerate(({"layers": 2, "experts": 4}, {"layers": 5, "experts": 16})):
        source = model(tmp_path / f"{n}.gguf", "qwen3moe", **sizes)
        plan = api.make_plan(source, repack="exact")
        tables.append(configurations(plan)["config.json"]["quantization_config"])
    assert tables[0] == tables[1]


@pytest.mark.parametrize(("tied", "head"), [(False, "Q8_0"), (False, "F16"), (True, "")])
def test_embeddings_and_tied_heads_stay_16_bit(tied: bool, head: str, tmp_path: Path) -> None:
    qtype = of("Q4_0", token_embd="Q8_0", **({"output_weight": head} if head else {}))
    source, out = model(tmp_path / "m.gguf", tied=tied, qtype=qtype), tmp_path / "out"
    convert(source, out, repack="exact")
    tensors, table = repacked.stored(out), repacked.config_of(out)["quantization_config"]
    assert tensors["model.embed_tokens.weight"].dtype == torch.float16
    assert ("lm_head.weight_packed" in tensors) == (head == "Q8_0")
    assert ("lm_head.weight" in tensors) == (head == "F16")
    assert table["ignore"] == (["lm_head"] if head == "F16" else [])


def test_dtypes(tmp_path: Path) -> None:
    llama, gemma3 = model(tmp_path / "l.gguf", qtype="Q4_K"), model(tmp_path / "g.gguf", "gemma3", "Q4_K")

    def scales(source: Path, **options: Any) -> tuple[torch.dtype, str, Report]:
        report = convert(source, tmp_path / "out", overwrite=True, **options)
        dtype = repacked.stored(tmp_path / "out")["model.layers.0.mlp.up_proj.weight_scale"].dtype
        return dtype, repacked.config_of(tmp_path / "out")["dtype"], report

    assert scales(llama, repack="near")[:2] == (torch.float16, "float16")
    assert scales(llama, repack="near", dtype="bfloat16")[:2] == (torch.bfloat16, "bfloat16")
    *found, report = scales(gemma3, repack="near")
    assert found == [torch.bfloat16, "bfloat16"]
    assert any(note.startswith("bfloat16, not float16: ") for note in report.notes)
    with pytest.raises(UsageError, match="no kernel takes float32 scales"):
        convert(llama, tmp_path / "refused", repack="near", dtype="float32")
    with pytest.raises(UsageError, match="repack 'some' is unknown; there are none, exact, near, int4"):
        convert(llama, tmp_path / "refused", repack="some")
    assert not (tmp_path / "refused").exists()


def test_scales_that_are_exact_stay_exact_in_a_bfloat16_model(tmp_path: Path) -> None:
    """The loader casts them; the file keeps what the source says."""
    source = model(tmp_path / "m.gguf", "gemma3", "Q8_0")
    convert(source, tmp_path / "out", repack="exact")
    assert repacked.stored(tmp_path / "out")["model.layers.0.mlp.up_proj.weight_scale"].dtype == torch.float16


@pytest.mark.parametrize("nbytes", [1, 3000, 20_000])
@pytest.mark.parametrize(("arch", "repack", "qtype"), [
    ("llama", "exact", "Q4_0"),
    ("llama", "int4", "Q4_K"),
    ("qwen3moe", "near", "Q6_K"),
    ("llama", "exact", "NVFP4"),
])  # fmt: skip
def test_chunks_and_threads_do_not_change_the_files(
    arch: str, repack: str, qtype: str, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of packed zero points is eight rows at least; a head of 32 rows ends within one."""
    source = model(tmp_path / "m.gguf", arch, qtype, layers=1)
    first = convert(source, tmp_path / "one", repack=repack)
    monkeypatch.setattr(execute, "CHUNK_NBYTES", nbytes)
    second = gguf2st.convert(source, tmp_path / "many", repack=repack, threads=3)
    for file in (tmp_path / "one").glob("*.safetensors"):
        assert (tmp_path / "many" / file.name).read_bytes() == file.read_bytes()
    assert second.rel_rmse.keys() == first.rel_rmse.keys()
    for name, rmse in second.rel_rmse.items():
        assert rmse == pytest.approx(first.rel_rmse[name], rel=1e-9)


def test_rows_that_do_not_fill_a_word(tmp_path: Path) -> None:
    """309 rows of the head: 39 words of zero points, the last with 5 of them."""
    vocab = 309
    source = model(tmp_path / "m.gguf", qtype="Q4_1", vocab=vocab)
    convert(source, tmp_path / "out", repack="int4")
    tensors = repacked.stored(tmp_path / "out")
    assert tensors["lm_head.weight_zero_point"].shape == (math.ceil(vocab / 8), 8)
    assert tensors["lm_head.weight_shape"].tolist() == [vocab, 256]
    head = "lm_head.weight"
    assert relative_rmse(repacked.weights(tmp_path / "out")[head], originals(source)[head]) < 0.15


def test_a_loss_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf", qtype="Q4_K")
    with pytest.raises(SchemeError, match=r"^(model|lm_head)\S* as int8_g32 differs by 0\.00\d+ \(relative rmse\)"):
        convert(source, tmp_path / "out", repack="near", max_rel_rmse=0.001)
    assert list(tmp_path.iterdir()) == [source], "nothing is left behind"
    convert(source, tmp_path / "out", repack="near", max_rel_rmse=0.02)
    with pytest.raises(SchemeError, match="int4_asym_g32 differs by"):
        convert(source, tmp_path / "small", repack="int4", max_rel_rmse=0.02)


@pytest.mark.parametrize("bound", [0, -1.0, math.nan, math.inf, -math.inf])
def test_the_bound_is_a_positive_number(bound: float, tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf")
    with pytest.raises(UsageError, match="max_rel_rmse is"):
        convert(source, tmp_path / "out", repack="near", max_rel_rmse=bound)
    with pytest.raises(UsageError, match="max_rel_rmse is"):
        gguf2st.verify(tmp_path, source, max_rel_rmse=bound)
    for command in (("convert", source, "-o", tmp_path / "out", "--repack", "near"), ("verify", tmp_path, "--against")):
        last = (source,) if command[0] == "verify" else ()
        refused = run(*command, *last, f"--max-rel-rmse={bound}")
        assert refused.code == 2
        assert "Traceback" not in refused.err
    assert not (tmp_path / "out").exists()


def test_a_bound_without_anything_that_it_bounds(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf")
    with pytest.raises(UsageError, match="nothing is repacked"):
        convert(source, tmp_path / "out", max_rel_rmse=0.01)
    refused = run("convert", source, "-o", tmp_path / "out", "--max-rel-rmse", "0.01")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: max_rel_rmse bounds what repacking loses, and nothing is repacked\n")
    assert list(tmp_path.iterdir()) == [source]
    convert(source, tmp_path / "out", repack="exact", max_rel_rmse=0.01)


def test_an_interrupted_conversion_goes_on_and_still_knows_the_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(tmp_path / "m.gguf", qtype="Q4_K", layers=3)
    options: dict[str, Any] = {"repack": "near", "max_shard_size": 700_000}
    straight = convert(source, tmp_path / "straight", **options)
    assert len(straight.shards) > 2
    with monkeypatch.context() as patch:
        calls, write = [], execute.ShardWriter.write
        patch.setattr(execute.ShardWriter, "write", lambda *a, **k: calls.append(a) or fail(calls) or write(*a, **k))
        with pytest.raises(SourceError, match="broken"):
            convert(source, tmp_path / "out", **options)
    again = convert(source, tmp_path / "out", **options)
    assert any("were finished by an earlier run" in note for note in again.notes)
    assert again.rel_rmse == straight.rel_rmse
    for file in straight.shards:
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()


def fail(calls: list[Any]) -> None:
    if len(calls) == 3:
        raise SourceError("broken")


def test_a_tighter_bound_counts_for_finished_shards_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(tmp_path / "m.gguf", qtype="Q4_K", layers=3)
    options: dict[str, Any] = {"repack": "near", "max_shard_size": 700_000}
    with monkeypatch.context() as patch:
        calls, write = [], execute.ShardWriter.write
        patch.setattr(execute.ShardWriter, "write", lambda *a, **k: calls.append(a) or fail(calls) or write(*a, **k))
        with pytest.raises(SourceError, match="broken"):
            convert(source, tmp_path / "out", **options)
    with pytest.raises(SchemeError, match="differs by"):
        convert(source, tmp_path / "out", **options, max_rel_rmse=1e-4)


def test_a_weight_that_is_not_a_number(tmp_path: Path) -> None:
    """The float16 scale of a block is NaN."""
    values = quantize(np.ones((256, 256), np.float32), "Q8_0").copy()
    values[7, :2] = np.array([np.nan], np.float16).view(np.uint8)
    tensors = {"blk.0.ffn_up.weight": (values, "Q8_0", (256, 256))}
    source = model(tmp_path / "m.gguf", qtype="Q8_0", extra_tensors=tensors)
    with pytest.raises(SourceError, match=r"blk\.0\.ffn_up\.weight \(Q8_0\) has at least \d+ weights that are NaN"):
        convert(source, tmp_path / "out", repack="exact")
    assert not (tmp_path / "out").exists()


def test_scales_beyond_float16(tmp_path: Path) -> None:
    """Numbers that bfloat16 holds and float16 does not: the way out is named, and works."""
    values = quantize(np.random.default_rng(1).standard_normal((256, 256), np.float32) * 3e6, "Q6_K")
    tensors = {"blk.0.ffn_down.weight": (values, "Q6_K", (256, 256))}
    source = model(tmp_path / "m.gguf", qtype="Q6_K", extra_tensors=tensors)
    assert np.isfinite(gguf.quants.dequantize(values, gguf.GGMLQuantizationType.Q6_K)).all()
    with pytest.raises(SchemeError, match="beyond the range of float16") as err:
        convert(source, tmp_path / "out", repack="near")
    assert err.value.hint == "use --dtype bfloat16"
    convert(source, tmp_path / "out", repack="near", dtype="bfloat16")


def test_columns_that_do_not_divide_into_groups(tmp_path: Path) -> None:
    """64 columns hold no group of 128."""
    plan = api.make_plan(model(tmp_path / "m.gguf", qtype=of("Q4_0", ffn_down="TQ2_0")), repack="exact")
    entries = tuple(
        dataclasses.replace(e, shape=(256, 64)) if e.name == "model.layers.0.mlp.down_proj.weight" else e
        for e in plan.entries
    )
    again = choose(dataclasses.replace(plan, entries=entries, notes=()), repack="exact")
    (entry,) = (e for e in again.entries if e.name == "model.layers.0.mlp.down_proj.weight")
    assert entry.scheme == "int4_g32", "the next best"


def test_nothing_to_pack_is_said(tmp_path: Path) -> None:
    report = convert(model(tmp_path / "m.gguf", qtype="F16"), tmp_path / "out", repack="near")
    assert "--repack near finds nothing to pack: cast" in report.notes
    assert "quantization_config" not in repacked.config_of(tmp_path / "out")


def test_sizes(tmp_path: Path) -> None:
    """Bits per weight: 4 + 16 / 32, 8 + 16 / 32, 4 + 16 / 32 + 4 / 32, and the shapes."""
    rows = {}
    for qtype, repack in (("Q4_0", "exact"), ("Q8_0", "exact"), ("Q4_K", "near"), ("Q4_K", "int4")):
        source = model(tmp_path / f"{qtype}.gguf", qtype=of(qtype, token_embd="F32"))
        report = convert(source, tmp_path / "out", repack=repack, overwrite=True)
        (row,) = (t for t in report.types if t.qtype == qtype)
        n_weights = sum(w.numel() for w in repacked.weights(tmp_path / "out").values())
        n_modules = len(repacked.groups(tmp_path / "out"))
        rows[qtype, repack] = 8 * (row.output_nbytes - 16 * n_modules) / n_weights
        assert report.output_nbytes == sum(t.numel() * t.itemsize for t in repacked.stored(tmp_path / "out").values())
        assert sum(t.output_nbytes for t in report.types) == report.output_nbytes
        assert report.bfloat16_nbytes == 2 * report.parameters
    expected = {("Q4_0", "exact"): 4.5, ("Q8_0", "exact"): 8.5, ("Q4_K", "near"): 8.5, ("Q4_K", "int4"): 4.625}
    assert rows == pytest.approx(expected, rel=1e-2)  # the vocabulary fills no whole word of zero points


def test_the_same_decoder_serves_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights are never dequantized on the way."""
    seen: list[str] = []

    def decode(qtype: str, dtype: str, blocks: Any, out: Any) -> None:
        seen.append(qtype)
        cpu.dequantize(qtype, dtype, blocks, out)

    monkeypatch.setattr(device, "decoder", lambda name: decode)
    convert(model(tmp_path / "m.gguf", qtype=of("Q4_0", token_embd="Q8_0")), tmp_path / "out", repack="exact")
    assert set(seen) == {"Q8_0", "F32"}


@pytest.mark.skipif(bool(device._cuda_devices()), reason="there is a CUDA device")
def test_without_a_cuda_device_repacking_on_one_is_refused(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf")
    refused = run("convert", source, "-o", tmp_path / "out", "--repack", "exact", "--device", "cuda")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: device cuda: the NVIDIA driver finds no device here")
    assert list(tmp_path.iterdir()) == [source]


def test_the_report_has_each_type_and_what_became_of_it(tmp_path: Path) -> None:
    """As JSON: tensors, bytes before and after, the result, the worst loss, and what the whole compares with."""
    types = of("Q4_K", attn_v="Q8_0", ffn_down="Q6_K", attn_output="Q4_0", token_embd="Q8_0")
    source, file = model(tmp_path / "m.gguf", qtype=types), tmp_path / "report.json"
    assert run("convert", source, "-o", tmp_path / "out", "--repack", "near", "--json", file).code == 0
    report = json.loads(file.read_text())
    rows = {(row["qtype"], row["scheme"]): row for row in report["types"]}
    assert {key: row["result"] for key, row in rows.items()} == {
        ("Q4_K", "int8_g32"): "bounded",
        ("Q6_K", "int8_g32"): "bounded",
        ("Q8_0", "int8_g32"): "exact",
        ("Q4_0", "int4_g32"): "exact",
        ("Q8_0", "dense"): "dequantized",
        ("F32", "dense"): "cast",
    }
    reader: Any = gguf.GGUFReader(source)
    for (qtype, scheme), row in rows.items():
        mine = [
            t
            for t in reader.tensors
            if t.tensor_type.name == qtype and (t.name == "token_embd.weight") == (scheme == "dense")
        ]
        mine = [t for t in reader.tensors if t.tensor_type.name == "F32"] if qtype == "F32" else mine
        assert (row["tensors"], row["nbytes"]) == (len(mine), sum(int(t.n_bytes) for t in mine)), qtype
        assert (row["worst_rel_rmse"] is not None) == (row["result"] == "bounded")
    written = sum(t.numel() * t.itemsize for t in repacked.stored(tmp_path / "out").values())
    assert sum(row["output_nbytes"] for row in report["types"]) == report["output_nbytes"] == written
    assert report["source_nbytes"] == sum(int(t.n_bytes) for t in reader.tensors)
    assert report["bfloat16_nbytes"] == 2 * sum(int(t.n_elements) for t in reader.tensors)


def test_the_help_says_what_is_lost() -> None:
    shown = run("convert", "--help").out
    for words in ("nothing: the same numbers", "up to 0.6%", "about 7%", "3 of 10 words"):
        assert words in shown
    exact, _, lossy = shown.partition("exact  ")[2].partition("near  ")
    named = [TYPES.keys() & re.findall(r"\w+", text.partition("vLLM loads")[0]) for text in (exact, lossy)]
    assert named[0] == {qtype for qtype in TYPES if targets("exact", qtype)}
    assert named[1] == {qtype for qtype in TYPES if next(iter(targets("int4", qtype)), "") == "int4_asym_g32"}


@pytest.mark.oracle
def test_the_experts_of_gpt_oss_keep_their_own_layout(tmp_path: Path) -> None:
    expected: dict[str, Tensor] = {}

    def to_mxfp4(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name, values in tensors.items():
            if "_exps.weight" in name:
                blocks = quantize(values, "MXFP4")
                tensors[name] = (blocks, "MXFP4", values.shape)
                values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4).reshape(values.shape)
                expected[name] = torch.from_numpy(np.asarray(values, np.float32))

    source, out = rewritten("gpt_oss", tmp_path / "m.gguf", to_mxfp4), tmp_path / "out"
    report = convert(source, out, repack="exact")
    found = repacked.gpt_oss_experts(out)
    for layer in range(2):
        gate, up = (expected[f"blk.{layer}.ffn_{part}_exps.weight"] for part in ("gate", "up"))
        both = torch.stack([gate, up], 2).flatten(1, 2)  # rows take turns
        prefix = f"model.layers.{layer}.mlp.experts"
        assert same_bits(found[f"{prefix}.gate_up_proj"], both.transpose(1, 2).contiguous())
        down = expected[f"blk.{layer}.ffn_down_exps.weight"]
        assert same_bits(found[f"{prefix}.down_proj"], down.transpose(1, 2).contiguous())
    config = repacked.config_of(out)
    assert config["quantization_config"]["quant_method"] == "mxfp4"
    assert "model.layers.*.self_attn.q_proj" in config["quantization_config"]["modules_to_not_convert"]
    assert config["dtype"] == "bfloat16"
    assert repacked.stored(out)["model.layers.0.self_attn.q_proj.weight"].dtype == torch.bfloat16
    assert {t.scheme for t in report.types if t.qtype == "MXFP4"} == {"gpt_oss_mxfp4"}
    with pytest.raises(UsageError, match="bfloat16 alone"):
        convert(source, tmp_path / "half", repack="exact", dtype="float16")


@pytest.mark.oracle
@pytest.mark.parametrize(("qkv", "gate", "group"), [("Q4_0", "Q4_0", "int4_g32"), ("Q8_0", "Q4_0", "int8_g32")])
@pytest.mark.parametrize("nbytes", [1 << 20, 1500])
def test_weights_of_several_tensors(
    qkv: str, gate: str, group: str, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen 3 Next's in_proj_qkvz: rows of two tensors, of one type or of two, regrouped: each chunk wants a few rows
    from here and there."""
    monkeypatch.setattr(execute, "CHUNK_NBYTES", nbytes)
    values: dict[str, Any] = {}

    def quantized(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        for part, qtype in (("attn_qkv", qkv), ("attn_gate", gate)):
            name = f"blk.0.{part}.weight"
            blocks = quantize(tensors[name], qtype)
            values[part] = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[qtype])
            tensors[name] = (blocks, qtype, tensors[name].shape)

    source = rewritten("qwen3next", tmp_path / "m.gguf", quantized)
    dense = tmp_path / "dense"
    convert(source, dense, dtype="float32")
    convert(source, tmp_path / "out", repack="exact")
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    found = repacked.weights(tmp_path / "out")
    assert found.keys() == {name}
    assert repacked.groups(tmp_path / "out") == {name.removesuffix(".weight"): group}
    assert same_bits(found[name], repacked.stored(dense)[name])
    rows = torch.from_numpy(np.concatenate([values["attn_qkv"], values["attn_gate"]]))
    assert torch.equal(found[name].sort(0).values, rows.sort(0).values), "the same rows in another order"


@pytest.mark.oracle
def test_experts_in_one_tensor_are_dequantized(tmp_path: Path) -> None:
    """Llama 4 stacks them, transposed."""

    def quantized(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name, values in tensors.items():
            if ("_exps.weight" in name or "attn_q." in name) and values.shape[-1] % 32 == 0:
                tensors[name] = (quantize(values, "Q4_0"), "Q4_0", values.shape)

    report = convert(rewritten("llama4", tmp_path / "m.gguf", quantized), tmp_path / "out", repack="exact")
    told = {why for modules, why in report.choices.items() if "experts" in modules}
    assert told == {"dequantized: the experts of a layer are one tensor here, not linear layers"}


def test_the_command_line_says_what_became_of_the_weights(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf", qtype=of("Q4_K", attn_v="Q6_K", token_embd="Q8_0"))
    done = run("convert", source, "-o", tmp_path / "out", "--repack", "near")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"Q4_K +\d+ +\S+ kB +-> int8_g32 +\S+ [kM]B +relative rmse up to 0\.\d\d%", done.out)
    assert re.search(r"Q8_0 +1 +\S+ kB +-> float16 +\S+ kB +dequantized", done.out)
    assert re.search(r"\d\.\d\d times the file, 0\.\d\d times bfloat16", done.out)
    assert done.out.count("relative rmse") == len(re.findall(r"-> int8_g32", done.out)), "each loss once"
    assert "embed_tokens: " not in done.out, "nothing unusual"
    refused = run("convert", source, "-o", tmp_path / "no", "--repack", "near", "--max-rel-rmse", "1e-5")
    assert refused.code == SchemeError.exit_code
    assert refused.err.startswith("error: ")
    assert "hint: --max-rel-rmse sets the bound; --repack exact dequantizes whatever would lose anything" in refused.err
    assert run("convert", source, "--repack", "near", "--max-rel-rmse", "0").code == 2
    planned = run("plan", source, "--repack", "int4")
    assert planned.code == 0
    assert re.search(r"layers\.\{0\.\.1\}\.mlp\.up_proj\.weight +\[256, 256\] +int4_asym_g32 +=", planned.out)
    assert "quantization_config" in planned.out
    why = (
        "model.layers.{0..1}.self_attn.q_proj: int8_g32: requantized; not int4_asym_g32: q_proj (Q4_K), k_proj (Q4_K), "
    )
    assert why + "v_proj (Q6_K) are one parameter in vLLM" in planned.out
