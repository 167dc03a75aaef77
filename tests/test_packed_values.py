"""Values of packed weights: read as compressed-tensors and transformers read them, and compared with the GGUF's."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import gguf2st
from gguf2st.verification import Verification
from gguf2st.verification.running import check_running
from gguf2st.verification.structural import read_checkpoint
from gguf2st.verification.unpack import unpack
from tests.make_gguf import quantize, tiny_model
from tests.oracle import compressed
from tests.oracle.compressed import Config, Tensors, changed, projections, remove
from tests.oracle.dequantized import LAYER as NAMES
from tests.oracle.dequantized import hf_tensors, interleaved
from tests.oracle.rewrite import rewritten
from tests.oracle.tiny import oracle_gguf

LAYER = "model.layers.1"
UP = f"{LAYER}.mlp.up_proj"
QUERY, FIRST_QUERY = f"{LAYER}.self_attn.q_proj", "model.layers.0.self_attn.q_proj"


def assert_found(result: Verification, words: str) -> None:
    assert any(re.search(words, problem) for problem in result.problems), (words, result.problems)


# --- Unpacking ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 192), (40, 320), (33, 64)])
@pytest.mark.parametrize("name", compressed.SCHEMES)
def test_values_are_those_that_compressed_tensors_reads(name: str, shape: tuple[int, int], tmp_path: Path) -> None:
    """Whole weights and any run of their rows; 33 rows do not fill the words that their zero points lie in."""
    torch.manual_seed(1)
    parts = compressed.pack(torch.randn(shape).half(), name)
    expected = compressed.unpack(parts, name).numpy()
    (tmp_path / "config.json").write_text(
        json.dumps({"dtype": "float16", "quantization_config": compressed.quantization_config({name: ["x.y"]})})
    )
    tensors = {f"x.y.{part}": t for part, t in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ckpt = read_checkpoint(tmp_path)
    assert ckpt.problems == ["there is no tokenizer"]
    (packed,) = ckpt.packed.values()
    assert packed.shape == shape
    assert np.array_equal(unpack(packed, 0, shape[0]), expected)
    for start, stop in ((0, 1), (5, 6), (31, 33), (7, shape[0]), (shape[0] - 1, shape[0])):
        assert np.array_equal(unpack(packed, start, stop), expected[start:stop]), (start, stop)


def test_every_code_of_fp4_and_its_scales(tmp_path: Path) -> None:
    """All 256 bytes of codes under all scales that are numbers, by torch's own float8 types."""
    codes = torch.arange(256, dtype=torch.uint8).reshape(1, 256).repeat(256, 1)
    fp4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([fp4, -fp4])[torch.stack([codes & 15, codes >> 4], -1).long()].reshape(256, 512)
    scales = torch.arange(256, dtype=torch.uint8).reshape(256, 1)
    cases = {
        "mxfp4": (scales.repeat(1, 16), torch.float8_e8m0fnu, {}),
        "nvfp4": (scales.repeat(1, 32), torch.float8_e4m3fn, {"weight_global_scale": torch.tensor([2.0])}),
    }
    for name, (scale, kind, more) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        stored = scale if name == "mxfp4" else scale.view(kind)
        config = {"quantization_config": compressed.quantization_config({name: ["x.y"]})}
        (folder / "config.json").write_text(json.dumps(config))
        parts = {"weight_packed": codes, "weight_scale": stored, **more}
        save_file({f"x.y.{k}": v for k, v in parts.items()}, folder / "model.safetensors", metadata={"format": "pt"})
        (packed,) = read_checkpoint(folder).packed.values()
        expected = values.reshape(256, scale.shape[1], -1) * (scale.view(kind).float() / (2 if more else 1))[:, :, None]
        assert np.array_equal(unpack(packed, 0, 256), expected.reshape(256, 512).numpy(), equal_nan=True)


def test_gpt_oss_blocks_are_what_transformers_reads(tmp_path: Path) -> None:
    experts, rows, groups = 3, 64, 4
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (experts, rows, groups, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 140, (experts, rows, groups), dtype=torch.uint8, generator=generator)
    name = "model.layers.0.mlp.experts.down_proj"
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "mxfp4"}}))
    tensors = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    packed = read_checkpoint(tmp_path).packed[name]
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).numpy()
    assert packed.shape == expected.shape == (experts, groups * 32, rows)
    flat = expected.reshape(-1, rows)
    for start, stop in ((0, len(flat)), (0, 1), (100, 300), (len(flat) - 1, len(flat))):
        assert np.array_equal(unpack(packed, start, stop), flat[start:stop])


# --- Against a source --------------------------------------------------------------------------------------------


def by_hand(source: Path, folder: Path, *, bits: int = 4) -> Path:
    """A dense conversion of a Q4_0 GGUF with its projections packed from the file's own blocks: [d f16][16 bytes], low
    nibbles first."""
    gguf2st.convert(source, folder, dtype="float16")
    reader: Any = gguf.GGUFReader(source)
    heads = {"attn_q": 4, "attn_k": 2}
    tensors = load_file(folder / "model.safetensors")
    modules = []
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or tensor.tensor_type != gguf.GGMLQuantizationType.Q4_0:
            continue
        _, layer, kind, _ = tensor.name.split(".")
        blocks = np.array(tensor.data).reshape(len(tensor.data), -1, 18)
        codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).reshape(len(blocks), -1)
        scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
        if kind in heads:
            order = interleaved(len(codes), heads[kind])
            codes, scale = codes[order], scale[order]
        module = f"model.layers.{layer}.{NAMES[kind]}"
        modules.append(module)
        del tensors[f"{module}.weight"]
        signed = torch.from_numpy(codes.astype(np.int8) - 8)
        tensors[f"{module}.weight_packed"] = pack_to_int32(signed, bits)
        tensors[f"{module}.weight_scale"] = torch.from_numpy(scale)
        tensors[f"{module}.weight_shape"] = torch.tensor(codes.shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = compressed.quantization_config({f"int{bits}_g32": modules})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def q4_0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("q4_0") / "m.gguf", "llama", qtype="Q4_0", tied=False)


@pytest.mark.parametrize("bits", [4, 8])
def test_exact_formats_are_equal_to_the_source(bits: int, q4_0: Path, tmp_path: Path) -> None:
    folder = by_hand(q4_0, tmp_path / "m", bits=bits)
    result = gguf2st.verify(folder, q4_0, model=True, run=True)
    assert result.problems == ()
    assert result.compared == result.parameters
    (loss,) = result.losses
    assert (loss.format, loss.weights, loss.equal, loss.rmse) == (f"int{bits} sym g32", 14, 14, 0.0)
    assert str(loss) == f"int{bits} sym g32: 14 weights, 14 equal to the source"


def test_one_code_of_any_weight_is_found(q4_0: Path, tmp_path: Path) -> None:
    folder = by_hand(q4_0, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    packed = [name for name in tensors if name.endswith("weight_packed")]
    assert len(packed) == 14
    for n, name in enumerate(packed):
        word = (0, 0) if n % 2 else (-1, -1)
        tensors[name][word] ^= 1 << (4 * (n % 7))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        assert gguf2st.verify(folder).ok
        (problem,) = gguf2st.verify(folder, q4_0).problems
        weight = name.removesuffix("_packed")
        assert problem.startswith(f"{weight}: 1 of {tensors[name].numel() * 8} values differ from the source"), problem
        assert problem.endswith("int4 sym g32 could hold them exactly")
        tensors[name][word] ^= 1 << (4 * (n % 7))


def test_scales_rounded_to_bfloat16_are_within_their_bound(q4_0: Path, tmp_path: Path) -> None:
    """For model types that refuse float16."""
    folder = by_hand(q4_0, tmp_path / "m")

    def change(tensors: Tensors, config: Config) -> None:
        exact = dict(hf_tensors(q4_0, torch.bfloat16))
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensors[name] = exact[name] if name in exact else tensor.bfloat16()
        config.update(dtype="bfloat16", torch_dtype="bfloat16")

    folder = changed(folder, tmp_path, change)
    result = gguf2st.verify(folder, q4_0)
    assert result.problems == ()
    (loss,) = result.losses
    assert 0.0005 < loss.rmse < 2**-9 == loss.allowed
    assert loss.weights - loss.equal > 0

    def worse(tensors: Tensors, config: Config) -> None:
        tensors[f"{LAYER}.self_attn.k_proj.weight_scale"] *= 1.02

    assert_found(
        gguf2st.verify(changed(folder, tmp_path / "w", worse), q4_0), r"layers\.1\.self_attn\.k_proj.*relative rmse"
    )


@pytest.mark.parametrize(
    ("qtype", "scheme", "least", "most"),
    [
        ("Q8_0", "int8_g32", 0.0, 0.0075),
        ("Q8_0", "int8_g64", 0.003, 0.01),  # two scales of the source in one
        ("Q4_1", "int8_g32", 0.003, 0.0075),
        ("Q5_1", "int6_g32", 0.01, 0.03),
        ("Q4_1", "int4_asym_g32", 0.02, 0.12),
        ("Q4_1", "int4_g32", 0.05, 0.15),
        ("Q8_0", "mxfp4", 0.08, 0.16),
        ("Q8_0", "nvfp4", 0.05, 0.16),
    ],
)
def test_losses_are_measured(qtype: str, scheme: str, least: float, most: float, tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m.gguf", "llama", qtype=qtype, tied=False)
    gguf2st.convert(source, tmp_path / "dense", dtype="float16")
    folder = compressed.compress(  # what vLLM does not fuse: here each weight has its own global scale
        tmp_path / "dense", tmp_path / "packed", lambda m: scheme if m.endswith(("o_proj", "down_proj")) else ""
    )
    exact = dict(hf_tensors(source, torch.float32))
    expected = {
        f"{module}.weight": compressed.relative_rmse(compressed.unpack(parts, scheme), exact[f"{module}.weight"])
        for module, parts in parts_by_module(folder).items()
    }
    result = gguf2st.verify(folder, source)
    (loss,) = result.losses
    if (qtype, scheme) == ("Q8_0", "int8_g32"):  # it could be exact, but this writer rounds to scales of its own
        assert len(result.problems) == loss.weights - loss.equal > 0
        return
    assert result.problems == ()
    assert loss.worst == max(expected, key=expected.__getitem__)
    assert loss.rmse == pytest.approx(expected[loss.worst], rel=1e-4)
    assert least < loss.rmse < most
    strict = gguf2st.verify(folder, source, max_rel_rmse=loss.rmse * 0.99)
    assert_found(strict, re.escape(loss.worst) + r": as .* its relative rmse from the source \(" + qtype)
    assert gguf2st.verify(folder, source, max_rel_rmse=loss.rmse * 1.01).ok


def parts_by_module(folder: Path) -> dict[str, Tensors]:
    found: dict[str, Tensors] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module, _, part = name.rpartition(".")
        if part.startswith("weight_"):
            found.setdefault(module, {})[part] = tensor
    return found


@pytest.mark.parametrize("sample", [1.0, 0.3])
@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.update({f"{QUERY}.weight_scale": t[f"{QUERY}.weight_scale"] * 2}),
        lambda t: t.update({f"{QUERY}.weight_packed": t[f"{QUERY}.weight_packed"].roll(1, 0)}),
        lambda t: t.update(
            {f"{QUERY}.{x}": t[f"{FIRST_QUERY}.{x}"].clone() for x in ("weight_packed", "weight_scale")}
        ),
        lambda t: t[f"{QUERY}.weight_packed"].zero_(),
        lambda t: t[f"{QUERY}.weight_scale"].fill_(torch.nan),
    ],
    ids=["scale", "rows", "layer", "zeros", "nan"],
)
def test_wrong_weights_are_beyond_any_bound(damage: Callable[[Tensors], object], sample: float, tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m.gguf", "llama", qtype="Q4_1", tied=False)
    gguf2st.convert(source, tmp_path / "dense", dtype="float16")
    folder = compressed.compress(tmp_path / "dense", tmp_path / "packed", projections("int4_g32"))
    assert gguf2st.verify(folder, source).ok
    folder = changed(folder, tmp_path, lambda t, c: damage(t))
    (problem,) = gguf2st.verify(folder, source, sample=sample).problems
    assert problem.startswith(f"{QUERY}.weight: as int4 sym g32 its relative rmse from the source (Q4_1) is ")


def test_a_scale_beside_a_weight_counts(tmp_path: Path) -> None:
    """llama.cpp multiplies a weight by the tensor `.scale` beside it, which NVFP4 files have."""
    scale = np.array([3.0], np.float32)
    source = tiny_model(tmp_path / "m.gguf", qtype="Q8_0", tied=False, extra_tensors={"blk.1.ffn_up.scale": scale})
    gguf2st.convert(source, tmp_path / "m", dtype="float32")
    assert gguf2st.verify(tmp_path / "m", source).problems == ()
    plain = tiny_model(tmp_path / "n.gguf", qtype="Q8_0", tied=False)
    other, problem = gguf2st.verify(tmp_path / "m", plain).problems
    assert "n.gguf" in other
    assert "m.gguf" in other
    assert problem.startswith(f"{LAYER}.mlp.up_proj.weight: ")
    expected = dict(hf_tensors(plain, torch.float32))[f"{LAYER}.mlp.up_proj.weight"] * 3
    assert torch.equal(load_file(tmp_path / "m/model.safetensors")[f"{LAYER}.mlp.up_proj.weight"], expected)


def test_missing_and_extra_weights_against_the_source(q4_0: Path, tmp_path: Path) -> None:
    folder = by_hand(q4_0, tmp_path / "m")
    lost = changed(folder, tmp_path / "a", remove(rf"{LAYER}\.mlp\.up_proj\..*"))
    assert_found(
        gguf2st.verify(lost, q4_0), r"source has and the checkpoint lacks: model\.layers\.1\.mlp\.up_proj\.weight"
    )
    other = tiny_model(tmp_path / "n.gguf", "llama", qtype="Q4_0", tied=False, ffn=192)
    assert_found(
        gguf2st.verify(folder, other), r"mlp\.up_proj\.weight is int4 sym g32 \[128, 64\], expected float16 \[192, 64\]"
    )


def test_experts_against_the_source(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m.gguf", "qwen3moe", qtype="Q8_0", tied=False)
    gguf2st.convert(source, tmp_path / "dense", dtype="float16")
    folder = compressed.compress(tmp_path / "dense", tmp_path / "m", projections("int4_g32"))
    result = gguf2st.verify(folder, source, model=True, run=True)
    assert result.problems == ()
    assert result.losses[0].weights == 2 * (4 + 4 * 3)
    swapped = changed(
        folder,
        tmp_path,
        lambda t, c: t.update(
            {
                f"{LAYER}.mlp.experts.{a}.up_proj.{x}": t[f"{LAYER}.mlp.experts.{b}.up_proj.{x}"].clone()
                for a, b in ((0, 1), (1, 0))
                for x in ("weight_packed", "weight_scale")
            }
        ),
    )
    assert len(gguf2st.verify(swapped, source).problems) == 2


@pytest.mark.parametrize(("scale", "result"), [(0.25, "exact"), (0.0123, "bounded")])
def test_a_scale_of_the_whole_weight_may_round_once_more(scale: float, result: str, tmp_path: Path) -> None:
    """Its inverse is a float32 number where it is a power of two."""
    extra = {"blk.0.ffn_down.scale": np.array([scale], np.float32)}
    source = tiny_model(tmp_path / "m.gguf", "llama", qtype="NVFP4", tied=False, extra_tensors=extra)
    report = gguf2st.convert(source, tmp_path / "m", repack="exact", digests=False)
    assert {row.result for row in report.types if row.scheme == "nvfp4"} == {"exact", result}
    assert any("under a scale of the whole weight that is rounded" in n for n in report.notes) == (result == "bounded")
    verification = gguf2st.verify(tmp_path / "m", source)
    assert verification.problems == ()
    (loss,) = verification.losses
    assert loss.weights - loss.equal == (result == "bounded")
    assert loss.rmse < 2.0**-22
    down = "model.layers.0.mlp.down_proj.weight_global_scale"
    worse = changed(tmp_path / "m", tmp_path / "w", lambda t, c: t[down].mul_(1 + 2.0**-20))
    assert len(gguf2st.verify(worse, source).problems) == 1


@pytest.mark.oracle
@pytest.mark.parametrize(("case", "read"), [("llama", True), ("qwen3next", False)])
def test_what_vllm_builds_without_quantization_may_not_be_packed(case: str, read: bool, tmp_path: Path) -> None:
    """A head by its name: compressed-tensors packs it, and some classes of vLLM have no parameters for its parts."""
    source = oracle_gguf(case)
    gguf2st.convert(source, tmp_path / "dense", dtype="float16")
    folder = compressed.compress(
        tmp_path / "dense", tmp_path / "m", lambda m: "int8_g32" if m in ("lm_head", "model.lm_head") else ""
    )
    folder = changed(folder, tmp_path, lambda t, c: c["quantization_config"].update(ignore=[]))
    told = [p for p in gguf2st.verify(folder, source).problems if "vLLM cannot read it packed" in p]
    wanted = "lm_head.weight: vLLM cannot read it packed: vLLM's Qwen3NextForCausalLM builds it without quantization"
    assert told == ([] if read else [wanted])


# --- Losses of a few ---------------------------------------------------------------------------------------------


def a_group_by(factor: float) -> Callable[[Tensors], object]:
    """The last of 16,384 scales multiplied."""

    def damage(tensors: Tensors) -> None:
        tensors[f"{UP}.weight_scale"][-1, -1] *= factor

    return damage


def one_bit(part: str, bit: int) -> Callable[[Tensors], object]:
    """A bit of the last word of a part."""

    def damage(tensors: Tensors) -> None:
        tensor = tensors[f"{UP}.{part}"]
        tensor.view(torch.uint8).view(-1)[-tensor.itemsize + bit // 8] ^= 1 << bit % 8

    return damage


FEW: dict[str, tuple[str, Callable[[Tensors], object]]] = {
    # what the bound of groups finds in a checkpoint of any program
    "a group whose scale is 0": ("near int4", a_group_by(0.0)),
    "a group of twice the size": ("near int4", a_group_by(2.0)),
    "the highest bit of a code": ("near int4", one_bit("weight_packed", 31)),
    "the highest bit of a zero point": ("int4", one_bit("weight_zero_point", 31)),
    "a group 8% larger": ("near", a_group_by(1.08)),
    # what only packing again can find
    "the lowest bit of a code": ("again", one_bit("weight_packed", 0)),
    "the lowest bit of another code": ("again", one_bit("weight_packed", 24)),
    "the lowest bit of a scale": ("again", one_bit("weight_scale", 0)),
    "the lowest bit of a zero point": ("again", one_bit("weight_zero_point", 0)),
}
"""Damage -> modes of repacking in which it must be found; "again" where gguf2st.json must say who packed."""


@pytest.fixture(scope="module")
def repacked_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """(source, checkpoint) by mode: 2,048 rows in some projections, of which one counts little."""
    home = tmp_path_factory.mktemp("repacked")
    sizes: dict[str, Any] = {"hidden": 256, "heads": 8, "kv_heads": 4, "head_dim": 32, "ffn": 2048, "layers": 2}
    source = tiny_model(home / "m.gguf", "llama", qtype="Q4_K", tied=False, **sizes)
    made = {}
    for mode in ("near", "int4"):
        gguf2st.convert(source, home / mode, repack=mode, digests=False)
        made[mode] = (source, home / mode)
    return made


@pytest.mark.parametrize("mode", ["near", "int4"])
def test_packing_again_gives_the_same_bytes(mode: str, repacked_models: dict[str, tuple[Path, Path]]) -> None:
    source, folder = repacked_models[mode]
    for sample in (1.0, 0.3):
        assert gguf2st.verify(folder, source, sample=sample).problems == ()


@pytest.mark.parametrize(
    ("name", "mode"), [(n, m) for n in FEW for m in ("near", "int4") if m == "int4" or "zero point" not in n]
)
def test_a_few_wrong_values_are_found(
    name: str, mode: str, repacked_models: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """The relative rmse of the whole weight stays within its bound; there are no digests."""
    source, folder = repacked_models[mode]
    modes, damage = FEW[name]
    folder = changed(folder, tmp_path, lambda t, c: damage(t))
    words = rf"{re.escape(UP)}\.weight: [18] rows "
    known = gguf2st.verify(folder, source)
    assert len(known.problems) == 1
    assert_found(known, words)
    stated = json.loads((folder / "gguf2st.json").read_text())
    (folder / "gguf2st.json").unlink()
    unknown = gguf2st.verify(folder, source)
    if mode in modes.split():
        assert_found(unknown, words + "have groups that are further from the source")
    else:
        assert unknown.problems == ()
    (folder / "gguf2st.json").write_text(json.dumps(stated | {"version": "0.0.1"}))
    assert gguf2st.verify(folder, source).problems == unknown.problems, "another version may pack otherwise"


def test_weights_of_several_types_are_packed_again(tmp_path: Path) -> None:
    """Rows of two tensors in one: each by its own type."""
    qtype = {"attn_qkv": "Q4_1", "attn_gate": "Q5_1"}

    def quantized(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name, values in tensors.items():
            for part, kind in qtype.items():
                if part in name and values.shape[-1] % 32 == 0:
                    tensors[name] = (quantize(values, kind), kind, values.shape)

    source = rewritten("qwen3next", tmp_path / "m.gguf", quantized)
    gguf2st.convert(source, tmp_path / "m", repack="near", digests=False)
    (loss,) = gguf2st.verify(tmp_path / "m", source).losses
    assert loss.weights > 0


# --- Running -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int4_asym_g32", "mxfp4", "nvfp4"])
def test_packed_models_run_whatever_transformers_can_load(name: str, tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m.gguf", "qwen3moe", qtype="Q8_0", tied=False)
    gguf2st.convert(source, tmp_path / "dense", dtype="float16")
    folder = compressed.compress(tmp_path / "dense", tmp_path / "m", projections(name))
    result = check_running(folder)
    assert result.problems == ()
    assert result.loss is not None
    broken = changed(
        folder, tmp_path, lambda t, c: t[f"{LAYER}.self_attn.q_proj.weight_scale"].view(torch.uint8).fill_(255)
    )
    assert_found(
        Verification("", 0, 0, 0, (), problems=check_running(broken).problems),
        r"NaN in model\.layers\.1\.self_attn\.q_proj",
    )
    lost = changed(folder, tmp_path / "lost", remove(rf"{LAYER}\.self_attn\.q_proj\.weight_scale"))
    assert_found(Verification("", 0, 0, 0, (), problems=check_running(lost).problems), r"lacks.*self_attn\.q_proj")


@pytest.mark.oracle
@pytest.mark.parametrize(("repack", "judged"), [("near", True), ("int4", False)])
def test_4_bits_with_loss_are_not_judged_by_llama_cpp(repack: str, judged: bool, tmp_path: Path) -> None:
    """SmolLM2 moved by 1.2 on average, as far as wrong models do; what a loss may be, the rmse of the weights says."""
    source = tiny_model(tmp_path / "m.gguf", "llama", qtype="Q4_1", tied=False)
    gguf2st.convert(source, tmp_path / "m", repack=repack)
    result = check_running(tmp_path / "m", gguf2st.open_gguf(source))
    assert result.difference is not None
    assert ("not judged" in result.notes[-1]) != judged
