"""What is said of the supported architectures: `gguf2st archs`, the recorded proofs, and the end of a test run."""

import json
import re
from pathlib import Path

import pytest

from gguf2st.archmap.mapfile import all_maps
from gguf2st.archmap.proofs import LEVELS, Proof, read_proofs
from gguf2st.serving.preflight import who_serves
from tests.oracle.summary import LLAMA_CPP, LOGITS, WEIGHTS, summary
from tests.oracle.terminal import on_terminal, run


def test_every_shipped_map_has_a_recorded_proof() -> None:
    proofs = read_proofs()
    assert proofs.keys() == {m.name for m in all_maps()}
    assert all(proof.level in LEVELS and proof.models > 0 for proof in proofs.values())
    assert proofs["llama"].level == "logits"
    assert proofs["xverse"].level == "weights"  # no class of transformers


def test_a_folder_without_proofs_has_none(tmp_path: Path) -> None:
    assert read_proofs(tmp_path) == {}


def test_archs_lists_those_with_the_word_in_a_name() -> None:
    every, some = (json.loads(run("archs", *more, "--json").out) for more in ((), ("QWEN3",)))
    assert {row["map"] for row in some} == {row["map"] for row in every if "qwen3" in str(row).lower()}
    assert len(every) == len(all_maps()) > len(some) > 3
    (mixtral,) = json.loads(run("archs", "mixtral", "--json").out)
    assert mixtral["arch"] == "llama"
    assert mixtral["hf_class"] == "MixtralForCausalLM"
    assert mixtral["proof"] == "logits"


def test_archs_of_no_such_name_is_a_usage_error() -> None:
    done = run("archs", "qwen99")
    assert done.code == 2
    assert "'qwen99'" in done.err
    assert done.out == ""


def test_archs_fits_a_terminal() -> None:
    wide, narrow = run("archs", "deepseek2"), on_terminal("archs", "deepseek2")
    assert "WHEN" in wide.out  # to a file or a pipe goes everything
    assert max(map(len, wide.out.splitlines())) > 100
    assert max(map(len, narrow.out.splitlines())) <= 100
    assert "PROOF" in narrow.out
    assert "WHEN" not in narrow.out


PAGE = Path(__file__).resolve().parent.parent / "docs/architectures.md"
NO_LANGUAGE_MODELS = {"clip", "(unknown)"}
"""What llama.cpp's table of names has beside architectures: the vision part of others, and the end of the table."""


def not_covered() -> dict[str, tuple[str, str, str]]:
    """Architecture -> (class, whether vLLM serves it, why it has no map), as the page says."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## Not covered\n")
    rows = re.findall(r"^\| `(.+)` \| `(\w+)` \| (yes|no) \| (.+) \|$", section, re.MULTILINE)
    return {arch: (hf_class, served, why) for arch, hf_class, served, why in rows}


@pytest.mark.oracle
def test_every_architecture_of_llama_cpp_has_a_map_or_a_reason(llamacpp: Path) -> None:
    _, _, table = (llamacpp / "src" / "llama-arch.cpp").read_text().partition("LLM_ARCH_NAMES = {")
    known = set(re.findall(r'\{ *LLM_ARCH_\w+, *"(.+)" *\}', table.partition("};")[0])) - NO_LANGUAGE_MODELS
    assert len(known) > 150
    mapped, excused = {m.arch for m in all_maps()}, not_covered().keys()
    assert mapped & excused == set()
    assert mapped | excused == known


def test_what_is_not_covered_is_said_with_who_would_serve_it() -> None:
    rows = not_covered()
    assert len(rows) == PAGE.read_text(encoding="utf-8").partition("## Not covered\n")[2].count("\n| `")
    wrong = [
        arch
        for arch, (hf_class, served, _) in rows.items()
        if (served == "yes") != (who_serves(hf_class)[0] != "not served")
    ]
    assert wrong == []


MAPS = {"a": ("llama", "llama"), "b": ("llama", "llama-mixtral"), "c": ("gemma", "gemma"), "d": ("gemma", "gemma")}
ALL = {WEIGHTS, LOGITS, LLAMA_CPP}


@pytest.mark.parametrize(
    ("passed", "failed", "expected"),
    [
        ({"a": ALL, "b": ALL, "c": ALL, "d": ALL}, set(), ("2 of", "(3 of", "3 with", "0 with those", "0 by")),
        ({"a": ALL, "b": ALL - {LLAMA_CPP}, "c": {WEIGHTS}, "d": set()}, set(),
         ("2 of", "(3 of", "1 with", "1 with those", "1 by")),
        ({"a": ALL, "b": ALL, "c": ALL, "d": {WEIGHTS}}, {"b", "c"},
         ("2 of", "(2 of", "1 with", "0 with those", "1 by", "failed: b, c")),
        ({"a": {LOGITS}, "b": set(), "c": set(), "d": set()}, set(), ("0 of", "(0 of", "0 with")),
    ],
)  # fmt: skip
def test_the_summary_counts_what_passed(
    passed: dict[str, set[str]], failed: set[str], expected: tuple[str, ...]
) -> None:
    text = summary(MAPS, passed, failed)
    at = [text.index(words) for words in expected]
    assert at == sorted(at)


def test_levels_rank_as_they_are_listed() -> None:
    assert list(LEVELS) == ["logits", "model", "weights", "none"]
    help_text = run("archs", "--help").out
    assert all(level in help_text for level in LEVELS)
    assert Proof("none", 0) not in read_proofs().values()
