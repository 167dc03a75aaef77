"""The Python API: what README shows, what it returns, and what it raises."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf2st
from gguf2st import api
from gguf2st.errors import (
    CoverageError,
    Gguf2stError,
    OutputError,
    SourceError,
    TokenizerError,
    UsageError,
)
from gguf2st.report import Report, human_bytes, human_count
from tests.make_gguf import tiny_gemma3, tiny_llama


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", qtype="Q4_0")


def test_the_package_says_what_it_has() -> None:
    assert set(gguf2st.__all__) == {
        "Gguf2stError",
        "Options",
        "PushOptions",
        "__version__",
        "convert",
        "convert_planned",
        "finish",
        "make_plan",
        "open_gguf",
        "push",
        "verify",
        "write_plan",
    }
    for name in gguf2st.__all__:
        assert getattr(gguf2st, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'transmogrify'"):
        _ = gguf2st.transmogrify


def test_importing_the_package_is_cheap() -> None:
    program = "import sys, gguf2st; print(sorted({m.split('.')[0] for m in sys.modules}))"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for heavy in ("torch", "numpy", "numba", "tokenizers", "transformers", "click"):
        assert f"'{heavy}'" not in modules


def test_the_report_is_what_json_writes(source: Path, tmp_path: Path) -> None:
    report = gguf2st.convert(source, tmp_path / "out")
    assert isinstance(report, Report)
    written = json.loads(report.to_json())
    assert written == json.loads(json.dumps(dataclasses.asdict(report)))
    assert report.files == (str(source),)
    assert report.output == str(tmp_path / "out")
    assert (report.arch, report.hf_class, report.dtype) == ("llama", "LlamaForCausalLM", "bfloat16")
    assert report.tensors == 20
    assert report.output_nbytes == 2 * report.parameters
    assert {row.qtype: row.tensors for row in report.types} == {"Q4_0": 15, "F32": 5}
    assert sum(row.nbytes for row in report.types) == report.source_nbytes
    assert report.verification is not None
    assert report.verification.folder == str(tmp_path / "out")
    assert report.verification.ok
    assert report.version == gguf2st.__version__


def test_a_dry_run_reports_the_same(source: Path, tmp_path: Path) -> None:
    dry = gguf2st.convert(source, tmp_path / "out", dry_run=True)
    real = gguf2st.convert(source, tmp_path / "out")
    left = [
        dataclasses.replace(r, output=None, verification=None, seconds=0.0, notes=(), digests={}) for r in (dry, real)
    ]
    assert left[0] == left[1]
    assert set(dry.notes) <= set(real.notes)


def test_plans_can_be_made_from_a_header(source: Path) -> None:
    header = gguf2st.open_gguf(source)
    plan = gguf2st.make_plan(header, dtype="float32", max_shard_size=50_000)
    assert plan == gguf2st.make_plan(str(source), dtype="float32", max_shard_size=50_000)
    assert len(plan.shards) > 1
    assert {entry.dtype for entry in plan.entries} == {"float32"}
    plan.require_complete()


def test_an_incomplete_plan_says_why(tmp_path: Path) -> None:
    broken = tiny_llama(tmp_path / "m.gguf", drop=["output_norm.weight"], extra_metadata={"llama.warp": 1})
    plan = gguf2st.make_plan(broken)
    assert len(plan.all_problems) == 2
    with pytest.raises(CoverageError) as caught:
        plan.require_complete()
    assert "2" not in caught.value.problems
    assert len(caught.value.problems) == 1


def test_problems_of_every_kind_at_once(tmp_path: Path) -> None:
    broken = tiny_llama(
        tmp_path / "m.gguf", drop=["output_norm.weight"], extra_metadata={"tokenizer.ggml.pre": "klingon"}
    )
    found = api.problems(broken)
    assert {code for code, _ in found} == {4}
    assert len(found) >= 2
    assert len(api.problems(broken, tokenizer=False)) == 1
    assert [code for code, _ in api.problems(tmp_path / "gone.gguf")] == [3]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dtype": "int3"}, UsageError),
        ({"device": "tpu"}, UsageError),
        ({"max_shard_size": 0}, UsageError),
        ({"tokenizer_from": "gone"}, UsageError),
        ({"arch_map": Path("gone.toml")}, Gguf2stError),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_options_that_cannot_be(
    options: dict[str, Any], error: type[Gguf2stError], dry_run: bool, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(error):
        gguf2st.convert(source, tmp_path / "out", dry_run=dry_run, **options)
    assert not list(tmp_path.iterdir())


def test_every_error_is_a_gguf2st_error(source: Path, tmp_path: Path) -> None:
    for call in (
        lambda: gguf2st.open_gguf(tmp_path / "gone"),
        lambda: gguf2st.convert(tmp_path / "gone"),
        lambda: gguf2st.verify(tmp_path / "gone"),
        lambda: gguf2st.verify(tmp_path / "gone", source),
        lambda: gguf2st.verify(tmp_path, source),
        lambda: gguf2st.convert(source, source),
    ):
        with pytest.raises(Gguf2stError) as caught:
            call()
        assert caught.value.exit_code in (3, 5, 6)
    with pytest.raises(SourceError):
        gguf2st.convert(tmp_path / "gone")
    with pytest.raises(OutputError):
        gguf2st.convert(source, source)
    with pytest.raises(SourceError):
        gguf2st.verify(tmp_path / "gone")


def test_the_tokenizer_of_another_folder(source: Path, tmp_path: Path) -> None:
    gguf2st.convert(source, tmp_path / "first")
    broken = tiny_llama(tmp_path / "m.gguf", qtype="Q4_0", extra_metadata={"tokenizer.ggml.pre": "klingon"})
    with pytest.raises(TokenizerError):
        gguf2st.convert(broken, tmp_path / "second")
    for path in (tmp_path / "first").glob("tok*"):
        path.write_text(path.read_text() + "\n\n")  # so that it shows where files come from
    report = gguf2st.convert(broken, tmp_path / "second", tokenizer_from=tmp_path / "first")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    assert any("taken from" in note for note in report.notes)
    gguf2st.verify(tmp_path / "second", broken).require_ok()


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_tokenizer_of_another_model_is_refused_first(dry_run: bool, source: Path, tmp_path: Path) -> None:
    """Before any weight is read, and by a dry run too."""
    other = tiny_gemma3(tmp_path / "m.gguf")
    gguf2st.convert(other, tmp_path / "other")
    progress: list[Any] = []
    with pytest.raises(TokenizerError, match="another model"):
        gguf2st.convert(
            source,
            tmp_path / "out",
            tokenizer_from=tmp_path / "other",
            dry_run=dry_run,
            progress=lambda *n: progress.append(n),
        )
    assert not progress
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_more_tokens_than_rows_are_refused_first(tmp_path: Path) -> None:
    source = tiny_llama(
        tmp_path / "m.gguf",
        extra_metadata={"llama.vocab_size": 300},
        extra_tensors={"token_embd.weight": np.zeros((300, 64), np.float32)},
    )
    for dry_run in (True, False):
        with pytest.raises(TokenizerError, match=r"302.*300"):
            gguf2st.convert(source, tmp_path / "out", dry_run=dry_run)
    assert any("302" in line for _, line in api.problems(source))


def test_a_moved_checkpoint_stays_good(source: Path, tmp_path: Path) -> None:
    """Nothing in it says where it was made."""
    gguf2st.convert(source, tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    gguf2st.verify(tmp_path / "elsewhere", source).require_ok()


def test_threads_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (6, 6), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=cores: set(range(n)))
        assert api.default_threads() == threads


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_400_000, "98.4 MB"), (5e9, "5.0 GB"), (1.25e13, "12.50 TB")],
)
def test_human_bytes(n: float, text: str) -> None:
    assert human_bytes(n) == text


@pytest.mark.parametrize(("n", "text"), [(7, "7"), (1500, "1.5k"), (134_515_008, "134.5M"), (2 * 10**12, "2.0T")])
def test_human_count(n: int, text: str) -> None:
    assert human_count(n) == text
