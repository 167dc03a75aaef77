"""Model cards: the metadata as huggingface_hub's parser and the Hub's rules read it, and what a reader is told."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from gguf2st.api import convert, make_plan
from gguf2st.hub import terms
from gguf2st.hub.card import Card, is_own, make_card
from gguf2st.hub.provenance import PROVENANCE_FILE, make_provenance, read_provenance
from gguf2st.report import make_report
from gguf2st.verification import Verification
from tests.hub_cards import LICENSES, check_card
from tests.make_gguf import tiny_llama

CHECKED = Verification("/home/somebody/model", 20, 93376, 186752, ("structural",))
HF = "https://huggingface.co/"
PARENT = {"general.base_model.count": 1, "general.base_model.0.name": "SmolLM2 135M"}


def _card(tmp_path: Path, general: dict[str, Any], *, origin: str = "", config: dict[str, Any] | None = None) -> Card:
    """Of a tiny model whose GGUF says this about itself."""
    source = tiny_llama(tmp_path / "tiny.gguf", extra_metadata=general)
    report = make_report(make_plan(source), output=None, verification=CHECKED, origin=origin)
    provenance = make_provenance(report, make_plan(source).header.metadata, {"dtype": "bfloat16"})
    return make_card("me/tiny-st", config or {"architectures": ["LlamaForCausalLM"]}, CHECKED, provenance)


def _facts(card: Card) -> dict[str, Any]:
    """The metadata as huggingface_hub reads it; the Hub must have nothing to say against it."""
    assert check_card(card.text) == ([], [])
    facts: dict[str, Any] = ModelCard(card.text).data.to_dict()
    return facts


def test_everything_that_a_gguf_can_say(tmp_path: Path) -> None:
    card = _card(
        tmp_path,
        {
            "general.name": "SmolLM2 135M Instruct",
            "general.license": "Apache-2.0",
            "general.languages": ["en", "pt-BR"],
            "general.tags": ["chat", "gguf", "text-generation", "region:us", "arxiv:2502.02737"],
            "general.quantized_by": "Some *Quantizer*",
            "general.source.repo_url": HF + "HuggingFaceTB/SmolLM2-135M-Instruct",
            **PARENT,
            "general.base_model.0.repo_url": HF + "HuggingFaceTB/SmolLM2-135M",
        },
    )
    assert _facts(card) == {
        "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "base_model_relation": "quantized",
        "language": ["en", "pt"],
        "library_name": "transformers",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["chat", "arxiv:2502.02737", "gguf2st"],
    }
    assert card.notes == ()
    for line in (
        "# tiny-st",
        "Converted from the GGUF `tiny.gguf`, quantized by Some \\*Quantizer\\*, to safetensors",
        "| class | `LlamaForCausalLM` |",
        "| parameters | 93.4k |",
        "| `F32` | 20 | 373.5 kB | `bfloat16` | `dense` | 186.8 kB | cast |",
        "vllm serve me/tiny-st",
        'AutoModelForCausalLM.from_pretrained("me/tiny-st", dtype="auto")',
        "gguf2st convert tiny.gguf --dtype bfloat16",
        "* structural: ",
        "gguf2st verify DOWNLOADED_FOLDER --against tiny.gguf",
        "The weights keep the license of their model: apache-2.0.",
    ):
        assert line in card.text


def test_a_gguf_that_says_nothing_gives_a_valid_card_and_notes(tmp_path: Path) -> None:
    card = _card(tmp_path, {})
    assert _facts(card) == {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["gguf2st"]}
    assert [note.split(",")[0] for note in card.notes] == ["the card names no license and no base_model"]


@pytest.mark.parametrize(
    ("general", "repo", "expected"),
    [
        ({"general.source.huggingface.repository": "a/b"}, "", (["a/b"], "quantized")),
        ({"general.repo_url": "https://hf.co/a/b/"}, "q/b-GGUF", (["a/b"], "quantized")),
        ({"general.repo_url": HF + "quantizer"}, "q/b-GGUF", (["q/b-GGUF"], "quantized")),
        ({"general.source.url": HF + "datasets/a/b"}, "", ([], "")),
        ({"general.url": "https://example.com/a/b"}, "", ([], "")),
        # A quantizer's base is the model itself; a trainer's is what it was trained from.
        (
            PARENT | {"general.name": "Smollm2-135M", "general.base_model.0.repo_url": HF + "a/SmolLM2-135M"},
            "",
            (["a/SmolLM2-135M"], "quantized"),
        ),
        (
            PARENT | {"general.name": "My Finetune", "general.base_model.0.repo_url": HF + "a/SmolLM2-135M"},
            "",
            (["a/SmolLM2-135M"], "finetune"),
        ),
        (
            PARENT | {"general.name": "My Finetune", "general.base_model.0.repo_url": HF + "a/SmolLM2-135M"},
            "me/my-finetune-GGUF",
            (["me/my-finetune-GGUF"], "quantized"),
        ),
        (
            {
                "general.base_model.count": 2,
                "general.base_model.0.repo_url": HF + "a/x",
                "general.base_model.1.repo_url": HF + "a/y",
            },
            "",
            (["a/x", "a/y"], "merge"),
        ),
        ({"general.base_model.count": 3}, "", ([], "")),
        ({"general.base_model.count": "many"}, "", ([], "")),
    ],
)
def test_where_a_model_comes_from(general: dict[str, Any], repo: str, expected: tuple[list[str], str]) -> None:
    assert terms.base_model(general, repo) == expected


@pytest.mark.parametrize(
    ("general", "expected"),
    [
        ({}, {}),
        ({"general.license": "MIT"}, {"license": "mit"}),
        ({"general.license": "gemma"}, {"license": "gemma"}),
        ({"general.license": "Qwen Research"}, {"license": "other", "license_name": "qwen-research"}),
        ({"general.license": "gpl-2.0-or-later"}, {"license": "other", "license_name": "gpl-2.0-or-later"}),
        (
            {
                "general.license": "other",
                "general.license.name": "MRL 0.1",
                "general.license.link": "https://mistral.ai/licenses/MRL-0.1.md",
            },
            {
                "license": "other",
                "license_name": "mrl-0.1",
                "license_link": "https://mistral.ai/licenses/MRL-0.1.md",
            },
        ),
        (
            {"general.license": "other", "general.license.name": "x", "general.license.link": "LICENSE"},
            {"license": "other", "license_name": "x", "license_link": HF + "a/b/blob/main/LICENSE"},
        ),
        ({"general.license": ["mit"]}, {}),
        (
            {"general.license": "other", "general.license.name": "x", "general.license.link": "javascript://a"},
            {"license": "other", "license_name": "x"},
        ),
    ],
)
def test_licenses(general: dict[str, Any], expected: dict[str, str]) -> None:
    assert terms.license_facts(general, "a/b") == expected
    assert terms.LICENSES == LICENSES


@pytest.mark.parametrize(
    ("hf_class", "tags", "task"),
    [
        ("LlamaForCausalLM", [], "text-generation"),
        ("LlamaForCausalLM", ["image-text-to-text"], "text-generation"),
        ("T5GemmaForCausalLM", ["summarization"], "summarization"),
        ("BertModel", [], "feature-extraction"),
        ("BertModel", ["sentence-similarity", "feature-extraction"], "sentence-similarity"),
        ("BertModel", ["text-generation"], "feature-extraction"),
        ("XLMRobertaForSequenceClassification", [], "text-classification"),
        ("XLMRobertaForSequenceClassification", ["text-ranking"], "text-ranking"),
    ],
)
def test_the_task(hf_class: str, tags: list[str], task: str) -> None:
    assert terms.task({"general.tags": tags}, hf_class) == task


def test_languages_that_are_no_codes_are_left_out_and_named(tmp_path: Path) -> None:
    card = _card(tmp_path, {"general.languages": ["English", "zh_Hant", "multilingual"], "general.license": "mit"})
    assert _facts(card)["language"] == ["zh", "multilingual"]
    assert any("English" in note for note in card.notes)


HOSTILE = "---\nlicense: evil\n```\n<script>alert(1)</script> | [x](javascript:1) \x1b[31m `rm -rf`"


def test_a_hostile_gguf_changes_neither_metadata_nor_page(tmp_path: Path) -> None:
    general = {
        "general.name": HOSTILE,
        "general.quantized_by": HOSTILE,
        "general.license": HOSTILE,
        "general.license.link": "javascript:alert(1)",
        "general.tags": [HOSTILE, "a: b", "- c", "#d", "'e\"", "good"],
        "general.languages": [HOSTILE],
    }
    card = _card(tmp_path, general)
    assert check_card(card.text)[0] == []
    facts = ModelCard(card.text).data.to_dict()
    assert facts["license"] == "other"
    assert "license_link" not in facts
    assert facts["tags"] == ["- c", "#d", "'e\"", "good", "gguf2st"]
    assert "language" not in facts
    assert "\x1b" not in card.text
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(card.text.split("\n---\n", 1)[1])
    assert "alert(1)" in page, "it is shown, as text"
    for tag in ("<script", "href=", "<img", "<em", "<hr"):
        assert tag not in page
    assert page.count("<pre>") == 4
    assert page.count("<h1>") == 1


def test_what_the_command_and_the_notes_must_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders name users, machines and projects: the card is public."""
    home = tmp_path / "home" / "ada.lovelace"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    source = tiny_llama(home / "tiny.gguf", extra_metadata={"general.name": "/home/ada.lovelace/models/x"})
    convert(source, home / "first")
    tokenizer = home / "secret project"
    (home / "first").rename(tokenizer)
    report = convert(source, home / "out", tokenizer_from=tokenizer, max_shard_size=100_000)
    assert any("secret project" in note for note in report.notes), "the user is told where the tokenizer is from"
    text = (home / "out" / PROVENANCE_FILE).read_text()
    provenance = read_provenance(home / "out")
    assert provenance is not None
    config = json.loads((home / "out/config.json").read_text())
    card = make_card("me/x", config, report.verification or CHECKED, provenance)
    for secret in ("ada.lovelace", str(tmp_path), "/home"):
        assert secret not in text
        assert secret not in card.text
    command = "gguf2st convert tiny.gguf --dtype bfloat16"
    assert provenance.command.startswith(command)
    assert "--tokenizer-from 'secret project'" in provenance.command
    assert "--max-shard-size 100000" in provenance.command


def test_a_source_on_the_hub_is_linked_at_its_commit(tmp_path: Path) -> None:
    origin = f"hf://q/tiny-GGUF@{'a' * 40}/sub/tiny.gguf"
    card = _card(tmp_path, {"general.license": "mit"}, origin=origin)
    assert _facts(card)["base_model"] == "q/tiny-GGUF"
    assert f"of [q/tiny-GGUF]({HF}q/tiny-GGUF/blob/{'a' * 40}/sub/tiny.gguf)" in card.text
    assert f"gguf2st convert {origin} --dtype bfloat16" in card.text


def test_a_checkpoint_of_unknown_origin(tmp_path: Path) -> None:
    card = make_card("me/x", {"architectures": ["BertModel"], "auto_map": {"AutoModel": "x.Y"}}, CHECKED, None)
    assert _facts(card)["pipeline_tag"] == "feature-extraction"
    assert 'AutoModel.from_pretrained("me/x", dtype="auto", trust_remote_code=True)' in card.text
    assert "GGUF" not in card.text


def test_a_card_knows_whether_it_was_edited(tmp_path: Path) -> None:
    text = _card(tmp_path, {}).text
    assert is_own(text)
    assert is_own(text.replace("\n", "\r\n")), "the Hub's editor"
    assert not is_own(text.replace("vLLM", "vllm", 1))
    assert not is_own(text + "\nMine.\n")
    assert not is_own("# Somebody's card\n")


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "null", '{"version": 1}', "\x00", '{"types": [{"qtype": "F32"}]}', "[" * 100_000]
)
def test_a_damaged_provenance_is_none(tmp_path: Path, content: str) -> None:
    assert read_provenance(tmp_path) is None
    (tmp_path / PROVENANCE_FILE).write_text(content)
    assert read_provenance(tmp_path) is None


def test_provenance_with_values_of_another_kind_is_none(tmp_path: Path) -> None:
    convert(tiny_llama(tmp_path / "tiny.gguf"), tmp_path / "out")
    path = tmp_path / "out" / PROVENANCE_FILE
    whole = json.loads(path.read_text())
    assert read_provenance(tmp_path / "out") is not None
    for key in whole:
        path.write_text(json.dumps(whole | {key: 1.5}))
        assert read_provenance(tmp_path / "out") is None, key
        path.write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
        assert read_provenance(tmp_path / "out") is None, key
