"""What a checkpoint says beyond its weights: further keys, other tokenizers, files that loaders read instead.

Whether a key changes the model is transformers' word here, ids of texts are those of `tokenizers`, and legal
quantizations are compressed-tensors' own.
"""

import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer

import gguf2st
from gguf2st.errors import UsageError, VerifyError
from gguf2st.verification import Verification
from tests.make_gguf import tiny_model

Change = Callable[[Path], object]


def edit(file: str, change: Callable[[Any], object]) -> Change:
    """A change of a JSON file."""

    def run(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        change(content)
        (folder / file).write_text(json.dumps(content))

    return run


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    template = {"tokenizer.chat_template": "{{ messages[0].content }}"}
    return {
        arch: tiny_model(folder / f"{arch}.gguf", arch, layers=2, qtype="Q4_0", extra_metadata=template)
        for arch in ("llama", "qwen2")
    }


@pytest.fixture(scope="module")
def made(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    for arch, source in sources.items():
        gguf2st.convert(source, folder / arch)
    gguf2st.convert(sources["llama"], folder / "packed", repack="exact")
    return {name: folder / name for name in ("llama", "qwen2", "packed")}


def copy(folder: Path, tmp_path: Path, *, known: bool = True) -> Path:
    """A copy, with or without the file that says gguf2st made it."""
    out = Path(shutil.copytree(folder, tmp_path / "model"))
    if not known:
        (out / "gguf2st.json").unlink()
    return out


def found(result: Verification, *words: str) -> bool:
    return any(all(word in problem for word in words) for problem in result.problems)


# --- config.json --------------------------------------------------------------------------------------------------

COMPUTES: tuple[tuple[str, str, Any], ...] = (
    ("llama", "rope_scaling", {"type": "linear", "factor": 4.0}),
    ("llama", "partial_rotary_factor", 0.5),
    ("llama", "sliding_window", 7),
    ("llama", "layer_types", ["sliding_attention"] * 2),
    ("llama", "auto_map", {"AutoConfig": "configuration_x.X"}),
    ("llama", "logits_scaling", 2.0),
    ("llama", "final_logit_softcapping", 30.0),
    ("llama", "residual_multiplier", 0.2),
    ("llama", "query_pre_attn_scalar", 3),
    ("llama", "text_config", {"hidden_size": 3}),
    ("llama", "compression_config", {"quant_method": "fp8"}),
    ("llama", "num_experts", 4),
    ("llama", "use_bidirectional_attention", True),
    ("llama", "is_causal", False),  # vLLM makes an encoder of it
    ("qwen2", "layer_types", ["sliding_attention"] * 2),
    ("qwen2", "rope_scaling", {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}),
)


@pytest.mark.parametrize("installed", [True, False], ids=["", "without transformers"])
@pytest.mark.parametrize(("arch", "key", "value"), COMPUTES)
def test_further_keys_that_change_the_model(
    arch: str,
    key: str,
    value: object,
    installed: bool,
    made: dict[str, Path],
    sources: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = copy(made[arch], tmp_path)
    edit("config.json", lambda c: c.update({key: value}))(folder)
    if not installed:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    assert found(gguf2st.verify(folder, sources[arch]), "config.json says", key)


HARMLESS: Mapping[str, Any] = {
    "rope_scaling": None,
    "attention_dropout": 0.1,
    "initializer_range": 0.02,
    "transformers_version": "4.40",
    "_name_or_path": "somewhere",
    "use_cache": False,
    "pretraining_tp": 1,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "max_window_layers": 21,
}
"""What published Llama and Qwen2 have, read by nothing or switched off."""


@pytest.mark.parametrize("installed", [True, False], ids=["", "without transformers"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_further_keys_that_change_nothing(
    arch: str,
    installed: bool,
    made: dict[str, Path],
    sources: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = copy(made[arch], tmp_path)
    edit("config.json", lambda c: c.update({k: v for k, v in HARMLESS.items() if k not in c}, _comment="x"))(folder)
    if not installed:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    result = gguf2st.verify(folder, sources[arch])
    assert result.problems == ()
    assert any("_comment" in note for note in result.notes)


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_everything_that_transformers_writes_of_the_same_model_passes(
    arch: str, made: dict[str, Path], sources: dict[str, Path], tmp_path: Path
) -> None:
    folder = copy(made[arch], tmp_path, known=False)
    whole = json.loads(AutoConfig.from_pretrained(folder).to_json_string(use_diff=False))
    before = json.loads((folder / "config.json").read_text())
    assert len(whole.keys() - before.keys()) > 5
    (folder / "config.json").write_text(json.dumps(whole | before))
    assert gguf2st.verify(folder, sources[arch]).problems == ()


def test_further_sampling_is_told(made: dict[str, Path], sources: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(made["llama"], tmp_path)
    edit("generation_config.json", lambda c: c.update(temperature=5.0))(folder)
    result = gguf2st.verify(folder, sources["llama"])
    assert result.ok
    assert any("temperature = 5.0" in note for note in result.notes)


# --- quantization_config ------------------------------------------------------------------------------------------

FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
ROTATED = {"config_groups": {"R1": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}}}


def group(**keys: Any) -> Callable[[Any], object]:
    return lambda c: next(iter(c["quantization_config"]["config_groups"].values())).update(keys)


def top(**keys: Any) -> Callable[[Any], object]:
    return lambda c: c["quantization_config"].update(keys)


LEGAL: dict[str, Callable[[Any], object]] = {
    "kv_cache_scheme": top(kv_cache_scheme=FP8),
    "transform_config": top(transform_config=ROTATED),
    "input_activations": group(input_activations=FP8 | {"strategy": "token", "dynamic": True}),
    "output_activations": group(output_activations=FP8),
}
"""What others write on purpose, and what no source says."""


@pytest.mark.parametrize("what", LEGAL)
def test_more_than_weights_is_quantized(
    what: str, made: dict[str, Path], sources: dict[str, Path], tmp_path: Path
) -> None:
    folder = copy(made["packed"], tmp_path)
    assert gguf2st.verify(folder, sources["llama"]).problems == ()
    edit("config.json", LEGAL[what])(folder)
    stated = json.loads((folder / "config.json").read_text())["quantization_config"]
    QuantizationConfig.model_validate(stated | {"transform_config": None})  # it is what compressed-tensors reads
    assert found(gguf2st.verify(folder, sources["llama"]), "quantization_config", what)
    assert found(gguf2st.verify(folder), "quantization_config", what), "gguf2st did not write that"
    (folder / "gguf2st.json").unlink()
    alone = gguf2st.verify(folder)
    assert alone.problems == ()
    assert any("not verified" in note and what in note for note in alone.notes)


@pytest.mark.parametrize("keys", [{"sparsity_config": {"format": "sparse-24-bitmask"}}, {"format": "naive-quantized"}])
def test_what_vllm_misreads_whoever_wrote_it(keys: Mapping[str, Any], made: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(made["packed"], tmp_path, known=False)
    edit("config.json", top(**keys))(folder)
    assert found(gguf2st.verify(folder), "quantization_config", next(iter(keys)))


def test_empty_words_of_compressed_tensors_pass(
    made: dict[str, Path], sources: dict[str, Path], tmp_path: Path
) -> None:
    """As its own tools write them."""
    folder = copy(made["packed"], tmp_path)
    dense = {"format": "dense", "targets": [], "ignore": [], "global_sparsity": 0.1}
    empty = {"kv_cache_scheme": None, "transform_config": {}, "global_compression_ratio": 1.5, "version": "0.17.0"}
    edit("config.json", top(**empty, sparsity_config=dense))(folder)
    edit("config.json", group(input_activations=None, output_activations=None))(folder)
    assert gguf2st.verify(folder, sources["llama"]).problems == ()


def test_a_quantization_that_the_source_does_not_have(
    made: dict[str, Path], sources: dict[str, Path], tmp_path: Path
) -> None:
    folder = copy(made["llama"], tmp_path, known=False)
    edit("config.json", lambda c: c.update(quantization_config={"quant_method": "fp8"}))(folder)
    assert gguf2st.verify(folder).ok
    assert found(gguf2st.verify(folder, sources["llama"]), "quantization_config", "fp8")


# --- Tokenizer ----------------------------------------------------------------------------------------------------

PAIR = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]
FIRST = {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
ADDED = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, *PAIR[:1]],
    "pair": PAIR,
    "special_tokens": {"<|endoftext|>": FIRST},
}
TOKENIZERS: dict[str, Change] = {
    "no words": edit("tokenizer.json", lambda t: t.update(pre_tokenizer=None)),
    "merges reversed": edit("tokenizer.json", lambda t: t["model"]["merges"].reverse()),
    "lower case": edit("tokenizer.json", lambda t: t.update(normalizer={"type": "Lowercase"})),
    "a token added": edit("tokenizer.json", lambda t: t.update(post_processor=ADDED)),
    "no decoder": edit("tokenizer.json", lambda t: t.update(decoder=None)),
    "no special tokens": edit("tokenizer.json", lambda t: t.update(added_tokens=[])),
    "spaces taken": edit("tokenizer.json", lambda t: t["added_tokens"][0].update(lstrip=True, rstrip=True)),
    "another end": edit("tokenizer_config.json", lambda c: c.update(eos_token="a")),
    "another beginning": edit("tokenizer_config.json", lambda c: c.update(add_bos_token=not c["add_bos_token"])),
    "a further token": edit(
        "tokenizer_config.json", lambda c: c.update(added_tokens_decoder={"5": {"content": "<further>"}})
    ),
    "no configuration": lambda f: (f / "tokenizer_config.json").unlink(),
    "another template": lambda f: (f / "chat_template.jinja").write_text("{{ messages[-1].content }}"),
    "no template": lambda f: (f / "chat_template.jinja").unlink(),
    "a template beside": edit("tokenizer_config.json", lambda c: c.update(chat_template="x")),
}


@pytest.mark.parametrize("known", [True, False], ids=["gguf2st.json", "nobody knows"])
@pytest.mark.parametrize("case", TOKENIZERS)
def test_another_tokenizer(
    case: str, known: bool, made: dict[str, Path], sources: dict[str, Path], tmp_path: Path
) -> None:
    folder = copy(made["llama"], tmp_path, known=known)
    before = (folder / "tokenizer.json").read_bytes()
    TOKENIZERS[case](folder)
    if (folder / "tokenizer.json").read_bytes() != before:
        one, other = Tokenizer.from_buffer(before), Tokenizer.from_file(str(folder / "tokenizer.json"))
        texts = ["Hello World, the and", "a <|endoftext|> b"]
        ids = [[e.ids for e in t.encode_batch(texts)] for t in (one, other)]
        assert ids[0] != ids[1] or one.decode(ids[0][0]) != other.decode(ids[0][0]), "not another tokenizer at all"
    assert found(gguf2st.verify(folder, sources["llama"])), case


@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n"])
def test_a_template_with_line_ends_of_another_system(ends: str, tmp_path: Path) -> None:
    """It is written as it stands, and is the same to jinja2 with others; another word between them is not."""
    text = "{{ bos_token }}\n{% for m in messages %}\n{{ m.content }}\n{% endfor %}\nend\n".replace("\n", ends)
    source = tiny_model(tmp_path / "m.gguf", "llama", layers=1, extra_metadata={"tokenizer.chat_template": text})
    folder = tmp_path / "made"
    gguf2st.convert(source, folder)
    path = folder / "chat_template.jinja"
    assert path.read_bytes() == text.encode()
    assert gguf2st.verify(folder, source).problems == ()

    said = {"bos_token": "<s>", "messages": [{"content": "a"}, {"content": "b"}]}
    rendered = {}
    for other in ("\r\n", "\r", "\n"):
        path.write_bytes(text.replace(ends, other).encode())
        rendered[other] = jinja2.Template(path.read_bytes().decode()).render(said)
        assert gguf2st.verify(folder, source).problems == ()
    assert len(set(rendered.values())) == 1
    path.write_bytes(text.replace(ends, f"{ends}{ends}").encode())
    assert jinja2.Template(path.read_bytes().decode()).render(said) not in rendered.values()
    assert found(gguf2st.verify(folder, source))


def test_the_same_tokenizer_in_other_words(made: dict[str, Path], sources: dict[str, Path], tmp_path: Path) -> None:
    """Saved by the library, in its own order and with merges as texts; and with one more step that does nothing."""
    folder = copy(made["llama"], tmp_path, known=False)
    path = folder / "tokenizer.json"
    before = path.read_bytes()
    Tokenizer.from_buffer(before).save(str(path), pretty=True)
    edit("tokenizer.json", lambda t: t["model"].update(merges=[" ".join(m) for m in t["model"]["merges"]]))(folder)
    assert path.read_bytes() != before
    assert gguf2st.verify(folder, sources["llama"]).problems == ()

    def add_nothing(t: Any) -> None:
        steps = [t["pre_tokenizer"]] if t["pre_tokenizer"] else []
        t["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    edit("tokenizer.json", add_nothing)(folder)
    result = gguf2st.verify(folder, sources["llama"])
    assert result.problems == ()
    assert any("every text that was tried has its ids" in note for note in result.notes)


def test_a_tokenizer_from_elsewhere_is_said_to_be_one(
    made: dict[str, Path], sources: dict[str, Path], tmp_path: Path
) -> None:
    other = copy(made["llama"], tmp_path)
    edit("tokenizer.json", lambda t: t.update(normalizer={"type": "Lowercase"}))(other)
    gguf2st.convert(sources["llama"], tmp_path / "out", tokenizer_from=other)
    result = gguf2st.verify(tmp_path / "out", sources["llama"])
    assert result.problems == ()
    assert any("--tokenizer-from" in note and "token by token" in note for note in result.notes)


def test_a_chosen_way_to_split_words_is_compared_with(sources: dict[str, Path], tmp_path: Path) -> None:
    gguf2st.convert(sources["qwen2"], tmp_path / "out", tokenizer_pre="gpt-2")
    assert gguf2st.verify(tmp_path / "out", sources["qwen2"]).problems == ()
    edit("tokenizer.json", lambda t: t.update(pre_tokenizer=None))(tmp_path / "out")
    assert not gguf2st.verify(tmp_path / "out", sources["qwen2"]).ok


# --- Files beside -------------------------------------------------------------------------------------------------

BESIDE = (
    "hf_quant_config.json",
    "adapter_config.json",
    "quantize_config.json",
    "quant_config.json",
    "my_quantize_config.json",
    "model.pt2",
    "model.safetensors.index.fp16.json",
    "pytorch_model.bin.index.json",
)


@pytest.mark.parametrize("kind", ["llama", "packed"])
@pytest.mark.parametrize("name", BESIDE)
def test_files_that_loaders_read_instead(name: str, kind: str, made: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(made[kind], tmp_path)
    assert gguf2st.verify(folder).ok
    (folder / name).write_text("{}")
    assert found(gguf2st.verify(folder), name)


def test_quantizations_that_live_beside_the_configuration(made: dict[str, Path], tmp_path: Path) -> None:
    """ModelOpt's and GPTQ's own files belong to their checkpoints."""
    folder = copy(made["llama"], tmp_path, known=False)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    result = gguf2st.verify(folder)
    assert not found(result, "hf_quant_config.json")
    assert any("hf_quant_config.json" in note for note in result.notes)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"digests": {}}', '{"digests": 1}', '{"digests": {"a": "b"}}', "\x00"]
)
def test_a_broken_gguf2st_json_is_a_problem(content: str, made: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(made["llama"], tmp_path)
    (folder / "gguf2st.json").write_text(content)
    assert found(gguf2st.verify(folder), "gguf2st.json")


def test_a_shard_that_cannot_be_opened_is_said_to_be_so(made: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(made["llama"], tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert found(gguf2st.verify(folder), "model.safetensors cannot be read: Too many levels of symbolic links")


# --- edited on purpose --------------------------------------------------------------------------------------------


def write(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("other")


EDITS: dict[str, tuple[Change, str]] = {
    "template": (lambda f: (f / "chat_template.jinja").write_text("{{ messages[-1].content }}"), "chat-template"),
    "no template": (lambda f: (f / "chat_template.jinja").unlink(), "chat-template"),
    "template by the name default": (lambda f: write(f / "additional_chat_templates/default.jinja"), "chat-template"),
    "template inside": (edit("tokenizer_config.json", lambda c: c.update(chat_template="x")), "chat-template"),
    "token id": (edit("generation_config.json", lambda c: c.update(eos_token_id=5)), "generation-config"),
    "no token id": (edit("generation_config.json", lambda c: c.pop("eos_token_id")), "generation-config"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edits_are_told_and_may_be_accepted(
    name: str, made: Mapping[str, Path], sources: Mapping[str, Path], tmp_path: Path
) -> None:
    change, what = EDITS[name]
    folder = copy(made["llama"], tmp_path)
    change(folder)
    result = gguf2st.verify(folder, against=sources["llama"])
    assert result.edited == (what,)
    assert found(result, "no weight is affected"), result.problems
    with pytest.raises(VerifyError) as caught:
        result.require_ok()
    assert f"--accept {what}" in caught.value.hint
    other = {"chat-template", "generation-config"} - {what}
    assert not gguf2st.verify(folder, against=sources["llama"], accept=other).ok
    accepted = gguf2st.verify(folder, against=sources["llama"], accept=[what])
    assert accepted.ok, accepted.problems
    assert any(note.startswith("accepted: ") for note in accepted.notes), accepted.notes


def test_damage_beside_an_accepted_edit_is_damage(
    made: Mapping[str, Path], sources: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = copy(made["llama"], tmp_path)
    EDITS["template"][0](folder)
    edit("config.json", lambda c: c.update(rms_norm_eps=0.5))(folder)
    for accept in ((), ("chat-template",)):
        result = gguf2st.verify(folder, against=sources["llama"], accept=accept)
        assert found(result, "rms_norm_eps")
        assert result.edited == ()
        with pytest.raises(VerifyError) as caught:
            result.require_ok()
        assert "do not serve" in caught.value.hint
    with pytest.raises(UsageError, match="weights"):
        gguf2st.verify(folder, against=sources["llama"], accept=["weights"])


def test_the_command_line_accepts_what_the_library_does() -> None:
    from gguf2st.cli.verify import command
    from gguf2st.verification.checkpoint import EDITABLE

    (option,) = (p for p in command.params if p.name == "accept")
    assert tuple(option.type.choices) == EDITABLE  # type: ignore[attr-defined]


def test_another_source_is_named_first_where_something_differs(
    made: Mapping[str, Path], sources: Mapping[str, Path], tmp_path: Path
) -> None:
    other = gguf2st.verify(made["llama"], against=sources["qwen2"])
    assert other.problems[0].startswith("this was made from llama.gguf")
    assert other.problems[0].endswith("compared with qwen2.gguf")
    renamed = tmp_path / "renamed.gguf"
    renamed.symlink_to(sources["llama"])
    assert gguf2st.verify(made["llama"], against=renamed).ok


ROLES: tuple[tuple[str, Any], ...] = (
    ("eos_token", "<|endoftext|>"),
    ("cls_token", "<new>"),
    ("additional_special_tokens", ["<new>"]),
    ("extra_special_tokens", ["<new>"]),
)


@pytest.mark.parametrize(("key", "value"), ROLES, ids=[key for key, _ in ROLES])
def test_special_tokens_that_transformers_reads_beside_the_configuration(
    key: str, value: Any, made: Mapping[str, Path], sources: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = copy(made["llama"], tmp_path)
    edit("special_tokens_map.json", lambda c: c.update({key: value}))(folder)
    before, after = (AutoTokenizer.from_pretrained(place) for place in (made["llama"], folder))
    assert (len(after), after.eos_token) != (len(before), before.eos_token), "transformers takes it"
    assert found(gguf2st.verify(folder, against=sources["llama"]), "special_tokens_map.json", key)


@pytest.mark.parametrize("file", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize("value", [["<new>"], {"image_token": "<new>"}], ids=["list", "by name"])
def test_special_tokens_beyond_the_vocabulary_in_a_published_tokenizer(
    file: str, value: Any, made: Mapping[str, Path], sources: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = copy(made["llama"], tmp_path, known=False)
    change = edit(file, lambda c: c.update(extra_special_tokens=value))
    change(folder)
    if file == "tokenizer_config.json":
        assert len(AutoTokenizer.from_pretrained(folder)) == len(AutoTokenizer.from_pretrained(made["llama"])) + 1
    assert found(gguf2st.verify(folder, against=sources["llama"]), file, "<new>")
    edit(file, lambda c: c.update(extra_special_tokens=["<|im_end|>"]))(folder)
    assert gguf2st.verify(folder, against=sources["llama"]).ok
