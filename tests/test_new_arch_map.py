"""The skeleton of a map, for architectures whose map is known: how far it is from that one."""

import dataclasses
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gguf2st.archmap.mapfile import all_maps, load_map, maps_folder
from gguf2st.errors import UsageError
from gguf2st.header import Header, Source, read_header
from gguf2st.plan import Plan
from gguf2st.plan.build import build
from scripts.new_arch_map import Skeleton, Target, match, skeleton, target_of_checkpoint, target_of_class, templates
from tests.oracle.tiny import oracle_gguf, original

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).resolve().parent.parent


def _without(arch: str, header: Header, target: Target, folder: Path) -> tuple[Skeleton, Plan, Plan]:
    """A skeleton made without the maps of an architecture, its plan for the file, and the plan of the real map."""
    made = skeleton(header, target, [m for m in all_maps() if m.arch != arch])
    path = folder / "made.toml"
    path.write_text(made.text)
    return made, build(header, arch_map=path), build(header)


def test_of_a_class(tmp_path: Path) -> None:
    """StarCoder 2: biases, LayerNorm, and an MLP with names that no other layer of this kind has."""
    header = read_header([oracle_gguf("starcoder2")])
    made, ours, real = _without("starcoder2", header, target_of_class("Starcoder2ForCausalLM", header), tmp_path)
    assert ours.all_problems == ()
    assert sorted(ours.entries, key=lambda e: e.name) == sorted(real.entries, key=lambda e: e.name)
    assert {key: ours.config[key] for key in ours.config if key in real.config} == {
        key: real.config[key] for key in real.config if key in ours.config
    }
    assert real.config.keys() - ours.config.keys() == {"hidden_act", "sliding_window"}  # which no header says
    assert made.flagged == tuple(
        f"model.layers.{{i}}.self_attn.{x}_proj.{kind}" for x in "qk" for kind in ("weight", "bias")
    )
    assert (made.guessed, made.lost, made.left, made.problems) == ((), (), (), ())


def test_of_a_checkpoint(tmp_path: Path) -> None:
    """Qwen 3: norms on heads, and a head wider than hidden / heads."""
    header = read_header([oracle_gguf("qwen3")])
    made, ours, real = _without("qwen3", header, target_of_checkpoint(original("qwen3")), tmp_path)
    assert ours.all_problems == ()
    assert sorted(ours.entries, key=lambda e: e.name) == sorted(real.entries, key=lambda e: e.name)
    assert real.config.keys() - ours.config.keys() == {"hidden_act", "use_sliding_window"}
    assert ours.fused == real.fused
    assert made.flagged == tuple(f"model.layers.{{i}}.self_attn.{x}_proj.weight" for x in "kq")


def test_rows_that_are_permuted_are_for_the_reader_to_see(tmp_path: Path) -> None:
    """Llama differs from its map in just the lines that are flagged, and what their comment says mends them."""
    header = read_header([oracle_gguf("llama")])
    made, ours, real = _without("llama", header, target_of_class("LlamaForCausalLM", header), tmp_path)
    assert ours.all_problems == ()
    theirs = {e.name: e for e in real.entries}
    different = {re.sub(r"\d+", "{i}", e.name) for e in ours.entries if e != theirs.pop(e.name)}
    assert theirs == {}
    assert different == set(made.flagged)
    text, n = re.subn(r' -> (\[.*\])" # decide: .* Then (\| .*)', r' \2 -> \1"', made.text)
    assert n == len(made.flagged)
    (tmp_path / "mended.toml").write_text(text)
    mended = build(header, arch_map=tmp_path / "mended.toml")
    assert sorted(mended.entries, key=lambda e: e.name) == sorted(real.entries, key=lambda e: e.name)


def test_an_index_alone_has_names_and_no_shapes(tmp_path: Path) -> None:
    names = templates(dict.fromkeys(target_of_checkpoint(original("qwen3")).tensors))
    (tmp_path / "config.json").write_bytes((original("qwen3") / "config.json").read_bytes())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(target_of_checkpoint(original("qwen3")).tensors, "x")}))
    target = target_of_checkpoint(index)
    assert set(target.tensors.values()) == {None}
    made = skeleton(read_header([oracle_gguf("qwen3")]), target, [m for m in all_maps() if m.arch != "qwen3"])
    assert made.equations.keys() == names.shapes.keys()
    assert "[q, hidden]" in made.text


def _with_tensor(header: Header, name: str, shape: tuple[int, ...]) -> Header:
    source = Source(name, "F32", shape, 0, 0, 4)
    return dataclasses.replace(header, sources={**header.sources, name: source})


def test_what_has_no_partner_is_listed(tmp_path: Path) -> None:
    header = _with_tensor(read_header([oracle_gguf("starcoder2")]), "blk.0.attn_rot_embd.weight", (5, 7))
    target = target_of_class("Starcoder2ForCausalLM", header)
    target = dataclasses.replace(target, tensors={**target.tensors, "model.layers.0.extra.weight": (3, 3)})
    made = skeleton(header, target, all_maps())
    assert made.lost == ("model.layers.{i}.extra.weight",)
    assert made.left == ("blk.{i}.attn_rot_embd.weight",)
    assert "# decide: nothing in the file becomes model.layers.{i}.extra.weight [3, 3]" in made.text
    assert [line for line in made.problems if "blk.0.attn_rot_embd.weight" in line]


@pytest.mark.parametrize(
    ("theirs", "ours", "expected", "guessed"),
    [
        # known names beat a shape that fits better elsewhere; what is left over goes by its shape alone
        ({"a": (4, 2), "b": (4, 2)}, {"x": (4, 2), "y": (4, 2)}, {"x": "b", "y": "a"}, ["y"]),
        ({"a": (4, 2), "b": (2, 4)}, {"x": (4, 2)}, {"x": "a"}, ["x"]),  # the known partner has another shape
        ({"a": (4, 2), "c": (4, 2)}, {"y": (4, 2)}, {}, []),  # two could be it
        ({"a": (4, 2)}, {"y": (4, 2), "z": (4, 2)}, {}, []),  # it could be either
        ({"blk_L_a": (4, 2)}, {"y": (4, 2)}, {}, []),  # a layer's tensor is none outside the layers
    ],
)
def test_matching(
    theirs: dict[str, tuple[int, ...]], ours: dict[str, tuple[int, ...]], expected: dict[str, str], guessed: list[str]
) -> None:
    with_kind = [{f"{name}.weight": shape for name, shape in side.items()} for side in (theirs, ours)]
    sides = [templates({n.replace("_L_", ".0."): s for n, s in side.items()}) for side in with_kind]
    pairs = Counter({("b.weight", "x.weight"): 3})
    found, alone = match(*sides, pairs)
    assert found == {f"{x}.weight": f"{y}.weight" for x, y in expected.items()}
    assert alone == [f"{name}.weight" for name in guessed]


@pytest.mark.parametrize("name", ["NoSuchForCausalLM", "AutoModelForCausalLM", "set_seed"])
def test_no_such_class(name: str) -> None:
    with pytest.raises(UsageError, match="no model class"):
        target_of_class(name, read_header([oracle_gguf("qwen3")]))


def test_the_program_writes_once(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts/new_arch_map.py", oracle_gguf("qwen3"), original("qwen3")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("qwen3.toml: ")
    assert load_map(tmp_path / "qwen3.toml").arch == load_map(maps_folder() / "qwen3.toml").arch
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert again.stderr == "error: qwen3.toml exists already; choose another name with -o\n"


def test_the_docs_show_a_case_of_the_table() -> None:
    text = (ROOT / "docs/adding-an-architecture.md").read_text()
    (case,) = re.findall(r"^```py\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    families = (ROOT / "tests/oracle/families").glob("*.py")
    assert any(f"    {case}\n" in path.read_text() for path in families)
