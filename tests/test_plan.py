"""The plan: dtypes, layout in shards, JSON both ways, folded equations. Tensors without files."""

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from gguf2st.errors import CoverageError, UsageError
from gguf2st.header import Header, Source, read_header
from gguf2st.plan import DTYPES, Entry, Plan, folded_equations, lay_out
from gguf2st.plan.as_json import digest, from_json, to_json
from gguf2st.plan.build import build
from gguf2st.plan.choice import choose
from tests.make_gguf import ARCHS, tiny_gemma3, tiny_model


def _plan(shapes: Mapping[str, tuple[int, ...]], pins: Collection[str] = ()) -> Plan:
    """A plan with one F32 source per entry, of which some are pinned to float32."""
    sources = {f"s.{n}": Source(f"s.{n}", "F32", s, 0, 0, 4 * math.prod(s)) for n, s in shapes.items()}
    entries = tuple(
        Entry(name, (f"s.{name}",), (), shape, True, "float32" if name in pins else "")
        for name, shape in shapes.items()
    )
    metadata: dict[str, Any] = {"general.architecture": "toy"}
    return Plan("toy", "toy", Header(("a.gguf",), (1,), 3, "little", metadata, sources), {"a": 1.5}, entries)


@functools.cache
def _tiny(folder: Path, arch: str) -> Plan:
    if arch == "gemma3":
        path = tiny_gemma3(folder / "gemma3.gguf")
    else:
        path = tiny_model(folder / f"{arch}.gguf", arch, tied=False, qtype=lambda n: "Q8_0" if "attn" in n else "F16")
    return build(read_header([path]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", ARCHS)
def test_json_gives_the_plan_back(arch: str, dtype: str, folder: Path) -> None:
    plan = lay_out(choose(_tiny(folder, arch), dtype), 50_000)
    text = to_json(plan)
    again = from_json(text)
    bare = dataclasses.replace(plan.header, metadata={"general.architecture": arch})
    assert again == dataclasses.replace(plan, header=bare)
    assert to_json(again) == text
    assert digest(again) == digest(plan)
    for shape in (e.shape for e in again.entries):
        assert type(shape) is tuple
    hash(again.entries)  # tuples all the way down


def test_json_is_the_same_for_the_same_plan(folder: Path) -> None:
    first, second = (lay_out(choose(_tiny(folder, "llama"), "bfloat16"), 50_000) for _ in range(2))
    assert to_json(first) == to_json(second)
    assert digest(first) != digest(dataclasses.replace(first, config={**first.config, "hidden_size": 1}))


def test_json_of_a_plan_with_problems(folder: Path) -> None:
    plan = _tiny(folder, "qwen3")
    sources = {k: v for k, v in plan.header.sources.items() if k != "blk.0.attn_q.weight"}
    sources["extra"] = Source("extra", "type 57", (), 0, 0, None)
    damaged = build(dataclasses.replace(plan.header, sources=sources))
    assert len(damaged.all_problems) == 2
    assert from_json(to_json(damaged)).all_problems == damaged.all_problems


@pytest.mark.parametrize("dtype", DTYPES)
def test_choose_pins_and_reasons(dtype: str) -> None:
    shapes = {"l.0.gate": (4, 4), "l.1.gate": (4, 4), "l.1.gate_proj": (4, 4), "l.gate": (4, 4), "norm": (4,)}
    plan = _plan(shapes, {"l.0.gate", "l.1.gate", "norm"})
    sources = dict(plan.header.sources)
    sources["s.norm"] = dataclasses.replace(sources["s.norm"], qtype="Q8_0")
    header = dataclasses.replace(plan.header, sources=sources)
    chosen = choose(dataclasses.replace(plan, header=header), dtype)
    assert {e.name: e.dtype for e in chosen.entries} == {
        "l.0.gate": "float32",
        "l.1.gate": "float32",
        "l.1.gate_proj": dtype,
        "l.gate": dtype,
        "norm": "float32",
    }
    assert {e.scheme for e in chosen.entries} == {"dense"}
    assert {e.name for e in chosen.entries if e.reason == "dequantized"} == {"norm"}


def test_choose_leaves_out_what_has_no_decoder() -> None:
    plan = _plan({"a": (4,), "b": (4,)})
    sources = {**plan.header.sources, "s.b": Source("s.b", "type 57", (4,), 0, 0, None)}
    chosen = choose(dataclasses.replace(plan, header=dataclasses.replace(plan.header, sources=sources)), "float16")
    assert [e.name for e in chosen.entries] == ["a"]


SHAPES = st.dictionaries(
    st.text("abcdefgh.0123456789", min_size=1, max_size=6),
    st.lists(st.integers(1, 9), max_size=3).map(tuple),
    max_size=24,
)


@settings(max_examples=150, deadline=None)
@given(shapes=SHAPES, limit=st.integers(1, 900), pins=st.sets(st.integers(0, 23)), dtype=st.sampled_from(DTYPES))
def test_layout(shapes: dict[str, tuple[int, ...]], limit: int, pins: set[int], dtype: str) -> None:
    names = list(shapes)
    pinned = frozenset(names[n] for n in pins if n < len(names))
    plan = lay_out(choose(_plan(shapes, pinned), dtype), limit)
    outputs = [o for e in plan.entries for o in e.outputs]
    assert [o.name for o in outputs] == names
    assert len(plan.shards) == len({o.shard for o in outputs})
    for entry in plan.entries:
        (output,) = entry.outputs
        assert (output.dtype, output.shape) == (entry.dtype, entry.shape)
        assert (
            output.stop - output.start
            == math.prod(entry.shape) * torch.empty(0, dtype=getattr(torch, entry.dtype)).itemsize
        )
    for index, shard in enumerate(plan.shards):
        inside = sorted((o for o in outputs if o.shard == index), key=lambda o: o.start)
        assert [o.start for o in inside] == [0, *(o.stop for o in inside[:-1])]  # neither hole nor overlap
        assert inside[-1].stop == shard.nbytes
        assert shard.nbytes <= limit or len(inside) == 1
    files = [shard.file for shard in plan.shards]
    if len(files) == 1:
        assert files == ["model.safetensors"]
    else:
        assert files == [f"model-{n + 1:05d}-of-{len(files):05d}.safetensors" for n in range(len(files))]
    shards = [o.shard for o in outputs]
    assert shards == sorted(shards)
    for before, after in itertools.pairwise(outputs):  # no shard is closed early
        if before.shard != after.shard:
            assert plan.shards[before.shard].nbytes + after.stop - after.start > limit


def test_order_in_a_shard_is_the_safetensors_library_s(tmp_path: Path) -> None:
    shapes = {
        "b": (3,),
        "a": (2, 2),
        "c.10": (5,),
        "c.9": (1,),
        "B": (7,),
        "é": (2,),
        "a.b": (1,),
        "a_b": (1,),
        "": (4,),
    }
    pinned = frozenset({"a", "c.9", "é"})
    plan = lay_out(choose(_plan(shapes, pinned), "bfloat16"), 10**6)
    tensors = {e.name: torch.zeros(e.shape, dtype=getattr(torch, e.dtype)) for e in plan.entries}
    save_file(tensors, tmp_path / "x.safetensors")
    raw = (tmp_path / "x.safetensors").read_bytes()
    written = json.loads(raw[8 : 8 + int(np.frombuffer(raw[:8], "<u8")[0])])
    ours = {o.name: [o.start, o.stop] for e in plan.entries for o in e.outputs}
    assert {name: row["data_offsets"] for name, row in written.items()} == ours


@pytest.mark.parametrize("size", [0, -1])
def test_a_shard_has_a_size(size: int) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        lay_out(choose(_plan({"a": (1,)}), "bfloat16"), size)


def test_folded_equations(folder: Path) -> None:
    rows = folded_equations(choose(_tiny(folder, "qwen3moe"), "bfloat16"))
    assert ("model.layers.{0..1}.self_attn.q_proj.weight", "[64, 64]", "bfloat16", "blk.{0..1}.attn_q.weight") in rows
    assert (
        "model.layers.{0..1}.mlp.experts.{0..3}.up_proj.weight",
        "[32, 64]",
        "bfloat16",
        "blk.{0..1}.ffn_up_exps.weight | take",
    ) in rows
    assert len(rows) == 15
    rows = folded_equations(choose(_tiny(folder, "llama"), repack="exact"))
    assert (
        "model.layers.{0..1}.self_attn.k_proj.weight",
        "[32, 64]",
        "int8_g32",
        "blk.{0..1}.attn_k.weight | unpermute(2)",
    ) in rows


def test_equation_text() -> None:
    entry = Entry("x", ("a", "b"), (("join",), ("take", 3), ("minus", 1)), (2,), False)
    assert entry.equation() == "a, b | join() | take(3) | minus(1)"


def test_problems_are_counted_and_kept() -> None:
    _plan({"a": (1,)}).require_complete()
    lacks: dict[str, Any] = {"problems": ("one",), "missing": {"x": "s.x, s.y"}, "unmapped": ("u.0", "u.1")}
    plan = dataclasses.replace(_plan({"a": (1,)}), **lacks)
    assert plan.all_problems == (
        "one",
        "HF tensors that nothing fills: x (the file lacks s.x, s.y)",
        "GGUF tensors without a place in the map toy: u.{0..1}",
    )
    with pytest.raises(CoverageError, match=r"a\.gguf: one \(and 2 more problems\)") as caught:
        plan.require_complete()
    assert caught.value.problems == plan.all_problems[1:]


def test_a_plan_of_37000_entries() -> None:
    """Qwen3-235B-A22B's size: every expert has its place, and the report stays one line per equation."""
    layers, experts = 94, 128
    hidden, heads, dim, ffn, vocab = 4096, 64, 128, 1536, 151936
    keys = {
        "block_count": layers,
        "context_length": 40960,
        "embedding_length": hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": 4,
        "attention.key_length": dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "expert_count": experts,
        "expert_used_count": 8,
        "expert_feed_forward_length": ffn,
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    for i in range(layers):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (hidden,),
            f"blk.{i}.ffn_norm.weight": (hidden,),
            f"blk.{i}.attn_q.weight": (heads * dim, hidden),
            f"blk.{i}.attn_k.weight": (4 * dim, hidden),
            f"blk.{i}.attn_v.weight": (4 * dim, hidden),
            f"blk.{i}.attn_output.weight": (hidden, heads * dim),
            f"blk.{i}.attn_q_norm.weight": (dim,),
            f"blk.{i}.attn_k_norm.weight": (dim,),
            f"blk.{i}.ffn_gate_inp.weight": (experts, hidden),
            f"blk.{i}.ffn_gate_exps.weight": (experts, ffn, hidden),
            f"blk.{i}.ffn_up_exps.weight": (experts, ffn, hidden),
            f"blk.{i}.ffn_down_exps.weight": (experts, hidden, ffn),
        }
    sources = {name: Source(name, "F32", shape, 0, 0, 4 * math.prod(shape)) for name, shape in shapes.items()}
    metadata: dict[str, Any] = {"general.architecture": "qwen3moe"} | {
        f"qwen3moe.{key}": value for key, value in keys.items()
    }
    plan = build(Header(("big.gguf",), (1 << 40,), 3, "little", metadata, sources))
    assert plan.all_problems == ()
    assert len(plan.entries) == layers * (9 + 3 * experts) + 2 == 36_944
    laid_out = lay_out(choose(plan, "bfloat16"), 5 * 10**9)
    assert len(folded_equations(laid_out)) == 14
    assert from_json(to_json(laid_out)).entries == laid_out.entries
    gone = {k: v for k, v in sources.items() if "ffn_up_exps" not in k}
    (line,) = build(Header(("big.gguf",), (1 << 40,), 3, "little", metadata, gone)).all_problems
    assert line == (
        "HF tensors that nothing fills: model.layers.{0..93}.mlp.experts.{0..127}.up_proj.weight"
        " (the file lacks blk.{0..93}.ffn_up_exps.weight)"
    )
