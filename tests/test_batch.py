"""Batches: manifests read as a whole, models apart from each other, and what is left after every kind of end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguf2st
from gguf2st.batch.manifest import read_manifest
from gguf2st.batch.sources import is_manifest, read_sources
from gguf2st.batch.state import Result, StateFile
from gguf2st.cli.batch import _options, _problem
from gguf2st.errors import Gguf2stError, OutputError, UsageError
from gguf2st.output.folder import PARTIAL
from gguf2st.source import locate
from tests.hub_server import WRITER, HubServer
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import completed

Run = subprocess.CompletedProcess[str]


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gguf2st", "batch", *map(str, arguments)]


def _run(*arguments: object, code: int = 0, **environment: str) -> Run:
    done = completed("batch", *arguments, environment=environment)
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def _results(*arguments: object, code: int = 0, **environment: str) -> dict[str, Any]:
    """Model -> its row of the JSON, with `counts` besides."""
    summary = json.loads(_run(*arguments, "--json", "-", code=code, **environment).stdout)
    return {row["name"]: row for row in summary["models"]} | {"counts": summary["counts"]}


def _manifest(folder: Path, text: str) -> Path:
    path = folder / "models.toml"
    path.write_text(text)
    return path


GOOD_AND_BAD = """
[defaults]
output = "converted/{name}"
dtype = "float16"

[[model]]
src = "good.gguf"

[[model]]
src = "cut.gguf"

[[model]]
name = "gone"
src = "nowhere.gguf"

[[model]]
name = "wide"
src = "good.gguf"
dtype = "float32"
max-shard-size = "200KB"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good model and one that was cut off."""
    whole = tiny_llama(tmp_path / "good.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-1000])
    return tmp_path


def test_failures_stop_nobody_and_are_told(folder: Path) -> None:
    path = _manifest(folder, GOOD_AND_BAD)
    done = _run(path, "--jobs", "2", "--json", folder / "results.json", code=9)
    assert done.stderr == "error: 2 of 4 models failed; --retry-failed runs them again\n", "quiet in a pipe"
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [
        ["good", "done"],
        ["cut", "failed"],
        ["gone", "failed"],
        ["wide", "done"],
    ]
    assert "186.8 kB" in lines[0]
    assert str(folder / "converted" / "good") in lines[0]
    assert lines[4].startswith("2 done, 2 failed; ")
    rows = {row["name"]: row for row in json.loads((folder / "results.json").read_text())["models"]}
    assert (rows["gone"]["status"], rows["gone"]["exit_code"]) == ("failed", 3)
    assert rows["gone"]["error"].startswith("nowhere.gguf: no such file or folder")
    assert rows["cut"]["exit_code"] == 3
    assert rows["good"]["report"]["dtype"] == "float16"
    assert rows["wide"]["report"]["dtype"] == "float32"
    for name, n_shards in (("good", 1), ("wide", 2)):
        out = folder / "converted" / name
        assert len(list(out.glob("*.safetensors"))) == n_shards
        completed("verify", out).check_returncode()
    assert sorted(p.name for p in (folder / "converted").iterdir()) == ["good", "wide"]


def test_run_again_does_what_is_left_only(folder: Path) -> None:
    path = _manifest(folder, GOOD_AND_BAD)
    assert _results(path, code=9)["counts"] == {"done": 2, "failed": 2, "stopped": 0, "waiting": 0}
    state = path.with_name("models.state.jsonl")
    before = state.read_text()
    assert _results(path, code=9)["counts"]["failed"] == 2, "what failed is not forgotten"
    assert state.read_text() == before, "nothing was run"
    (folder / "cut.gguf").write_bytes((folder / "good.gguf").read_bytes())
    rows = _results(path, "--retry-failed", code=9)
    assert [rows[name]["status"] for name in ("good", "cut", "gone", "wide")] == ["done", "done", "failed", "done"]
    path.write_text(GOOD_AND_BAD.replace("nowhere.gguf", "good.gguf"))
    assert _results(path)["counts"]["done"] == 4, "a changed model is run again without being asked"
    (folder / "converted" / "good" / "config.json").unlink()
    (folder / "converted" / "good").rename(folder / "elsewhere")
    assert _results(path)["counts"]["done"] == 4
    assert (folder / "converted" / "good" / "config.json").is_file(), "a folder that is gone is made again"


STALL = """
import os, signal, sys, threading
from gguf2st import execute
real = execute._write_shard
def stalled(plan, index, path, *rest):
    if index == 1 and os.path.exists({flag!r}):
        os.unlink({flag!r})
        {what}
    return real(plan, index, path, *rest)
execute._write_shard = stalled
"""


def _stalling(folder: Path, what: str) -> dict[str, str]:
    """An environment in which the conversion does something at its second shard, the first time it gets there."""
    flag = folder / "flag"
    flag.touch()
    hook = folder / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import sys\nif 'convert' in sys.argv and '--dry-run' not in sys.argv:\n"
        + "".join(f"    {line}\n" for line in STALL.format(flag=str(flag), what=what).splitlines())
    )
    return {"PYTHONPATH": str(hook)}


TWO = """
[[model]]
name = "first"
src = "good.gguf"
max-shard-size = "50KB"
[[model]]
name = "second"
src = "good.gguf"
"""


def _wait(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_crash_ends_one_model_only(folder: Path) -> None:
    path = _manifest(folder, TWO)
    rows = _results(path, code=9, **_stalling(folder, "os.kill(os.getpid(), signal.SIGKILL)"))
    assert rows["first"]["error"] == "the process was killed by SIGKILL"
    assert rows["first"]["exit_code"] == -9
    assert "memory" in rows["first"]["hint"]
    assert rows["second"]["status"] == "done"
    partial = folder / f"first-safetensors{PARTIAL}"
    kept = {p.name: p.stat().st_mtime_ns for p in partial.glob("*.safetensors")}
    assert len(kept) == 1
    rows = _results(path, "--retry-failed")
    assert rows["counts"]["done"] == 2
    name, written = next(iter(kept.items()))
    assert (folder / "first-safetensors" / name).stat().st_mtime_ns == written, "a finished shard is not written again"


def test_a_model_whose_machine_failed_is_tried_again(folder: Path) -> None:
    """Without --retry-failed: a CUDA device that dies says nothing about the model."""
    path = _manifest(folder, TWO)
    died = "from gguf2st.errors import DeviceError; raise DeviceError('device cuda: CUDA error: launch failure')"
    rows = _results(path, code=9, **_stalling(folder, died))
    assert (rows["first"]["status"], rows["first"]["exit_code"]) == ("failed", 10)
    assert rows["second"]["status"] == "done"
    (folder / "second-safetensors" / "flag").touch()
    rows = _results(path)
    assert rows["counts"] == {"done": 2, "failed": 0, "stopped": 0, "waiting": 0}
    assert (folder / "second-safetensors" / "flag").exists(), "what was done is not done again"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_kill_9_of_the_batch_and_run_again(folder: Path) -> None:
    path = _manifest(folder, TWO)
    environment = os.environ | _stalling(folder, "threading.Event().wait()")
    with subprocess.Popen(_command(path), env=environment, text=True) as process:
        _wait(lambda: not (folder / "flag").exists(), process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 1
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 10
    while Path(f"/proc/{children[0]}").exists() and time.monotonic() < until:
        time.sleep(0.02)  # its new parent has to notice
    assert not Path(f"/proc/{children[0]}").exists(), "the conversion ends with the batch"
    with path.with_name("models.state.jsonl").open("a") as state:
        state.write('{"name": "second", "status": "done", "key')  # a line that the crash cut short
    rows = _results(path)
    assert rows["counts"]["done"] == 2
    assert "1 of 4 shards were finished by an earlier run" in " ".join(rows["first"]["report"]["notes"])


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(folder: Path) -> None:
    path = _manifest(folder, TWO)
    asked = folder / "asked"
    stall = f"""
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            open({str(asked)!r}, "w").close()
            raise
    """
    environment = os.environ | _stalling(folder, stall)
    with subprocess.Popen(
        _command(path, "--json", folder / "r.json"), env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        _wait(lambda: not (folder / "flag").exists(), process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "interrupted: the same command goes on from here\n"
    statuses = {row["name"]: row["status"] for row in json.loads((folder / "r.json").read_text())["models"]}
    assert statuses == {"first": "stopped", "second": "waiting"}
    assert asked.exists(), "the conversion was asked to end, not killed"
    assert not (folder / "first-safetensors").exists()
    rows = _results(path)
    assert rows["counts"]["done"] == 2
    assert "1 of 4 shards were finished by an earlier run" in " ".join(rows["first"]["report"]["notes"])


def test_killed_after_the_folder_got_its_name(folder: Path) -> None:
    """Between the end of a conversion and the note of it: the folder is there, and it is ours."""
    path = _manifest(folder, TWO)
    _run(path)
    state = path.with_name("models.state.jsonl")
    lines = state.read_text().splitlines(keepends=True)
    state.write_text("".join(line for line in lines if '"started"' in line))
    assert _results(path)["counts"]["done"] == 2
    state.write_text("")
    rows = _results(path, code=9)
    assert "exists already" in rows["first"]["error"], "a folder that was there before is not taken for ours"
    assert _results(path, "--retry-failed", code=9)["counts"]["failed"] == 2
    state.write_text("".join(line for line in state.read_text().splitlines(keepends=True) if '"started"' in line))
    assert _results(path, code=9)["counts"]["failed"] == 2, "nor when the batch was killed meanwhile"


def test_models_are_uploaded_and_a_failed_upload_converts_nothing_again(
    folder: Path, hub: HubServer, tmp_path: Path
) -> None:
    text = '[defaults]\npush = "tester/{name}"\nprivate = true\n' + TWO
    path = _manifest(folder, text + "no-keep = true\n")
    hub.fail("POST", "/tester/first/commit/", 403, message="not today")
    environment = hub.environment(tmp_path)
    rows = _results(path, code=9, **environment)
    assert "not today" in rows["first"]["error"]
    assert rows["first"]["exit_code"] == 8
    written = (folder / "first-safetensors" / "config.json").stat().st_mtime_ns
    assert rows["second"]["status"] == "done"
    assert rows["second"]["output"] is None
    assert not (folder / "second-safetensors").exists()
    assert "model.safetensors" in hub.files("tester/second")
    rows = _results(path, "--retry-failed", **environment)
    assert rows["first"]["pushed"]["repo"] == "tester/first"
    assert (folder / "first-safetensors" / "config.json").stat().st_mtime_ns == written
    assert hub.store.repos["tester/first"].private
    assert rows["counts"]["done"] == 2
    assert WRITER not in path.with_name("models.state.jsonl").read_text()


def test_from_the_hub_to_the_hub(folder: Path, hub: HubServer, tmp_path: Path) -> None:
    hub.add("org/tiny-GGUF", {"tiny.F32.gguf": (folder / "good.gguf").read_bytes()})
    path = _manifest(folder, '[[model]]\nsrc = "org/tiny-GGUF:F32"\npush = "tester/{name}"\nno-keep = true\n')
    rows = _results(path, **hub.environment(tmp_path))
    assert rows["tiny-GGUF-F32"]["status"] == "done"
    there = hub.files("tester/tiny-GGUF-F32")
    card = there["README.md"].decode()
    for line in ("base_model: org/tiny-GGUF\n", "base_model_relation: quantized\n", "convert hf://org/tiny-GGUF@"):
        assert line in card
    assert len(there["model.safetensors"]) > 186_000


def test_the_disk_is_looked_at_before_each_model(folder: Path) -> None:
    path = _manifest(folder, '[[model]]\nsrc = "good.gguf"\n[[model]]\nname = "gone"\nsrc = "x.gguf"\n')
    code = "import shutil\nshutil.disk_usage = lambda path: shutil._ntuple_diskusage(10**9, 10**9, {free})\n"
    code += f"from gguf2st.cli import main\nmain(['batch', {str(path)!r}, '--json', '-'])"
    done = subprocess.run(
        [sys.executable, "-c", code.format(free=180_000)], capture_output=True, text=True, check=False
    )
    rows = json.loads(done.stdout)["models"]
    assert rows[0]["error"] == "no space left: 186.8 kB are needed, 180.0 kB are free"
    assert rows[0]["exit_code"] == 6
    assert not (folder / "good-safetensors").exists()
    assert not (folder / f"good-safetensors{PARTIAL}").exists()
    assert rows[1]["exit_code"] == 3


def test_models_wait_for_the_disk_that_others_fill(folder: Path) -> None:
    """There is room for one of them at a time."""
    path = _manifest(folder, TWO)
    code = "import shutil\nshutil.disk_usage = lambda path: shutil._ntuple_diskusage(10**9, 10**9, 250_000)\n"
    code += f"from gguf2st.cli import main\nmain(['batch', {str(path)!r}, '--json', '-', '-j2'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["counts"]["done"] == 2, done.stdout


PROBLEMS = {
    'dtyp = "float16"': "there is no option 'dtyp'; did you mean 'dtype'?",
    'max_shard_size = "5GB"': "there is no option 'max_shard_size'; did you mean 'max-shard-size'?",
    'dtype = "bf16"': "'bf16' is not one of 'bfloat16', 'float16', 'float32'",
    "overwrite = 1": "overwrite is true or false, not 1",
    "dtype = true": "dtype is True; it must be a text or a number",
    "output = [1]": "output is [1]; it must be a text or a number",
    "threads = 0": "0 is not in the range 1<=x<=256",
    'arch-map = "absent.toml"': "File 'absent.toml' does not exist",
    "no-keep = true": "no-keep without push",
    "private = true": "private without push",
    'json = "x"': "there is no option 'json'",
    "dry-run = true": "there is no option 'dry-run'",
    'name = "../x"': "a name is made of letters",
}


@pytest.mark.parametrize("line", PROBLEMS)
def test_what_a_manifest_cannot_say(line: str, tmp_path: Path) -> None:
    path = _manifest(tmp_path, f'[[model]]\nsrc = "good.gguf"\n{line}\n')
    with pytest.raises(UsageError) as caught:
        read_manifest(path, _options(), _problem)
    assert PROBLEMS[line] in caught.value.message
    assert "model 1" in caught.value.message


def test_a_manifest_with_a_problem_starts_nothing(folder: Path) -> None:
    path = _manifest(folder, TWO + "dtyp = 'float16'\n")
    done = _run(path, "--json", folder / "r.json", code=2)
    assert done.stdout == ""
    assert "error: " in done.stderr
    assert "hint: nothing was started" in done.stderr
    assert sorted(p.name for p in folder.iterdir()) == ["cut.gguf", "good.gguf", "models.toml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no [[model]]"),
        ("[[models]]\nsrc = 'a'", "there is no table 'models'; did you mean 'model'?"),
        ("[model]\nsrc = 'a'", "a manifest has a table [defaults] and tables [[model]]"),
        ("[[model]]\nname = 'a'", "model 1 ('a'): src is missing"),
        ("[[model]]\nsrc = ''", "model 1: src is missing"),
        ("[[model]]\nsrc = 'a'\n[[model]]\nsrc = 'x/a'", "2 models have the name 'a'"),
        ("[defaults]\noutput = 'o'\n[[model]]\nsrc = 'a'\n[[model]]\nsrc = 'b'", "2 models have the output"),
        ("[defaults]\npush = 'm/o'\n[[model]]\nsrc = 'a'\n[[model]]\nsrc = 'b'", "2 models have the push 'm/o@main'"),
        ("[defaults]\nsrc = 'a'\n[[model]]\nsrc = 'a'", "[defaults]: there is no option 'src'"),
        ("[[model]\n", "is not TOML"),
        ("[[model]]\nsrc = 'a'\n[[model]]\nsrc = '\x80'", "is not TOML"),
    ],
)
def test_manifests_that_make_no_sense(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        read_manifest(path, _options(), _problem)
    assert message in "\n".join((caught.value.message, *caught.value.problems))


def test_a_manifest_that_is_not_there(tmp_path: Path) -> None:
    done = _run(tmp_path / "absent.toml", code=2)
    assert "No such file or directory" in done.stderr


def test_all_problems_are_shown_at_once(tmp_path: Path) -> None:
    path = _manifest(tmp_path, "[[model]]\nsrc = 'a'\nx1 = 1\n" + "[[model]]\nx2 = 1\n" * 30)
    with pytest.raises(UsageError) as caught:
        read_manifest(path, _options(), _problem)
    assert len(caught.value.problems) == 20
    assert caught.value.problems[-1] == "... and 41 more"


def test_what_a_manifest_says(tmp_path: Path) -> None:
    """A push in the defaults holds for all; how to push, for those that are pushed."""
    path = _manifest(
        tmp_path, "[defaults]\nprivate = true\n[[model]]\nsrc = 'a'\n[[model]]\nsrc = 'b'\npush = 'me/b'\n"
    )
    assert [model.push for model in read_manifest(path, _options(), _problem).models] == [
        {},
        {"private": True, "push": "me/b"},
    ]
    path = _manifest(
        tmp_path,
        "[defaults]\ndtype = 'float16'\noutput = 'o/{name}'\npush = 'me/{name}-st'\n"
        "[[model]]\nsrc = 'org/repo:Q4_K_M'\ndtype = 'float32'\nno-keep = true\noverwrite = false\n"
        "[[model]]\nsrc = 'dir/x.Q8_0-00001-of-00002.gguf'\nthreads = 2\noverwrite = true\nprivate = true\n"
        "[[model]]\nname = 'plain'\nsrc = '/data/plain.GGUF'\noutput = '/elsewhere/p'\n",
    )
    streamed, kept, plain = read_manifest(path, _options(), _problem).models
    assert streamed.name == "repo-Q4_K_M"
    assert streamed.convert_arguments == [
        "--dtype=float32",
        f"--output={tmp_path}/o/repo-Q4_K_M",
        "--no-keep",
        "--push=me/repo-Q4_K_M-st",
        "--",
        "org/repo:Q4_K_M",
    ]
    assert streamed.push_arguments == []
    assert kept.convert_arguments == [
        "--dtype=float16",
        f"--output={tmp_path}/o/x.Q8_0",
        "--threads=2",
        "--overwrite",
        "--",
        "dir/x.Q8_0-00001-of-00002.gguf",
    ]
    assert kept.push_arguments == ["--private", "--", f"{tmp_path}/o/x.Q8_0", "me/x.Q8_0-st"]
    assert plain.output == Path("/elsewhere/p")


def test_many_models(folder: Path) -> None:
    """Read, resumed and summed up; all of them are done. Their files have gone since, as they may."""
    models = "".join(f"[[model]]\nsrc = 'm{i}.gguf'\n" for i in range(100))
    path = _manifest(folder, f"[defaults]\noutput = 'o/{{name}}'\n{models}")
    gguf2st.convert(folder / "good.gguf", folder / "made")
    made = (folder / "made/gguf2st.json").read_text()
    rows = read_manifest(path, _options(), _problem).models
    with StateFile(path) as state:
        for model in rows:
            model.output.mkdir(parents=True)
            (model.output / "gguf2st.json").write_text(made.replace("good.gguf", f"{model.name}.gguf"))
            state.write(Result(model.name, "done", model.key))
    assert len(rows) == _results(path)["counts"]["done"] == 100


@pytest.mark.parametrize("status", ["started", "stopped", "done", "converted"])
@pytest.mark.parametrize(
    ("by_hand", "same"),
    [
        ({"dtype": "float16"}, True),
        ({"dtype": "float32"}, False),
        ({}, False),
        ({"dtype": "float16", "repack": "near"}, False),
        ({"dtype": "float16", "max_shard_size": 200_000}, False),
        ({"dtype": "float16", "tokenizer_pre": "llama-bpe"}, False),
    ],
)
def test_a_folder_made_by_hand_counts_if_it_is_the_same(
    by_hand: dict[str, Any], same: bool, status: str, folder: Path
) -> None:
    """A batch was interrupted, and somebody converted the model meanwhile."""
    path = _manifest(folder, "[[model]]\nsrc = 'good.gguf'\noutput = 'out'\ndtype = 'float16'\n")
    (model,) = read_manifest(path, _options(), _problem).models
    with StateFile(path) as state:
        state.write(Result("good", status, model.key, report={"a": 1} if status == "converted" else {}))
    gguf2st.convert(folder / "good.gguf", folder / "out", **by_hand)
    before = {file.name: file.read_bytes() for file in (folder / "out").iterdir()}
    row = _results(path, code=0 if same else 9)["good"]
    assert row["status"] == ("done" if same else "failed")
    if not same:
        assert row["exit_code"] == 6
        assert "out exists already" in row["error"]
    assert {file.name: file.read_bytes() for file in (folder / "out").iterdir()} == before


@pytest.mark.parametrize("how", ["another file", "written since"])
def test_a_folder_of_another_source_does_not_count(how: str, folder: Path) -> None:
    path = _manifest(folder, "[[model]]\nsrc = 'good.gguf'\noutput = 'out'\n")
    (model,) = read_manifest(path, _options(), _problem).models
    with StateFile(path) as state:
        state.write(Result("good", "started", model.key))
    other = tiny_llama(folder / "other.gguf", seed=5)
    gguf2st.convert(other if how == "another file" else folder / "good.gguf", folder / "out")
    if how == "written since":
        other.replace(folder / "good.gguf")
        os.utime(folder / "good.gguf", (2**31, 2**31))
    assert _results(path, code=9)["good"]["exit_code"] == 6


def test_a_line_that_a_crash_cut_short_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.with_name("m.state.jsonl").write_text(
        '{"name": "a", "status": "done", "key": "k", "problems": []}\n{"name": "b'
    )
    with StateFile(path) as state:
        assert state.results == {"a": Result("a", "done", "k")}
        state.write(Result("c", "failed", "k", problems=("x",)))
    with StateFile(path) as state:
        assert state.results == {"a": Result("a", "done", "k"), "c": Result("c", "failed", "k", problems=("x",))}


def test_one_manifest_is_run_once_at_a_time(folder: Path) -> None:
    path = _manifest(folder, TWO)
    with StateFile(path), pytest.raises(OutputError, match="another batch is at work with it"), StateFile(path):
        pass
    with StateFile(path):
        assert "another batch" in _run(path, code=6).stderr


def test_the_example_is_a_manifest() -> None:
    example = Path(__file__).resolve().parent.parent / "docs" / "batch.toml"
    manifest = read_manifest(example, _options(), _problem)
    assert len(manifest.models) >= 3


# --- without a manifest


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two models of one name, a companion of one of them, and a split."""
    folder = tmp_path / "models"
    (folder / "org").mkdir(parents=True)
    tiny_llama(folder / "b.gguf")
    for name in ("b.gguf", "mmproj-F16.gguf"):
        (folder / "org" / name).write_bytes((folder / "b.gguf").read_bytes())
    return folder


def test_a_folder_of_models(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models.parent)
    rows = json.loads(completed("batch", "models", "--json", "-", cwd=models.parent).stdout)
    assert rows["counts"]["done"] == 2, "the projector is no model"
    assert rows["manifest"] is None
    places = {row["name"]: row["output"] for row in rows["models"]}
    assert places == {
        "models-b": str(models / "b-safetensors"),
        "org-b": str(models / "org/b-safetensors"),
    }, "where convert puts them"
    assert {str(locate(models / name).output) for name in ("b.gguf", "org/b.gguf")} == set(places.values())
    assert (models.parent / "gguf2st-batch.state.jsonl").is_file()
    before = (models / "b-safetensors/model.safetensors").stat().st_mtime_ns
    (models / "org/b-safetensors/config.json").unlink()
    again = completed("batch", "models", cwd=models.parent)
    assert (models / "b-safetensors/model.safetensors").stat().st_mtime_ns == before, "done stays done"
    assert "2 done" in again.stdout


def test_several_sources(models: Path) -> None:
    done = completed("batch", "b.gguf", "gone.gguf", "org/mmproj-F16.gguf", cwd=models)
    assert done.returncode == 9
    assert [line.split()[:2] for line in done.stdout.splitlines()[:2]] == [["b", "done"], ["gone", "failed"]]
    assert "gone.gguf: no such file" in done.stdout
    assert (models / "b-safetensors").is_dir()


def test_shards_are_one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    (model,) = read_sources(sorted(path.name for path in tmp_path.iterdir()), _problem).models
    assert (model.name, model.src) == ("m", "m-00001-of-00002.gguf")
    assert model.output == tmp_path / "m-safetensors"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a.toml", "b.gguf"), "a.toml is a manifest: a batch has one of them, or sources"),
        (("empty",), "empty: no GGUF file is in this folder, nor one level down"),
        (("mmproj.gguf",), "mmproj.gguf: no model is here"),
        (("b.gguf", "./b.gguf", "org/m:Q8_0", "org/m:Q8_0"), "2 models have the name 'org-m-Q8_0'"),
    ],
)
def test_sources_that_make_no_sense(
    names: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("b.gguf", "mmproj.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Gguf2stError) as caught:
        is_manifest(names) or read_sources(names, _problem)
    assert caught.value.message.startswith(message)


def test_what_is_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "blob").write_bytes(b"GGUF")
    (tmp_path / "text").write_text("[[model]]")
    names = ("absent.toml", "text", "m.gguf", "blob", "", "absent.gguf")
    assert [is_manifest([str(tmp_path / name)]) for name in names] == [True, True, False, False, False, False]


def test_outputs_by_default_are_those_of_convert(models: Path) -> None:
    text = "[[model]]\nsrc = 'b.gguf'\n[[model]]\nsrc = 'org/b.gguf'\nname = 'x'\n[[model]]\nsrc = 'me/repo:Q4_0'\n"
    manifest = read_manifest(_manifest(models, text), _options(), _problem)
    assert [model.output for model in manifest.models] == [
        locate(models / "b.gguf").output,
        models / "org/x-safetensors",
        models / "repo-Q4_0-safetensors",
    ]
