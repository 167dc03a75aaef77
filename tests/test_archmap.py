"""Arch maps: the shipped ones, every kind of mistake in a map, and the choice between maps."""

from pathlib import Path
from typing import Any

import pytest

from gguf2st.archmap import match_template
from gguf2st.archmap.mapfile import all_maps, load_map, maps_folder, select_map
from gguf2st.errors import MapError

SHIPPED = sorted(maps_folder().glob("*.toml"))

GOOD = """
arch    = "toy"
layers  = "block_count"
experts = "expert_count"
float32 = ["model.layers.{i}.mlp.gate.weight"]

[names]
hidden = "embedding_length"
heads  = "attention.head_count[i]"

[config]
hidden_size = "hidden"
"*rope"     = "rope(attention.key_length)"

[[tensors]]
"model.embed.weight"                           = "token_embd.weight -> [rows('token_embd.weight'), hidden]"
"model.layers.{i}.q.weight"                    = "blk.{i}.q.weight | unpermute(heads) -> [hidden, hidden]"
"model.layers.{i}.mlp.gate.weight"             = "blk.{i}.gate.weight -> [expert_count, hidden]"
"model.layers.{i}.mlp.experts.{e}.down.weight" = "blk.{i}.down.weight | take(e) -> [hidden, hidden]"

[[tensors]]
if = "has('blk.{i}.bias')"
"model.layers.{i}.q.bias" = "blk.{i}.bias | minus(1) -> [hidden]"

[fused]
"mlp.experts" = ["mlp.experts.{e}.down"]

[drop]
"blk.{i}.old.weight" = "computed anew"

[ignore]
block_size = "not used"
"""


def _load(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "toy.toml"
    path.write_text(text)
    return load_map(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_map(path: Path) -> None:
    amap = load_map(path)
    assert len(path.read_text().splitlines()) < 120
    equations = [equation for group in amap.groups for equation in group.equations]
    names = [equation.name for equation in equations]
    assert len(set(names)) == len(names)
    for members in amap.fused.values():
        for member in members:
            assert [n for n in names if n.endswith(f".{member}.weight")], member


def test_shipped_maps_are_found_and_distinct() -> None:
    maps = all_maps()
    assert len(maps) == len(SHIPPED) >= 5
    assert {(m.arch, m.when.text) for m in maps if m.arch == "llama"}
    assert len({(m.arch, m.when.text) for m in maps}) == len(maps)


def test_names_are_llama_cpp_s(llamacpp: Path) -> None:
    """The architecture and every GGUF tensor of a map are among those that llama.cpp's tables of names know."""
    text = (llamacpp / "src" / "llama-arch.cpp").read_text()
    for amap in all_maps():
        assert f'"{amap.arch}"' in text, amap.path
        for group in amap.groups:
            for equation in group.equations:
                for source in (s for way in equation.ways for s in way.sources):
                    name = source.replace("{i}", "%d").replace("{e}", "%d")
                    stems = (name, name.rpartition(".")[0])  # not all have .weight or the like
                    assert any(f'"{stem}"' in text for stem in stems), source


def test_a_map_in_full(tmp_path: Path) -> None:
    amap = _load(tmp_path, GOOD)
    assert amap.name == "toy"
    (first, second) = amap.groups
    assert [e.over_layers for e in first.equations] == [False, True, True, True]
    assert [e.over_experts for e in first.equations] == [False, False, False, True]
    assert second.condition.text == "has('blk.{i}.bias')"
    assert amap.per_layer == {"attention.head_count"}
    assert amap.keys >= {"block_count", "expert_count", "embedding_length", "attention.head_count", "rope."}
    unpermute = first.equations[1].ways[0].steps[0][1]
    assert amap.use(unpermute).indices == ("i",)
    assert amap.use(unpermute).keys == {"attention.head_count"}
    assert match_template("blk.12.old.weight", amap.drop) == "computed anew"
    assert match_template("blk.x.old.weight", amap.drop) is None
    assert match_template("blk.1.old.weight.more", amap.drop) is None


MISTAKES: dict[str, tuple[str, str, str]] = {
    "not TOML": ('arch    = "toy"', "arch = toy", "not valid TOML"),
    "duplicate equation": (
        '"model.layers.{i}.q.bias" =',
        '"model.layers.{i}.q.bias" = "a -> []"\n"model.layers.{i}.q.bias" =',
        "not valid TOML",
    ),
    "unknown table": ("[fused]", "[fusion]\n[fused]", "unknown table fusion"),
    "no arch": ('arch    = "toy"', "", "lacks 'arch'"),
    "no layers": ('layers  = "block_count"', "", "lacks 'layers'"),
    "no experts": ('experts = "expert_count"', "", "how many `experts` there are"),
    "arch is a number": ('"toy"', "7", "'arch' must be a text"),
    "layers is a number": ('"block_count"', "7", "must be a text"),
    "expression is no text": ('hidden = "embedding_length"', "hidden = 64", "must be a text"),
    "expression is nonsense": ('"embedding_length"', '"embedding_length +"', "not an expression"),
    "expression is forbidden": ('"embedding_length"', '"embedding_length ** 2"', "not allowed"),
    "unknown key": ('"embedding_length"', '"embeding_length"', "did you mean 'embedding_length'"),
    "unknown name": ("-> [hidden]", "-> [hiden]", "no metadata key 'hiden'"),
    "unknown function": ("rope(attention", "ropes(attention", "no function 'ropes'; there are .*rope"),
    "names in a circle": ('"attention.head_count[i]"', '"hidden * heads"', "heads.* refers to itself"),
    "names define i": ("hidden = ", 'i = "1"\nhidden = ', r"must not define i"),
    "layer index in the configuration": ('= "hidden"', '= "heads"', "'i', which has no meaning outside"),
    "layer index in the number of layers": ('= "block_count"', '= "block_count + i"', "no meaning outside"),
    "expert index in a layer": ("unpermute(heads)", "unpermute(e)", "'e', which has no meaning in the equation"),
    "layers after others, without an index": ("[[tensors]]", '[[tensors]]\nafter = "1"', "no {i} to count from there"),
    "layer index in the number of layers before": ('if = "has', 'after = "heads"\nif = "has', "no meaning in the num"),
    "layer index in a global shape": ("[rows('token_embd.weight'), hidden]", "[heads, hidden]", "no meaning in the"),
    "layer template in a global shape": ("rows('token_embd.weight')", "rows('blk.{i}.x')", "no meaning in the"),
    "expert index in a condition": ("has('blk.{i}.bias')", "e == 0", "no meaning in the condition"),
    "layer index in a condition on a global": (
        '"model.layers.{i}.q.bias" = "blk.{i}.bias',
        '"model.q.bias" = "bias',
        "no meaning in the condition",
    ),
    "a number of experts that depends on the layer": (
        'if = "has',
        'experts = "i"\nif = "has',
        "in the number of experts",
    ),
    "source has an index that the name lacks": ('"token_embd.weight ->', '"blk.{i}.x ->', "index that the name lacks"),
    "name has another index": ("{i}.q.bias", "{j}.q.bias", "indices of a name"),
    "unknown op": ("unpermute(", "unpermut(", "no op 'unpermut', did you mean unpermute"),
    "unknown op without a neighbour": ("unpermute(", "zzz(", "no op 'zzz'; there are concat, "),
    "too few arguments": ("unpermute(heads)", "unpermute()", "takes 1 arguments"),
    "too many arguments": ("unpermute(heads)", "unpermute(heads, 2)", "takes 1 arguments"),
    "arguments that are none": ("unpermute(heads)", "unpermute(1] + [2)", "takes 1 arguments"),
    "no argument list": ("unpermute(heads)", "unpermute", "takes 1 arguments"),
    "open parenthesis": ("unpermute(heads)", "unpermute(heads", "closing parenthesis"),
    "text after the call": ("unpermute(heads)", "unpermute(heads) twice", "closing parenthesis"),
    "empty op": ("| unpermute(heads)", "|", "no op ''"),
    "two sources without an op": ("blk.{i}.gate.weight ->", "blk.{i}.a, blk.{i}.b ->", "2 sources need an op"),
    "two sources and an op of one": ("blk.{i}.q.weight |", "blk.{i}.a, blk.{i}.b |", "takes 1 tensors, here 2"),
    "empty source": ('"token_embd.weight ->', '"token_embd.weight, ->', "source ''"),
    "an op that forgets": ("unpermute(heads)", "flatten", r"state the source's own, `blk.{i}.q.weight \[rows, cols\]"),
    "a join without shapes": ("blk.{i}.q.weight | unpermute(heads)", "blk.{i}.a [1], blk.{i}.b | concat", "`blk.{i}.b"),
    "an op that forgets, later": ("unpermute(heads)", "transpose | flatten", "state the source's own"),
    "unknown name in a source's shape": ("blk.{i}.q.weight |", "blk.{i}.q.weight [hiden] |", "no metadata key 'hiden'"),
    "layer index in a global source's shape": (
        "token_embd.weight -> [rows(",
        "token_embd.weight [heads] -> [rows(",
        "no meaning in the",
    ),
    "text after a source's shape": ("blk.{i}.q.weight |", "blk.{i}.q.weight [heads] x |", "is no tensor's name"),
    "open bracket": ("blk.{i}.q.weight |", "blk.{i}.q.weight [heads |", "is no tensor's name"),
    "a source's shape without a source": ("blk.{i}.q.weight |", "[heads] |", "is no tensor's name"),
    "a call for a source's shape": ("blk.{i}.q.weight |", "blk.{i}.q.weight [heads][0] |", "a shape is a list"),
    "no shape": (" -> [hidden]", "", "ends in the shape"),
    "empty shape": ("-> [hidden]", "->", "not an expression"),
    "shape is no list": ("-> [hidden]", "-> hidden", "a shape is a list"),
    "equation is no text": ('"blk.{i}.bias | minus(1) -> [hidden]"', "1", "must be a text"),
    "drop without a reason": ('"computed anew"', '" "', "needs a reason"),
    "drop with a number": ('"computed anew"', "1", "needs a reason"),
    "ignore without a reason": ('"not used"', '""', "needs a reason"),
    "float32 of no equation": ("mlp.gate.weight\"]", "mlp.gates.weight\"]", "no equation has"),
    "fused of no equation": ('"mlp.experts.{e}.down"]', '"mlp.experts.{e}.up"]', "no equation fills"),
    "fused is a text": ('["mlp.experts.{e}.down"]', '"mlp"', "no equation fills"),
    "fused is a number": ('["mlp.experts.{e}.down"]', "1", "wrong type"),
    "tensors is a table": ("[[tensors]]", "[tensors]", "TOML"),
    "deep nesting": ('arch    = "toy"', "arch = " + "[" * 5000, "not valid TOML"),
}  # fmt: skip
"""Kind -> (text of GOOD, what stands there instead, what the message says)."""


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_found_without_a_file(kind: str, tmp_path: Path) -> None:
    text, instead, message = MISTAKES[kind]
    assert text in GOOD
    with pytest.raises(MapError, match=message) as caught:
        _load(tmp_path, GOOD.replace(text, instead))
    assert str(tmp_path / "toy.toml") in caught.value.message


@pytest.mark.parametrize("table", ["names", "config", "require", "tensors", "fused", "drop", "ignore", "float32",
                                   "assumed", "constants"])  # fmt: skip
@pytest.mark.parametrize("value", ["1", '"text"', "[1]", "[[1]]", "{ a = 1 }", "true"])
def test_a_table_of_the_wrong_type_is_a_map_error(table: str, value: str, tmp_path: Path) -> None:
    text = f'{table} = {value}\narch = "toy"\nlayers = "block_count"\n'
    text += "".join(f"{t} = {{}}\n" for t in ("config",) if t != table)
    text += "".join(f"{t} = []\n" for t in ("tensors",) if t != table)
    if table == "constants" and value == "{ a = 1 }":
        assert _load(tmp_path, text).constants == {"a": 1}
    else:
        with pytest.raises(MapError):
            _load(tmp_path, text)


def test_a_source_may_state_its_shape(tmp_path: Path) -> None:
    text = GOOD.replace(
        "blk.{i}.q.weight |", "blk.{i}.q.weight [rows('blk.{i}.x'), [heads, 2][1]],blk.{i}.z[heads]|concat|"
    )
    way = _load(tmp_path, text).groups[0].equations[1].ways[0]
    assert way.sources == ("blk.{i}.q.weight", "blk.{i}.z")
    assert [shape.text for shape in way.source_shapes] == ["[rows('blk.{i}.x'), [heads, 2][1]]", "[heads]"]
    assert [op for op, _ in way.steps] == ["concat", "unpermute"]


def test_an_unreadable_map_is_named(tmp_path: Path) -> None:
    with pytest.raises(MapError, match=r"cannot read.*gone\.toml"):
        load_map(tmp_path / "gone.toml")
    (tmp_path / "latin.toml").write_bytes(b'arch = "\xff"')
    with pytest.raises(MapError, match="not valid TOML"):
        load_map(tmp_path / "latin.toml")


def _folder(tmp_path: Path, **maps: tuple[str, str]) -> Path:
    for name, (arch, when) in maps.items():
        text = f'{arch}\nwhen = "{when}"\nlayers = "block_count"\ntensors = []\n[config]\n'
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def test_the_one_map_whose_when_holds(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path,
        dense=('arch = "llama"', "expert_count == 0"),
        mixtral=('arch = "llama"', "expert_count > 0"),
        other=('arch = "llama4"', "True"),
    )
    assert select_map("llama", lambda m: m.name == "mixtral", folder=folder).name == "mixtral"
    with pytest.raises(MapError, match="2 arch maps fit") as caught:
        select_map("llama", lambda m: True, folder=folder)
    assert caught.value.problems == ("dense: when expert_count == 0", "mixtral: when expert_count > 0")
    assert f"--arch-map {folder}/NAME.toml" in caught.value.hint
    with pytest.raises(MapError, match=r"and none is for a file like this; nearest: llama4$") as caught:
        select_map("llama", lambda m: False, folder=folder)
    assert caught.value.problems == ("dense: when expert_count == 0", "mixtral: when expert_count > 0")
    for step in ("`gguf2st inspect SRC`", f"`gguf2st check SRC --arch-map {folder}/NAME.toml`", "how to write one"):
        assert step in caught.value.hint


@pytest.mark.parametrize(
    "line", ["arch='llama'", 'arch   =   "llama"', '  arch = """llama"""', "arch = '''llama''' # x"]
)
def test_every_spelling_of_a_toml_string_is_found(line: str, tmp_path: Path) -> None:
    assert select_map("llama", lambda m: True, folder=_folder(tmp_path, a=(line, "True"))).name == "a"


def test_a_broken_map_of_another_architecture_is_no_obstacle(tmp_path: Path) -> None:
    folder = _folder(tmp_path, good=('arch = "llama"', "True"), bad=('arch = "other"', "1 +"))
    (folder / "binary.toml").write_bytes(b"\xff\xfe")
    assert select_map("llama", lambda m: True, folder=folder).name == "good"


@pytest.mark.parametrize(
    ("arch", "nearest"),
    [("lama", "nearest: llama"), ("qwen9", "nearest: qwen"), ("gemma9", "gemma"), ("zzz", ""),
     ("ll.ma", "llama"), ("[", ""), ("", ""), ('llama"', "llama"), ("x" * 5000, "")],
)  # fmt: skip
def test_an_unknown_architecture_is_told_its_neighbours(arch: str, nearest: str) -> None:
    with pytest.raises(MapError, match="no arch map for architecture") as caught:
        select_map(arch, lambda m: True)
    assert nearest in caught.value.message
    assert ("nearest" in caught.value.message) == bool(nearest)
    assert "gguf2st archs" in caught.value.hint
