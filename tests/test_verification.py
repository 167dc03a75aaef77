"""Damage of every kind is found and named, by the cheapest level that can; good checkpoints of any kind pass."""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import gguf2st
from gguf2st.errors import SourceError, VerifyError
from gguf2st.verification import Verification, checkpoint_dtype, numerical
from gguf2st.verification.checkpoint import Checkpoint
from gguf2st.verification.checkpoint import Tensor as Row
from gguf2st.verification.consistency import consistency
from tests.make_gguf import ARCHS, tiny_model

transformers: Any = transformers_module  # its constructors carry no types

Tensors = dict[str, Tensor]
Config = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
LAYER = "model.layers.2."
LAYERS = 4


@dataclasses.dataclass(frozen=True)
class Good:
    """A source and what was made of it: in one file, and in several shards."""

    source: Path
    single: Path
    sharded: Path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    folder = tmp_path_factory.mktemp("good")
    source = tiny_model(folder / "m.gguf", "llama", layers=LAYERS, tied=False, qtype="Q8_0")
    gguf2st.convert(source, folder / "single")
    gguf2st.convert(source, folder / "sharded", max_shard_size=100_000)
    return Good(source, folder / "single", folder / "sharded")


def copy_of(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "model"))


def assert_found(result: Verification, words: str) -> None:
    assert any(re.search(words, problem) for problem in result.problems), (words, result.problems)
    assert not result.ok
    with pytest.raises(VerifyError) as caught:
        result.require_ok()
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("form", ["single", "sharded"])
def test_good_checkpoints_pass(form: str, good: Good) -> None:
    folder = getattr(good, form)
    alone = gguf2st.verify(folder)
    assert alone == Verification(
        str(folder), 9 * LAYERS + 3, alone.parameters, 2 * alone.parameters, ("structural",), 0, ()
    )
    against = gguf2st.verify(folder, good.source, model=True)
    assert against.problems == ()
    assert against.levels == ("structural", "numerical", "model")
    assert against.compared == against.parameters == sum(t.numel() for t in _tensors(good.single).values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("arch", ARCHS)
def test_all_levels_pass_for_every_architecture(arch: str, dtype: str, tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m.gguf", arch, layers=3, qtype="Q4_0", tied=arch == "gemma3")
    gguf2st.convert(source, tmp_path / "out", dtype=dtype)
    assert gguf2st.verify(tmp_path / "out", source, model=True).problems == ()


# --- Tensors -----------------------------------------------------------------------------------------------------
# What vLLM 0.28 makes of each defect is in its comment; most of them it loads without a word.


@dataclasses.dataclass(frozen=True)
class Damage:
    """A change to tensors and configuration; `alone`: whether it is found without a source and without transformers."""

    change: Callable[[Tensors, Config], object]
    words: str
    alone: bool = True
    against: bool = True
    model: bool = True


def remove(pattern: str) -> Callable[[Tensors, Config], object]:
    def change(tensors: Tensors, config: Config) -> None:
        names = [name for name in tensors if re.fullmatch(pattern, name)]
        assert names
        for name in names:
            del tensors[name]

    return change


def replace(pattern: str, function: Callable[[Tensor], Tensor]) -> Callable[[Tensors, Config], object]:
    def change(tensors: Tensors, config: Config) -> None:
        names = [name for name in tensors if re.fullmatch(pattern, name)]
        assert names
        for name in names:
            tensors[name] = function(tensors[name]).contiguous()

    return change


def add(name: str, *shape: int, **config: Any) -> Callable[[Tensors, Config], object]:
    return lambda tensors, c: (tensors.update({name: torch.ones(shape, dtype=torch.bfloat16)}), c.update(config))


def configure(**keys: Any) -> Callable[[Tensors, Config], object]:
    return lambda tensors, config: config.update(keys)


def more_rows(t: Tensor) -> Tensor:
    return torch.cat([t, t[: len(t) // 2]])


def fewer_rows(t: Tensor) -> Tensor:
    return t[: len(t) // 2]


def every_layer(name: str) -> str:
    return rf"model\.layers\.\d+\.{name}\.weight"


NORM, QUERY, OUT, DOWN = (
    f"{LAYER}{x}.weight" for x in ("input_layernorm", "self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")
)

DAMAGES: dict[str, Damage] = {
    # vLLM: ValueError
    "layer norm missing": Damage(remove(NORM), "layers.2.input_layernorm"),
    "final norm missing": Damage(remove("model.norm.weight"), "norm"),
    # vLLM: silent garbage, all of these
    "embedding missing": Damage(remove("model.embed_tokens.weight"), "embed"),
    "head missing, not tied": Damage(remove("lm_head.weight"), "lm_head"),
    **{
        f"{x} missing": Damage(remove(f"{LAYER}{x}.weight"), f"layers.2.{x}")
        for x in (
            *(f"self_attn.{p}_proj" for p in "qkvo"),
            *(f"mlp.{p}_proj" for p in ("gate", "up", "down")),
        )
    },
    "q_proj of the first layer missing": Damage(
        remove(r"model\.layers\.0\.self_attn\.q_proj.*"), "layers.0.self_attn.q_proj"
    ),
    "qkv missing": Damage(remove(rf"{LAYER}self_attn\.[qkv]_proj.*"), "layers.2.self_attn"),
    **{f"every {p}_proj missing": Damage(remove(every_layer(rf"self_attn\.{p}_proj")), f"{p}_proj") for p in "qkvo"},
    "every qkv missing": Damage(remove(every_layer(r"self_attn\.[qkv]_proj")), "q_proj"),
    "every up_proj missing": Damage(remove(every_layer(r"mlp\.up_proj")), "up_proj"),
    "every down_proj missing": Damage(remove(every_layer(r"mlp\.down_proj")), "down_proj"),
    # a feed-forward without a gate is an architecture of its own
    "every gate_proj missing": Damage(remove(every_layer(r"mlp\.gate_proj")), "gate_proj", alone=False),
    # vLLM: caught, but only by their norms
    "last layer missing": Damage(remove(r"model\.layers\.3\..*"), r"4 layers.*3|model\.layers\.3"),
    "a layer in the middle missing": Damage(remove(r"model\.layers\.1\..*"), r"layers\.1"),
    "configuration has more layers": Damage(
        configure(num_hidden_layers=6), r"6 layers.*4|layers\.\{4\.\.5\}|num_hidden_layers = 6"
    ),
    # vLLM: ValueError
    "configuration has fewer layers": Damage(
        configure(num_hidden_layers=3), r"3 layers.*4|layers\.3|num_hidden_layers = 3"
    ),
    "extra tensor": Damage(add("model.rope_freqs.weight", 32), "model.rope_freqs.weight", alone=False),
    # vLLM: dropped silently
    "extra bias": Damage(add(f"{LAYER}self_attn.q_proj.bias", 64), r"q_proj\.bias"),
    "extra bias of the feed-forward": Damage(add(f"{LAYER}mlp.up_proj.bias", 128), r"up_proj\.bias"),
    "biases promised": Damage(configure(attention_bias=True), r"attention_bias|q_proj\.bias"),
    "head present, tied": Damage(configure(tie_word_embeddings=True), r"tie_word_embeddings", model=False),
    # vLLM: silent truncation
    "more rows in q_proj": Damage(replace(QUERY, more_rows), r"layers\.2\.self_attn\.q_proj"),
    "more rows in every q_proj": Damage(replace(every_layer(r"self_attn\.q_proj"), more_rows), r"self_attn\.q_proj"),
    "more rows in every k_proj": Damage(replace(every_layer(r"self_attn\.k_proj"), more_rows), r"self_attn\.k_proj"),
    # vLLM: RuntimeError
    "fewer rows in q_proj": Damage(replace(QUERY, fewer_rows), r"layers\.2\.self_attn\.q_proj"),
    "down_proj transposed": Damage(replace(DOWN, torch.t), r"layers\.2\.mlp\.down_proj"),
    "every down_proj transposed": Damage(replace(every_layer(r"mlp\.down_proj"), torch.t), r"mlp\.down_proj"),
    # same shape: only the values tell; vLLM: silent garbage
    "square o_proj transposed": Damage(
        replace(OUT, torch.t), r"layers\.2\.self_attn\.o_proj", alone=False, model=False
    ),
    # vLLM: AssertionError
    "norm of another length": Damage(replace(NORM, fewer_rows), r"layers\.2\.input_layernorm"),
    "rows of o_proj": Damage(replace(OUT, fewer_rows), r"layers\.2\.self_attn\.o_proj"),
    "more rows in the embedding": Damage(replace("model.embed_tokens.weight", more_rows), "embed_tokens"),
    "fewer rows in the embedding": Damage(replace("model.embed_tokens.weight", fewer_rows), "embed_tokens"),
    "fewer rows in the head": Damage(replace("lm_head.weight", fewer_rows), "lm_head"),
    # vLLM: loads, with a cast
    "float32 weight": Damage(replace(QUERY, Tensor.float), r"layers\.2\.self_attn\.q_proj", model=False),
    "float16 weight": Damage(replace(QUERY, Tensor.half), r"layers\.2\.self_attn\.q_proj", model=False),
    "all weights float32": Damage(replace(".*", Tensor.float), "dtype", alone=False, model=False),
}


def _tensors(folder: Path) -> Tensors:
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def damaged(good: Good, tmp_path: Path, change: Callable[[Tensors, Config], object]) -> Path:
    folder = copy_of(good.single, tmp_path)
    tensors, config = _tensors(folder), json.loads((folder / "config.json").read_text())
    change(tensors, config)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_found_alone(case: str, good: Good, tmp_path: Path) -> None:
    damage = DAMAGES[case]
    result = gguf2st.verify(damaged(good, tmp_path, damage.change))
    if damage.alone:
        assert_found(result, damage.words)
    else:
        assert result.ok, "a level that finds more than the table says: change the table"


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_found_against_the_source(case: str, good: Good, tmp_path: Path) -> None:
    damage = DAMAGES[case]
    assert damage.against, "the source tells everything"
    result = gguf2st.verify(damaged(good, tmp_path, damage.change), good.source)
    assert_found(result, damage.words)


@pytest.mark.parametrize("case", [name for name, damage in DAMAGES.items() if damage.model])
def test_damage_found_by_the_model_class(case: str, good: Good, tmp_path: Path) -> None:
    damage = DAMAGES[case]
    folder = damaged(good, tmp_path, damage.change)
    alone = gguf2st.verify(folder).problems
    result = gguf2st.verify(folder, model=True)
    assert_found(dataclasses.replace(result, problems=result.problems[len(alone) :]), damage.words)


@pytest.mark.parametrize("what", ["gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize("kind", ["tensor", "expert", "last expert", "shape"])
def test_damaged_experts(kind: str, what: str, tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m.gguf", "qwen3moe", layers=2, experts=4)
    gguf2st.convert(source, tmp_path / "out")
    file = tmp_path / "out/model.safetensors"
    tensors = load_file(file)
    prefix = f"model.layers.1.mlp.experts.{3 if kind == 'last expert' else 1}."
    if kind == "tensor":
        del tensors[f"{prefix}{what}.weight"]
    elif kind == "shape":
        tensors[f"{prefix}{what}.weight"] = tensors[f"{prefix}{what}.weight"][:-1].contiguous()
    else:
        tensors = {name: t for name, t in tensors.items() if not name.startswith(prefix)}
    save_file(tensors, file, metadata={"format": "pt"})
    levels: dict[str, dict[str, Any]] = {"alone": {}, "against": {"against": source}, "model": {"model": True}}
    for options in levels.values():
        result = gguf2st.verify(tmp_path / "out", **options)
        assert_found(result, r"layers\.1\.mlp\.experts\b")


def test_every_flipped_bit_is_found(good: Good, tmp_path: Path) -> None:
    """The lowest bit of one value in each tensor, the last value included: only the numerical level sees it."""
    folder = copy_of(good.single, tmp_path)
    path = folder / "model.safetensors"
    clean = path.read_bytes()
    start = 8 + int.from_bytes(clean[:8], "little")
    table = json.loads(clean[8:start])
    rows = {name: row for name, row in table.items() if name != "__metadata__"}
    assert len(rows) == 9 * LAYERS + 3
    for number, (name, row) in enumerate(rows.items()):
        first, stop = row["data_offsets"]
        at = start + (first if number % 2 else stop - 2)
        path.write_bytes(clean[:at] + bytes([clean[at] ^ 1]) + clean[at + 1 :])
        assert gguf2st.verify(folder).ok
        problems = gguf2st.verify(folder, good.source).problems
        assert len(problems) == 1
        assert problems[0].startswith(f"{name}: 1 of {np.prod(row['shape'])} values differ"), problems


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_the_differing_row_is_named(rows: int, good: Good, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerical, "CHUNK_ELEMENTS", rows * 64)

    def change(tensors: Tensors, config: Config) -> None:
        tensors[QUERY][[13, 40]] += 1

    result = gguf2st.verify(damaged(good, tmp_path, change), good.source)
    assert result.problems == (f"{QUERY}: 128 of 4096 values differ from the source, the first in row 13 of [64, 64]",)


def test_negative_zero_is_a_difference(good: Good, tmp_path: Path) -> None:
    """Values are compared as bits: nothing that was not written by the same rule passes."""
    source = tiny_model(tmp_path / "m.gguf", extra_tensors={"output_norm.weight": np.zeros(64, np.float32)})
    gguf2st.convert(source, tmp_path / "out")
    tensors = load_file(tmp_path / "out/model.safetensors")
    tensors["model.norm.weight"] = -tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "out/model.safetensors", metadata={"format": "pt"})
    assert_found(gguf2st.verify(tmp_path / "out", source), r"model\.norm\.weight: 64 of 64 values differ")


# --- Files -------------------------------------------------------------------------------------------------------


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def rename_last_shard(folder: Path) -> None:
    shards(folder)[-1].rename(folder / "model-00009-of-00009.safetensors")


def repeat_a_tensor(folder: Path) -> None:
    first, second = shards(folder)[:2]
    tensors = load_file(second) | {"model.embed_tokens.weight": load_file(first)["model.embed_tokens.weight"]}
    save_file(tensors, second, metadata={"format": "pt"})


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone")


def beside(name: str) -> tuple[str, Callable[[Path], object], str]:
    return "single", lambda folder: (folder / name).touch(), re.escape(name)


def resave(metadata: dict[str, str] | None) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors", metadata=metadata)

    return change


INDEX = "model.safetensors.index.json"
FILE_DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "index names a missing shard": ("sharded", rename_last_shard, "model-0000[0-9]-of-0000[0-8]"),
    "shard gone": ("sharded", lambda f: shards(f)[1].unlink(), "model-00002-of-0000"),
    "shard not in the index": (
        "sharded",
        lambda f: shutil.copy(shards(f)[0], f / "extra.safetensors"),
        "extra.safetensors",
    ),
    "index lacks a tensor": (
        "sharded",
        lambda f: edit_json(f / INDEX, lambda i: i["weight_map"].pop("model.norm.weight")),
        r"model\.norm",
    ),
    "index has one too many": (
        "sharded",
        lambda f: edit_json(f / INDEX, lambda i: i["weight_map"].update(x=shards(f)[0].name)),
        r"\bx\b",
    ),
    "index puts a tensor elsewhere": (
        "sharded",
        lambda f: edit_json(f / INDEX, lambda i: i["weight_map"].update({"model.norm.weight": shards(f)[0].name})),
        r"model\.norm",
    ),
    "total_size is wrong": (
        "sharded",
        lambda f: edit_json(f / INDEX, lambda i: i["metadata"].update(total_size=5)),
        "total_size of 5",
    ),
    "total_size is absent": ("sharded", lambda f: edit_json(f / INDEX, lambda i: i.update(metadata=[])), "total_size"),
    "weight_map is a list": (
        "sharded",
        lambda f: edit_json(f / INDEX, lambda i: i.update(weight_map=[1])),
        "weight_map",
    ),
    "weight_map holds numbers": (
        "sharded",
        lambda f: edit_json(f / INDEX, lambda i: i.update(weight_map={"a": 1})),
        "weight_map",
    ),
    "index is no JSON": ("sharded", lambda f: (f / INDEX).write_text("{"), INDEX),
    "index gone": ("sharded", lambda f: (f / INDEX).unlink(), INDEX),
    "a tensor twice": (
        "sharded",
        repeat_a_tensor,
        r"model\.embed_tokens\.weight is in model-00001.* and in model-00002",
    ),
    "shard of another split": (
        "sharded",
        lambda f: shutil.copy(shards(f)[0], f / "model-00001-of-00099.safetensors"),
        "00099",
    ),
    "second model file": (
        "single",
        lambda f: shutil.copy(f / "model.safetensors", f / "model-00001-of-00002.safetensors"),
        "model-00001-of-00002",
    ),
    "no weights": ("single", lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors"),
    # vLLM reads those and nothing else
    "consolidated": (
        "single",
        lambda f: shutil.copy(f / "model.safetensors", f / "consolidated.safetensors"),
        r"consolidated\.safetensors",
    ),
    "consolidated shard": (
        "sharded",
        lambda f: shutil.copy(shards(f)[0], f / "consolidated-00001-of-00002.safetensors"),
        "consolidated-00001",
    ),
    "shard truncated": ("sharded", lambda f: os.truncate(shards(f)[1], 50_000), "model-00002-of-"),
    "shard empty": ("sharded", lambda f: os.truncate(shards(f)[1], 0), "model-00002-of-"),
    "trailing byte": (
        "single",
        lambda f: os.truncate(f / "model.safetensors", (f / "model.safetensors").stat().st_size + 1),
        "model.safetensors",
    ),
    "shard is a dangling link": ("sharded", lambda f: become_link(shards(f)[1]), "model-00002"),
    "shard is a folder": ("sharded", lambda f: (f / "model-00007-of-00007.safetensors").mkdir(), "model-00007"),
    "no format": ("single", resave(None), "format"),
    "another format": ("single", resave({"format": "gguf"}), "format"),
    "unfinished shard": (
        "sharded",
        lambda f: (f / "model-00003-of-00003.safetensors.part").touch(),
        r"safetensors\.part",
    ),
    "unfinished file": ("single", lambda f: (f / "tokenizer.json.part").touch(), r"tokenizer\.json\.part"),
    **{f"{x} beside": beside(x) for x in ("pytorch_model.bin", "m.gguf", "a.pth", "a.pt")},
    "config gone": ("single", lambda f: (f / "config.json").unlink(), r"config\.json"),
    "config is no JSON": ("single", lambda f: (f / "config.json").write_bytes(b"\xff{"), r"config\.json"),
    "config is a list": ("single", lambda f: (f / "config.json").write_text("[]"), r"config\.json"),
    "config is empty": ("single", lambda f: (f / "config.json").write_text("{}"), r"config\.json"),
    "config is a folder": (
        "single",
        lambda f: become_folder(f / "config.json"),
        r"config\.json",
    ),
    "generation_config is no JSON": (
        "single",
        lambda f: (f / "generation_config.json").write_text("{"),
        r"generation_config\.json",
    ),
    "tokenizer is cut": ("single", lambda f: os.truncate(f / "tokenizer.json", 100), r"tokenizer\.json"),
    "tokenizer gone": ("single", lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
}


NOTHING_LEFT = ("no weights", "trailing byte")
"""No readable weight that could be compared: an error instead of a result, with the same problems."""


@pytest.mark.parametrize("with_source", [False, True], ids=["alone", "against"])
@pytest.mark.parametrize("case", FILE_DAMAGES)
def test_damaged_files(case: str, with_source: bool, good: Good, tmp_path: Path) -> None:
    form, change, words = FILE_DAMAGES[case]
    folder = copy_of(getattr(good, form), tmp_path)
    change(folder)
    if with_source and case in NOTHING_LEFT:
        with pytest.raises(VerifyError) as caught:
            gguf2st.verify(folder, good.source)
        assert any(re.search(words, line) for line in caught.value.problems)
    else:
        assert_found(gguf2st.verify(folder, good.source if with_source else None), words)


def test_a_folder_that_is_not_there(good: Good, tmp_path: Path) -> None:
    for name, words in {"gone": "is not there", "m.gguf": "is not a folder"}.items():
        for source in (None, good.source):
            with pytest.raises(SourceError, match=words) as caught:
                gguf2st.verify(good.source.parent / name, source)
            assert caught.value.exit_code == 3


# --- Configuration and tokenizer ---------------------------------------------------------------------------------

WEIRD: tuple[Any, ...] = (None, -1, "x", [1], {"a": [1]}, True, 0, 1.5, "", [], {}, False, 10**12)


def test_any_config_value_is_looked_at_without_falling_over(good: Good, tmp_path: Path) -> None:
    """With a source every change of a key that we write is found; without one, none may raise."""
    folder = copy_of(good.single, tmp_path)
    clean = json.loads((folder / "config.json").read_text())
    for key in (*clean, "quantization_config", "is_encoder_decoder", "layer_types", "num_nextn_predict_layers"):
        for value in WEIRD:
            if clean.get(key) == value:
                continue
            (folder / "config.json").write_text(json.dumps({**clean, key: value}))
            gguf2st.verify(folder)
            if key in clean and value in WEIRD[:6]:
                problems = gguf2st.verify(folder, good.source).problems
                assert any(key in problem for problem in problems), (key, value, problems)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_every_key_of_a_configuration_is_needed(file: str, good: Good, tmp_path: Path) -> None:
    folder = copy_of(good.single, tmp_path)
    clean = json.loads((folder / file).read_text())
    for key in clean:
        (folder / file).write_text(json.dumps({k: v for k, v in clean.items() if k != key}))
        assert_found(gguf2st.verify(folder, good.source), f"{file} lacks {key}")


def test_further_keys_are_left_alone(good: Good, tmp_path: Path) -> None:
    """A checkpoint that somebody else wrote says more than a GGUF can."""
    folder = copy_of(good.single, tmp_path)
    edit_json(folder / "config.json", lambda c: c.update(transformers_version="4.57", initializer_range=0.02))
    assert gguf2st.verify(folder, good.source, model=True).ok


def test_another_vocabulary_is_found(good: Good, tmp_path: Path) -> None:
    folder = copy_of(good.single, tmp_path)

    def swap(content: Any) -> None:
        vocab = content["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]

    edit_json(folder / "tokenizer.json", swap)
    assert gguf2st.verify(folder).ok
    assert_found(gguf2st.verify(folder, good.source), r"2 tokens differ")


def test_the_dtype_of_the_comparison_is_that_of_the_weights(good: Good, tmp_path: Path) -> None:
    assert checkpoint_dtype(good.single) == "bfloat16"
    folder = damaged(good, tmp_path, replace(".*norm.*", Tensor.float))
    assert checkpoint_dtype(folder) == "bfloat16"
    edit_json(folder / "config.json", lambda c: (c.update(dtype="float16"), c.pop("torch_dtype")))
    assert checkpoint_dtype(folder) == "bfloat16"


def test_against_another_source(good: Good, tmp_path: Path) -> None:
    other = tiny_model(tmp_path / "other.gguf", "llama", layers=LAYERS, tied=False, qtype="Q8_0", seed=9)
    first, *problems = gguf2st.verify(good.single, other).problems
    assert first == "this was made from m.gguf, as gguf2st.json says, and is compared with other.gguf"
    assert len(problems) == 9 * LAYERS + 3
    assert all("values differ from the source" in problem for problem in problems)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("blk.{i}.ffn_gate.weight", "blk.{i}.ffn_up.weight", r"gate_proj\.weight comes from blk\.0\.ffn_up\.weight"),
        ("blk.{i}.attn_k.weight", "blk.{i}.attn_v.weight", r"k_proj\.weight comes from blk\.0\.attn_v\.weight"),
        ("token_embd.weight", "output.weight", r"embed_tokens\.weight comes from output\.weight"),
    ],
)
def test_a_wrong_arch_map_is_found_by_llama_cpp_s_names(first: str, second: str, words: str, tmp_path: Path) -> None:
    """Two tensors of one shape exchanged: every value agrees with a plan from the same map."""
    text = (ROOT / "arch_maps/llama.toml").read_text()
    other = {f'"{first}': f'"{second}', f'"{second}': f'"{first}'}  # as an equation begins
    text, n = re.subn("|".join(map(re.escape, other)), lambda match: other[match[0]], text)
    assert n == 2
    (tmp_path / "map.toml").write_text(text)
    source = tiny_model(tmp_path / "m.gguf", tied=False, kv_heads=4)
    gguf2st.convert(source, tmp_path / "out", arch_map=tmp_path / "map.toml")
    assert gguf2st.verify(tmp_path / "out", model=True).ok
    assert_found(gguf2st.verify(tmp_path / "out", source, arch_map=tmp_path / "map.toml"), words)


# --- No false alarms ---------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
OTHERS: dict[str, dict[str, Any]] = {
    "LlamaConfig": {},
    "MistralConfig": {"head_dim": 32},
    "Gemma2Config": {"head_dim": 32},
    "Gemma3TextConfig": {"head_dim": 32, "layer_types": None},
    "Qwen2Config": {"tie_word_embeddings": True},
    "Qwen3Config": {"head_dim": 32},
    "Qwen2MoeConfig": {**EXPERTS, "shared_expert_intermediate_size": 32, "mlp_only_layers": [0]},
    "Qwen3MoeConfig": {**EXPERTS, "mlp_only_layers": [0]},
    "MixtralConfig": EXPERTS,
    "GptOssConfig": {**EXPERTS, "head_dim": 16},
    "DeepseekV3Config": {
        **EXPERTS,
        **LATENT,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "GPT2Config": {"n_layer": 5, "n_embd": 64, "n_head": 4},
    "GPTNeoXConfig": {},
    "Phi3Config": {},
    "FalconConfig": {},
    "OPTConfig": {"num_key_value_heads": 4, "ffn_dim": 96, "word_embed_proj_dim": 32},
    "BertConfig": {"is_decoder": True},
    "Cohere2Config": {},
    "Olmo2Config": {},
    "MambaConfig": {},
    "JambaConfig": {**EXPERTS, "mamba_d_state": 4},
    "Qwen3NextConfig": {**EXPERTS, "head_dim": 32, "shared_expert_intermediate_size": 32},
    "ModernBertDecoderConfig": {"pad_token_id": 0},
}


@pytest.mark.parametrize("config", OTHERS)
def test_checkpoints_of_transformers_pass(config: str, tmp_path: Path) -> None:
    made = getattr(transformers, config)(**{**SMALL, **OTHERS[config]})
    model = transformers.AutoModelForCausalLM.from_config(made).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert gguf2st.verify(tmp_path).problems == ()
    assert gguf2st.verify(tmp_path, model=True).problems == ()


def test_layers_that_are_empty_by_design(tmp_path: Path) -> None:
    """Nemotron Ultra: some layers have lost attention and feed-forward, in the middle and at the end."""
    made = transformers.LlamaConfig(**SMALL)
    model = transformers.AutoModelForCausalLM.from_config(made).to(torch.bfloat16)
    empty = {"layers.2.", "layers.4."}
    state = {n: t for n, t in model.state_dict().items() if not any(word in n for word in empty)}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "tokenizer.json").write_text("{}")
    blocks = [{"attention": {"no_op": i in (2, 4)}, "ffn": {"no_op": i in (2, 4), "ffn_mult": None}} for i in range(5)]
    config = json.loads(made.to_json_string()) | {"model_type": "nemotron-nas", "dtype": "bfloat16"}
    config |= {"architectures": ["DeciLMForCausalLM"], "block_configs": blocks}

    def problems() -> tuple[str, ...]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return gguf2st.verify(tmp_path).problems

    assert problems() == ()
    blocks[2]["ffn"]["no_op"] = False
    assert problems() == ("no tensors at all for model.layers.2",)
    blocks[2]["ffn"]["no_op"] = True
    blocks[4]["attention"]["no_op"] = False
    assert problems() == ("config.json says 5 layers, the tensors of model.layers 4",)


ODDITIES = {
    "bigbird_pegasus": "its configuration says tied, its class is not",
    "cpmant": "its configuration says tied, its class is not",
    "moshi": "one embedding row more than vocab_size",
}


def test_no_false_alarm_for_any_causal_model_of_transformers() -> None:
    """Names and shapes of every class at its published size, six layers of it, on the meta device."""
    alarms: dict[str, list[str]] = {}
    built = 0
    for model_type, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        with suppress(Exception):  # many default configurations cannot be built at all
            made = _on_meta(model_type, names if isinstance(names, str) else names[0])
            built += 1
            if problems := list(consistency(made)):
                alarms[model_type] = problems
    assert built > 100
    assert {name: found for name, found in alarms.items() if name not in ODDITIES} == {}


def _on_meta(model_type: str, class_name: str, layers: int = 6) -> Checkpoint:
    kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[model_type]
    config = kind()
    if isinstance(getattr(config, "num_hidden_layers", None), int) and config.num_hidden_layers > layers:
        lists = {k: v[:layers] for k, v in config.to_dict().items() if isinstance(v, list) and k.endswith("types")}
        with suppress(Exception):
            config = kind(num_hidden_layers=layers, **lists)
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if isinstance(getattr(config, key, None), int):
            setattr(config, key, min(getattr(config, key), 4))
    config.architectures = [class_name]
    with torch.device("meta"):
        model = getattr(transformers, class_name)(config)
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    saved = {name: t for name, t in model.state_dict().items() if name not in tied}
    rows = dict(_rows(revert_weight_conversion(model, saved)))
    return Checkpoint(Path(model_type), json.loads(config.to_json_string(use_diff=False)) | {"dtype": "float32"}, rows)


def _rows(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Row]]:
    for name, t in tensors.items():
        if t.is_floating_point():
            yield name, Row(name, Path("model.safetensors"), "F32", tuple(t.shape), 0, t.nbytes)
