"""Ways to derive a tensor, tensors that no file holds, layers left behind, and tensors used only in part."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import gguf2st
from gguf2st.archmap import mapfile
from gguf2st.errors import MapError
from gguf2st.header import read_header
from gguf2st.plan import Plan
from gguf2st.plan.build import build
from tests.make_gguf import write_gguf

MAP = """
arch   = "llama"
layers = "block_count - (nextn_predict_layers or 0)"
beyond = "a draft layer that the checkpoint's class does not have"

[names]
n = "embedding_length"

[config]
hidden_size = "n"
vocab_size  = "3"

[[tensors]]
"model.layers.{i}.q.weight" = ["blk.{i}.attn_q.weight -> [n, n]", "blk.{i}.attn_qkv.weight | rows(0, n) -> [n, n]"]
"model.layers.{i}.k.weight" = ["blk.{i}.attn_k.weight -> [n, n]", "blk.{i}.attn_qkv.weight | rows(n, 2 * n) -> [n, n]"]
"model.layers.{i}.scale"    = "fill(attention.scale, n) -> [n]"

[[tensors]]
if = "has('blk.0.ffn_gate.weight')"
"model.layers.{i}.both.weight" = "blk.{i}.ffn_gate.weight [n, n], blk.{i}.ffn_up.weight [n, n] | concat -> [2 * n, n]"
"""
N = 4
KEYS: dict[str, Any] = {"llama.block_count": 2, "llama.embedding_length": N, "llama.attention.scale": 0.75}


def _values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _plan(folder: Path, tensors: dict[str, Any], text: str = MAP, **keys: Any) -> Plan:
    path, amap = folder / "x.gguf", folder / "map.toml"
    metadata = {**KEYS, **{f"llama.{k}": v for k, v in keys.items()}}
    write_gguf(path, metadata, tensors, arch="llama")
    amap.write_text(text)
    return build(read_header([path]), arch_map=amap)


SPLIT = {f"blk.{i}.attn_{x}.weight": _values(10 * i + n, N, N) for i in range(2) for n, x in enumerate("qk")}
FUSED = {
    f"blk.{i}.attn_qkv.weight": np.concatenate([SPLIT[f"blk.{i}.attn_q.weight"], SPLIT[f"blk.{i}.attn_k.weight"]])
    for i in range(2)
}


def test_the_first_way_that_the_file_has_is_taken(tmp_path: Path) -> None:
    for tensors in (SPLIT, FUSED):
        plan = _plan(tmp_path, tensors)
        assert plan.all_problems == ()
        assert {s for e in plan.entries for s in e.sources} == tensors.keys()


def test_layers_may_differ_in_their_way(tmp_path: Path) -> None:
    mixed = {k: v for k, v in SPLIT.items() if "blk.0" in k} | {k: v for k, v in FUSED.items() if "blk.1" in k}
    assert _plan(tmp_path, mixed).all_problems == ()


def test_a_tensor_in_both_spellings_is_not_dropped_in_silence(tmp_path: Path) -> None:
    (problem,) = _plan(tmp_path, SPLIT | FUSED).all_problems
    assert "without a place" in problem
    assert "blk.{0..1}.attn_qkv.weight" in problem


def test_what_is_missing_is_said_in_the_first_spelling(tmp_path: Path) -> None:
    tensors = {k: v for k, v in SPLIT.items() if k != "blk.1.attn_k.weight"}
    (problem,) = _plan(tmp_path, tensors).all_problems
    assert "model.layers.1.k.weight (the file lacks blk.1.attn_k.weight)" in problem


def test_rows_that_no_equation_takes_are_a_problem(tmp_path: Path) -> None:
    longer = {name: np.concatenate([x, x[:1]]) for name, x in FUSED.items()}
    (problem,) = _plan(tmp_path, longer).all_problems
    assert problem == "only a part of these tensors has a place: blk.{0..1}.attn_qkv.weight"


def test_rows_that_two_equations_take_count_once(tmp_path: Path) -> None:
    text = MAP.replace("rows(n, 2 * n)", "rows(0, n)")
    (problem,) = _plan(tmp_path, FUSED, text).all_problems
    assert problem == "only a part of these tensors has a place: blk.{0..1}.attn_qkv.weight"


def test_rows_lost_after_a_join_are_a_problem(tmp_path: Path) -> None:
    pairs = {f"blk.{i}.ffn_{x}.weight": _values(n, N, N) for i in range(2) for n, x in enumerate(("gate", "up"))}
    text = MAP.replace("| concat -> [2 * n, n]", "| concat | rows(0, n) -> [n, n]")
    (problem,) = _plan(tmp_path, SPLIT | pairs, text).all_problems
    assert problem == "only a part of these tensors has a place: blk.{0..1}.ffn_gate.weight, blk.{0..1}.ffn_up.weight"


@pytest.mark.parametrize(("gate", "up"), [((N + 1, N), (N - 1, N)), ((2 * N, N // 2), (N, N)), ((N,), (N, N))])
def test_joined_tensors_have_the_shapes_that_the_equation_states(
    gate: tuple[int, ...], up: tuple[int, ...], tmp_path: Path
) -> None:
    """Rows that moved from one to the other would be a whole tensor of the right shape."""
    pair = {f"blk.{i}.ffn_gate.weight": _values(0, *gate) for i in range(2)}
    pair |= {f"blk.{i}.ffn_up.weight": _values(1, *up) for i in range(2)}
    (problem,) = _plan(tmp_path, SPLIT | pair).all_problems
    assert f"blk.{{0..1}}.ffn_gate.weight is {list(gate)}, not [n, n] = [4, 4]" in problem


def test_layers_beyond_the_last_are_left_behind_with_the_reason(tmp_path: Path) -> None:
    extra = {"blk.2.attn_q.weight": _values(7, N, N), "blk.2.nextn.eh_proj.weight": _values(8, N, 2 * N)}
    plan = _plan(tmp_path, SPLIT | extra, block_count=3, nextn_predict_layers=1)
    assert plan.all_problems == ()
    assert dict(plan.dropped) == dict.fromkeys(extra, "a draft layer that the checkpoint's class does not have")


def test_layers_beyond_block_count_are_not(tmp_path: Path) -> None:
    (problem,) = _plan(tmp_path, SPLIT | {"blk.2.attn_q.weight": _values(7, N, N)}).all_problems
    assert "blk.2.attn_q.weight" in problem
    assert "without a place" in problem


def test_made_and_joined_tensors_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the whole converter, tokenizer aside: `fill` has no source, `concat` has two of different types."""
    folder = tmp_path / "maps"
    folder.mkdir()
    (folder / "llama.toml").write_text(MAP.replace("hidden_size", "architectures = \"['X']\"\nhidden_size"))
    monkeypatch.setattr(mapfile, "maps_folder", lambda: folder)
    gates = {f"blk.{i}.ffn_gate.weight": _values(20 + i, N, N) for i in range(2)}
    ups = {f"blk.{i}.ffn_up.weight": _values(30 + i, N, N).astype(np.float16) for i in range(2)}
    tokens = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.token_type": [1, 1, 1],
        "tokenizer.ggml.merges": [],
    }
    path = tmp_path / "x.gguf"
    write_gguf(path, KEYS | {k: v for k, v in tokens.items() if v != []}, SPLIT | gates | ups, arch="llama")
    plan = gguf2st.make_plan(path, dtype="float32")
    assert plan.all_problems == ()
    from gguf2st.execute import execute
    from gguf2st.kernels import cpu
    from gguf2st.output.folder import OutputFolder

    with OutputFolder(tmp_path / "out", "x") as output:
        execute(plan, output, decode=cpu.dequantize, threads=1)
        written = load_file(output.partial / "model.safetensors")
        output.finish()
    for i in range(2):
        np.testing.assert_array_equal(written[f"model.layers.{i}.scale"], np.full(N, 0.75, np.float32))
        both = np.concatenate([gates[f"blk.{i}.ffn_gate.weight"], ups[f"blk.{i}.ffn_up.weight"].astype(np.float32)])
        np.testing.assert_array_equal(written[f"model.layers.{i}.both.weight"], both)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("fill(attention.scale, n)", "fill()", "op fill takes "),
        ("fill(attention.scale, n)", "rows(0, 1)", "op rows takes 1 tensors, here 0"),
        ("| concat ->", "->", "2 sources need an op that joins them"),
        ('["blk.{i}.attn_q.weight -> [n, n]", "blk.{i}.attn_qkv.weight | rows(0, n) -> [n, n]"]', "[]", "empty list"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MAP
    with pytest.raises(MapError, match=message):
        _plan(tmp_path, SPLIT, MAP.replace(old, new))
