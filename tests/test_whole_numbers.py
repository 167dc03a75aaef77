"""Tensors of whole numbers: those of the file, those that it keeps as metadata, and what is neither."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gguf2st import api
from gguf2st.archmap.mapfile import load_map, maps_folder
from gguf2st.conversion import Options
from gguf2st.errors import MapError, SourceError
from gguf2st.plan import Plan
from gguf2st.plan.as_json import from_json, to_json
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import run

LOW, HIGH = -(2**63), 2**63 - 1
NUMBERS = np.array([0, 2**45 + 1, HIGH, 251], np.uint64)
"""What float32 and float64 would round."""
TABLES: Mapping[str, Any] = {
    "I8": np.array([[-128, 127, 0], [1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14, 15]], np.int8),
    "I16": (np.arange(18).reshape(6, 3) * 3855 - 2**15).astype(np.int16),
    "I32": (np.arange(18).reshape(6, 3) * 252645135 - 2**31).astype(np.int32),
    "I64": np.array([LOW, HIGH, 2**53 + 1] * 6, np.int64).reshape(6, 3),
}
"""ggml type -> numbers of its whole range, in 6 rows."""
EQUATIONS = """
"model.layers.{i}.router.table"  = "blk.{i}.routes -> [6, 3]"
"model.layers.{i}.router.turned" = "blk.{i}.turned | swap(3, 2) -> [6, 3]"
"model.layers.{i}.router.joined" = "blk.{i}.routes [6, 3], blk.{i}.turned [6, 3] | concat -> [12, 3]"
"model.hash.numbers"             = "values(ple.head_offsets) -> [4]"
"""
NAMES = [line.split('"')[1] for line in EQUATIONS.strip().splitlines()]


def own_map(folder: Path, equations: str = EQUATIONS, names: list[str] = NAMES, extra: str = "") -> Path:
    """Llama's map with further tensors, of which some are of whole numbers."""
    text = (maps_folder() / "llama.toml").read_text(encoding="utf-8")
    text = text.replace("[[tensors]]", f"[[tensors]]\n{equations}\n[[tensors]]", 1)
    path = folder / "own.toml"
    path.write_text(text.replace('arch   = "llama"', f'arch = "llama"\nint64 = {json.dumps(names)}\n{extra}', 1))
    return path


def source(folder: Path, tables: Any, turned: Any, **options: Any) -> Path:
    extra = {f"blk.{i}.{name}": t + i for i in range(2) for name, t in (("routes", tables), ("turned", turned))}
    keys = {"llama.ple.head_offsets": NUMBERS}
    return tiny_llama(folder / "numbers.gguf", extra_tensors=extra, extra_metadata=keys, **options)


@pytest.fixture(params=["little", "big"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    byteorder: Literal["little", "big"] = request.param
    return source(tmp_path, TABLES["I32"], TABLES["I64"], byteorder=byteorder)


def expected(tables: Any, turned: Any) -> dict[str, Any]:
    """Written out by numpy alone."""
    out: dict[str, Any] = {"model.hash.numbers": NUMBERS.astype(np.int64)}
    for i in range(2):
        both = (tables + i).astype(np.int64), (turned + i).astype(np.int64)
        out[f"model.layers.{i}.router.table"] = both[0]
        out[f"model.layers.{i}.router.turned"] = both[1][[0, 2, 4, 1, 3, 5]]
        out[f"model.layers.{i}.router.joined"] = np.concatenate(both)
    return out


def assert_numbers(folder: Path, numbers: Mapping[str, Any]) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for shard in folder.glob("*.safetensors"):
        tensors |= load_file(shard)
    assert {name: str(t.dtype) for name, t in tensors.items() if not t.is_floating_point()} == dict.fromkeys(
        numbers, "torch.int64"
    )
    for name, values in numbers.items():
        np.testing.assert_array_equal(tensors[name].numpy(), values)


def test_numbers_of_the_file_and_of_its_metadata(path: Path, tmp_path: Path) -> None:
    own = own_map(tmp_path)
    report = api.convert(path, tmp_path / "out", arch_map=own)
    assert_numbers(tmp_path / "out", expected(TABLES["I32"], TABLES["I64"]))
    assert {(t.qtype, t.dtype, t.result) for t in report.types} == {
        ("F32", "bfloat16", "cast"),
        ("I32", "int64", "cast"),
        ("I64", "int64", "cast"),
    }
    checked = api.verify(tmp_path / "out", against=path, arch_map=own)
    assert checked.problems == ()
    assert checked.compared == checked.parameters == report.parameters


@pytest.mark.parametrize("qtype", TABLES)
def test_every_type_of_whole_numbers(qtype: str, tmp_path: Path) -> None:
    path = source(tmp_path, TABLES[qtype] // 2, TABLES[qtype])
    api.convert(path, tmp_path / "out", arch_map=own_map(tmp_path), dtype="float16", repack="int4")
    assert_numbers(tmp_path / "out", expected(TABLES[qtype] // 2, TABLES[qtype]))
    assert api.verify(tmp_path / "out", against=path, arch_map=own_map(tmp_path)).problems == ()


def test_many_processes_write_the_same_bytes(tmp_path: Path) -> None:
    path = source(tmp_path, TABLES["I8"], TABLES["I16"])
    options = Options(arch_map=str(own_map(tmp_path)), max_shard_size=20_000)
    api.convert(path, tmp_path / "one", arch_map=own_map(tmp_path), max_shard_size=20_000)
    api.write_plan(path, tmp_path / "plan.json", tmp_path / "many", options)
    for share in ("1/2", "2/2"):
        api.convert_planned(tmp_path / "plan.json", share)
    api.finish(tmp_path / "plan.json")
    shards = sorted(p.name for p in (tmp_path / "one").glob("*.safetensors"))
    assert len(shards) > 3
    for name in (*shards, "model.safetensors.index.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


def test_a_quantized_checkpoint_says_nothing_of_them(tmp_path: Path) -> None:
    path = source(tmp_path, TABLES["I8"], TABLES["I16"], hidden=256, ffn=256, qtype="Q4_0")
    api.convert(path, tmp_path / "out", arch_map=own_map(tmp_path), repack="exact")
    assert_numbers_among(tmp_path / "out", expected(TABLES["I8"], TABLES["I16"]))
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert "router" not in json.dumps(config)
    assert "hash" not in json.dumps(config)
    assert api.verify(tmp_path / "out", against=path, arch_map=own_map(tmp_path)).problems == ()


def assert_numbers_among(folder: Path, numbers: Mapping[str, Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, values in numbers.items():
        assert tensors[name].dtype == torch.int64
        np.testing.assert_array_equal(tensors[name].numpy(), values)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t: t + (torch.arange(len(t)) == 1).long(), "1 of 4 values differ from the source"),
        (lambda t: t.double().long(), "1 of 4 values differ from the source"),  # 2^63 - 1 becomes another
        (lambda t: t.float(), "is float32 [4], expected int64 [4]"),
        (lambda t: t.int(), "is I32 [4], expected int64 [4]"),
        (lambda t: t[:3], "is int64 [3], expected int64 [4]"),
    ],
)
def test_another_number_is_found(damage: Callable[[torch.Tensor], torch.Tensor], said: str, tmp_path: Path) -> None:
    path, own = source(tmp_path, TABLES["I8"], TABLES["I16"]), own_map(tmp_path)
    api.convert(path, tmp_path / "out", arch_map=own)
    shard = tmp_path / "out" / "model.safetensors"
    tensors = load_file(shard)
    tensors["model.hash.numbers"] = damage(tensors["model.hash.numbers"]).contiguous()
    save_file(tensors, shard, {"format": "pt"})
    problems = api.verify(tmp_path / "out", against=path, arch_map=own).problems
    assert [p for p in problems if said in p and "model.hash.numbers" in p], problems


def test_weights_are_no_whole_numbers_to_verify(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "weights.gguf")
    api.convert(path, tmp_path / "out")
    shard = tmp_path / "out" / "model.safetensors"
    tensors = load_file(shard)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].long()
    save_file(tensors, shard, {"format": "pt"})
    problems = api.verify(tmp_path / "out").problems
    assert any("config.json says bfloat16, but these are not: model.norm.weight" in p for p in problems)


@pytest.mark.parametrize("qtype", TABLES)
def test_whole_numbers_are_no_weights(qtype: str, tmp_path: Path) -> None:
    """llama.cpp multiplies by no such tensor; in 16 bits 257 would become 256, and nobody would tell."""
    numbers = np.resize(TABLES[qtype], (64, 64))
    path = tiny_llama(tmp_path / "weights.gguf", extra_tensors={f"blk.{i}.attn_q.weight": numbers for i in range(2)})
    said = f"blk.{{0..1}}.attn_q.weight is {qtype}, whole numbers; weights were expected"
    assert api.make_plan(path).all_problems == (said,)
    done = run("convert", str(path), "-o", str(tmp_path / "out"))
    assert done.code == 4
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()


def test_weights_are_no_whole_numbers(tmp_path: Path) -> None:
    path = source(tmp_path, np.ones((6, 3), np.float32), TABLES["I16"])
    assert api.make_plan(path, arch_map=own_map(tmp_path)).all_problems == (
        "blk.{0..1}.routes is F32; whole numbers (I8 to I64) were expected",
    )


def test_whole_numbers_have_no_scale(tmp_path: Path) -> None:
    equations = '"model.layers.{i}.table" = "blk.{i}.routes.weight -> [6, 3]"'
    extra = {f"blk.{i}.routes.weight": TABLES["I32"] for i in range(2)} | {"blk.0.routes.scale": np.ones(1, np.float32)}
    path = tiny_llama(tmp_path / "scaled.gguf", extra_tensors=extra)
    problems = api.make_plan(path, arch_map=own_map(tmp_path, equations, ["model.layers.{i}.table"])).all_problems
    assert "blk.0.routes.scale stands beside blk.0.routes.weight, which is I32: whole numbers have no scale" in problems


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            np.array([0, 1, HIGH + 1, 3], np.uint64),
            f"item 2 of llama.ple.head_offsets is {HIGH + 1}; it must be a whole",
        ),
        (
            np.array([0.0, 1.0, 2.0, 3.5], np.float32),
            "item 0 of llama.ple.head_offsets is 0.0; it must be a whole number",
        ),
        (np.array([True, False, True, True]), "item 0 of llama.ple.head_offsets is True; it must be a whole number"),
        (["a", "b", "c", "d"], "item 0 of llama.ple.head_offsets is 'a'; it must be a whole number"),
        (7, "llama.ple.head_offsets is 7; it must be a list of whole numbers"),
        ("0, 1, 2, 3", "llama.ple.head_offsets is '0, 1, 2, 3'; it must be a list of whole numbers"),
        (None, "the file's metadata lack 'ple.head_offsets'"),
        (np.array([1, 2, 3], np.uint64), "model.hash.numbers is made of metadata and gives [3], not [4] = [4]"),
        (
            np.arange(100_000, dtype=np.uint64),
            "model.hash.numbers is made of metadata and gives [100000], not [4] = [4]",
        ),
    ],
)
def test_metadata_that_are_no_such_numbers(value: Any, said: str, tmp_path: Path) -> None:
    path = source(tmp_path, TABLES["I8"], TABLES["I16"])
    path = tiny_llama(
        path,
        extra_tensors={f"blk.{i}.{name}": TABLES["I8"] for i in range(2) for name in ("routes", "turned")},
        extra_metadata={"llama.ple.head_offsets": value},
    )
    (line,) = api.make_plan(path, arch_map=own_map(tmp_path)).all_problems
    assert said in line
    assert len(line) < 500


@pytest.mark.parametrize(
    ("equations", "names", "said"),
    [
        (
            '"a.b" = "values(ple.head_offsets) -> [4]"',
            [],
            "'a.b': values makes whole numbers: the map must list the tensor",
        ),
        ('"a.b" = "routes | minus(1) -> [4]"', ["a.b"], "'a.b' has whole numbers, which minus would compute with"),
        ('"a.b" = "fill(0, 4) -> [4]"', ["a.b"], "'a.b' has whole numbers, which fill would compute with"),
        ('"a.b" = "routes -> [4]"', ["a.b", "a.b"], "a tensor is listed twice under float32 and int64"),
        ('"a.b" = "routes -> [4]"', ["a.c"], "int64 names 'a.c', which no equation has"),
    ],
)
def test_maps_that_are_wrong_for_every_file(equations: str, names: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(MapError, match=r"own\.toml") as caught:
        load_map(own_map(tmp_path, equations, names))
    assert said in caught.value.message


def laid_out(tmp_path: Path) -> Plan:
    return api.make_plan(source(tmp_path, TABLES["I8"], TABLES["I16"]), arch_map=own_map(tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pin": "int32"}, "'int32' is no dtype of a tensor"),
        ({"pin": ""}, "is not what holds weights"),
        ({"dtype": "bfloat16"}, "is not what holds int64"),
        ({"scheme": "int4_g32"}, "is not what holds int64"),
        ({"ops": [["values", 1, 2, 3, HIGH + 1]]}, "values does not fit: a number is beyond 64 bits"),
        ({"ops": [["values", 1, 2, 3, 4.0]]}, "values does not fit: numbers of values is 4.0, not a whole number"),
        ({"ops": [["values", 1, 2, 3]]}, "is [4], its equation gives [3]"),
        ({"ops": [["values", 1, 2, 3, 4], ["minus", 1]]}, "has whole numbers, and its ops compute"),
        ({"sources": ["output_norm.weight"], "ops": [], "shape": [64]}, "F32 'output_norm.weight' becomes int64"),
    ],
)
def test_a_plan_of_a_stranger(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    table = json.loads(to_json(laid_out(tmp_path)))
    assert from_json(json.dumps(table)).entries
    (entry,) = (e for e in table["entries"] if e["name"] == "model.hash.numbers")
    entry |= change
    with pytest.raises(SourceError, match="this is no plan") as caught:
        from_json(json.dumps(table))
    assert said in caught.value.message


def test_plans_show_the_numbers(tmp_path: Path) -> None:
    done = run("plan", str(source(tmp_path, TABLES["I8"], TABLES["I16"])), "--arch-map", str(own_map(tmp_path)))
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in done.out.splitlines() if line.startswith("  model")}
    assert rows["model.hash.numbers"] == f"[4] int64 = values(0, {2**45 + 1}, {HIGH}, 251)"
    assert rows["model.layers.{0..1}.router.turned"] == "[6, 3] int64 = blk.{0..1}.turned | swap(3, 2)"
