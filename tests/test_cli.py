"""The command line in processes of its own: exit codes, streams, JSON, terminals, and what it imports."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import gguf2st
from gguf2st.archmap.mapfile import maps_folder
from gguf2st.cli import cli, lines
from tests.make_gguf import tiny_gemma3, tiny_llama, write_gguf
from tests.oracle.terminal import GGUF2ST, SLOW, Done, interrupted, on_terminal, run

ESC = "\x1b"
COMMANDS = tuple(cli.list_commands(click.Context(cli)))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "tiny.Q8_0.gguf", qtype="Q8_0")


@pytest.fixture(scope="module")
def checkpoint(source: Path) -> Path:
    folder = source.with_name("checkpoint")
    gguf2st.convert(source, folder)
    return folder


def assert_error(done: Done, code: int, *words: str) -> None:
    """One message on standard error, without a traceback, and nothing on standard output."""
    assert done.code == code, done
    assert done.out == ""
    assert done.err.startswith("error: "), done.err
    assert "Traceback" not in done.err
    assert ESC not in done.err
    for word in words:
        assert word in done.err, done.err


# --- Exit codes and streams --------------------------------------------------------------------------------------


def test_a_conversion_and_its_output(source: Path, tmp_path: Path) -> None:
    done = run("convert", source, "-o", tmp_path / "out")
    assert done.code == 0
    assert done.err == "", "no progress bar in a pipe"
    assert ESC not in done.out
    assert f"vllm serve {tmp_path / 'out'}" in done.out
    assert f"gguf2st verify {tmp_path / 'out'} --against {source}" in done.out
    assert (tmp_path / "out/config.json").is_file()
    checked = run("verify", tmp_path / "out", "--against", source, "--model")
    assert (checked.code, checked.err) == (0, "")
    assert checked.out.startswith("ok (structural, numerical, model): 20 tensors")


def test_the_default_folder_is_beside_the_source(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "My Model.Q8_0.gguf")
    done = run("convert", "My Model.Q8_0.gguf", cwd=tmp_path)
    assert done.code == 0
    assert "vllm serve 'My Model.Q8_0-safetensors'" in done.out
    assert (tmp_path / "My Model.Q8_0-safetensors/config.json").is_file()


@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_quiet_says_nothing(option: str, source: Path, tmp_path: Path) -> None:
    assert run("convert", source, "-o", tmp_path / "out", option) == Done(0, "", "")


USAGE: dict[str, tuple[str, ...]] = {
    "no command": (),
    "unknown command": ("transmogrify",),
    "unknown option": ("convert", "SRC", "--fast"),
    "no source": ("convert",),
    "dtype": ("convert", "SRC", "--dtype", "int3"),
    "size": ("convert", "SRC", "--max-shard-size", "5XB"),
    "zero size": ("convert", "SRC", "--max-shard-size", "0"),
    "device": ("convert", "SRC", "--device", "tpu"),
    "threads": ("convert", "SRC", "--threads", "0"),
    "json in no folder": ("convert", "SRC", "--json", "gone/report.json"),
    "map": ("plan", "SRC", "--arch-map", "gone.toml"),
    "no folder": ("verify", ""),
    "nothing to push": ("push", "", "me/model"),
    "no output": ("convert", "SRC", "-o", ""),
    "no plan": ("finish", ""),
    "an option for a value": ("convert", "SRC", "--json", "-o", "out"),
    "an option for a folder": ("convert", "SRC", "-o", "--overwrite"),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_is_2(case: str, source: Path, tmp_path: Path) -> None:
    done = run(*(str(source) if word == "SRC" else word for word in USAGE[case]), cwd=tmp_path)
    assert done.code == 2
    assert done.out == ""
    if case == "no command":
        assert done.err.startswith("Usage:")
    else:
        assert_error(done, 2, "hint: ", " --help` has the options")
    assert os.listdir(tmp_path) == []


def test_usage_errors_are_errors_for_readers_of_json_too(tmp_path: Path) -> None:
    done = run("inspect", "--json", cwd=tmp_path)
    facts = json.loads(done.out)
    assert (done.code, facts["exit_code"]) == (2, 2)
    assert "SRC" in facts["error"]


@pytest.mark.parametrize(
    ("words", "error", "command"),
    [
        (("convert", "SRC", "-o"), "option '-o' requires an argument", "convert"),
        (("convert",), "missing argument 'SRC', or --plan", "convert"),
        (("push", "folder"), "missing argument 'REPO'", "push"),
        (
            ("convert", "SRC", "--threads", "few"),
            "invalid value for '--threads': 'few' is not a whole number",
            "convert",
        ),
        (
            ("convert", "SRC", "--threads", "0"),
            "invalid value for '--threads': 0 is not in the range 1<=x<=256",
            "convert",
        ),
        (("verify", "DIR", "--sample", "x"), "invalid value for '--sample': 'x' is not a number", "verify"),
        (("convert", "SRC", "more"), "got unexpected extra argument (more)", "convert"),
        (("archs", "--json=yes"), "option '--json' does not take a value", "archs"),
        (
            ("convert", "SRC", "--dtype", "int3"),
            "invalid value for '--dtype': 'int3' is not one of 'bfloat16', 'float16', 'float32'",
            "convert",
        ),
    ],
)
def test_usage_errors_read_like_others(words: tuple[str, ...], error: str, command: str) -> None:
    """One line of what and where, and one with the next command; nothing in click's own form."""
    done = run(*words)
    assert done == Done(2, "", f"error: {error}\nhint: `gguf2st {command} --help` has the options, and examples\n")


def test_long_listings_are_cut(tmp_path: Path) -> None:
    """1,001 keys with the architecture's name: 200 are shown, and JSON has all of them."""
    file = write_gguf(tmp_path / "m.gguf", {f"llama.own.key{n}": n for n in range(1000)}, {})
    done = run("inspect", file)
    keys = [line for line in done.out.splitlines() if line.startswith(("  llama.own.key", "  general."))]
    assert len(keys) == 200
    assert "\n  ... and 801 more keys: --json has all of them\n" in done.out
    assert len(json.loads(run("inspect", file, "--json").out)["metadata"]) == 1001


def test_what_was_meant(source: Path) -> None:
    assert_error(run("convrt", source), 2, "Did you mean 'convert'?")
    assert_error(run("convert", source, "--dtpe", "x"), 2, "Did you mean '--dtype'?")
    assert_error(run(source), 2, f"hint: a command goes first: gguf2st convert {source}")
    assert_error(run("convert", source, "--repack", "--quiet"), 2, "'--repack' needs a value", "'--quiet'")


def test_a_value_may_look_like_an_option(source: Path, tmp_path: Path) -> None:
    assert run("convert", source, "--output=--overwrite", "-q", cwd=tmp_path) == Done(0, "", "")
    assert os.listdir(tmp_path) == ["--overwrite"]


@pytest.mark.parametrize("words", ["convert ", "inspect ", "verify --against ", "verify ", "serve "])
def test_shells_complete_names_of_files(words: str) -> None:
    typed = f"gguf2st {words}"
    environment = {
        "_GGUF2ST_COMPLETE": "bash_complete",
        "COMP_WORDS": f"{typed}mod",
        "COMP_CWORD": str(typed.count(" ")),
    }
    assert run(environment=environment).out == "file,mod\n"


@pytest.mark.parametrize("command", ["convert", "inspect", "plan", "check"])
def test_a_missing_source_is_3(command: str, source: Path) -> None:
    done = run(command, source.with_name("tiny.Q8.gguf"))
    assert done.code == 3
    if command == "check":  # its result is the list of problems
        assert "no such file" in done.out
    else:
        assert_error(done, 3, "no such file", f"did you mean {source}?")


@pytest.mark.parametrize("command", ["convert", "plan", "check"])
def test_an_unknown_architecture_is_4(command: str, tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf", extra_metadata={"general.architecture": "novelty"})
    done = run(command, source)
    assert done.code == 4
    assert "novelty" in done.out + done.err
    assert "Traceback" not in done.err
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_a_damaged_checkpoint_is_5(checkpoint: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert_error(run("verify", tmp_path), 5, "config.json says nothing", "hint: ")
    assert_error(run("verify", tmp_path / "gone"), 3, "is not there", "hint: ")
    done = run("verify", tmp_path, "--json")
    assert done.code == 5
    assert json.loads(done.out)["ok"] is False
    assert run("verify", checkpoint, "--against", source).code == 0


TARGETS = {
    "exists": "taken",
    "is a file": "file",
    "below a file": "file/out",
    "name too long": "x" * 300,
    "no place for files": "/proc/1/out",
    "current folder": ".",
    "mount point": "/proc",
}


@pytest.mark.parametrize("case", TARGETS)
def test_a_target_that_cannot_be_written_is_6(case: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/config.json").touch()
    (tmp_path / "file").touch()
    assert_error(run("convert", source, "-o", TARGETS[case], cwd=tmp_path), 6)
    assert sorted(os.listdir(tmp_path)) == ["file", "taken"]


def test_a_report_that_cannot_be_written_is_6(source: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    done = run("convert", source, "-o", tmp_path / "out", "--json", tmp_path / "report.json")
    assert_error(done, 6, "report.json")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interruption_is_130_and_can_be_resumed(sent: signal.Signals, source: Path, tmp_path: Path) -> None:
    arguments = ("convert", source, "-o", tmp_path / "out", "--max-shard-size", "90KB", "--threads", "2")
    first = tmp_path / "out.partial/model-00001-of-00003.safetensors"
    done = interrupted(*arguments, once=first, sent=sent)
    assert done.code == 130
    assert done.out == ""
    assert done.err.splitlines() == [
        f"{tmp_path}/out.partial keeps the finished shards: the same command goes on from there",
        "interrupted",
    ]
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()
    inode = first.stat().st_ino
    again = run(*arguments)
    assert again.code == 0
    assert re.search(r"note: [12] of 3 shards were finished by an earlier run", again.out)
    assert (tmp_path / "out" / first.name).stat().st_ino == inode
    assert run("verify", tmp_path / "out", "--against", source).code == 0
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("command", ["inspect", "plan", "archs"])
def test_a_reader_that_leaves_is_no_error(command: str, source: Path) -> None:
    arguments = [*GGUF2ST, command, *([str(source)] if command != "archs" else [])]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.wait(timeout=60)
    process.stderr.close()


# --- JSON --------------------------------------------------------------------------------------------------------


def test_every_json_parses(source: Path, checkpoint: Path, tmp_path: Path) -> None:
    results: dict[str, Any] = {}
    for name, arguments in {
        "inspect": ("inspect", source, "--json"),
        "check": ("check", source, "--json"),
        "plan": ("plan", source, "--json"),
        "verify": ("verify", checkpoint, "--json"),
        "archs": ("archs", "--json"),
        "convert": ("convert", source, "-o", tmp_path / "a", "--json", "-"),
        "dry run": ("convert", source, "-o", tmp_path / "b", "--json", "-", "--dry-run"),
    }.items():
        done = run(*arguments)
        assert (done.code, done.err) == (0, ""), name
        results[name] = json.loads(done.out)
    assert results["inspect"]["tensors"] == 20
    assert results["inspect"]["metadata"]["general.architecture"] == "llama"
    assert results["inspect"]["convertible"] is True
    assert results["check"].items() >= {"convertible": True, "exit_code": 0}.items()
    assert results["check"]["problems"] == []
    assert len(results["plan"]["entries"]) == 20
    assert results["verify"]["ok"] is True
    assert "gemma3" in {row["arch"] for row in results["archs"]}
    assert results["convert"]["output"] == str(tmp_path / "a")
    assert results["convert"]["verification"]["problems"] == []
    assert results["dry run"]["output"] is None
    assert not (tmp_path / "b").exists()


def test_a_report_in_a_file(source: Path, tmp_path: Path) -> None:
    done = run("convert", source, "-o", tmp_path / "out", "--json", tmp_path / "report.json", "--quiet")
    assert done == Done(0, "", "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["tensors"] == 20
    assert report["shards"] == ["model.safetensors"]


def test_check_says_everything_at_once(tmp_path: Path) -> None:
    source = tiny_llama(
        tmp_path / "m.gguf",
        drop=["blk.0.attn_q.weight", "blk.1.attn_q.weight"],
        extra_tensors={"blk.0.mystery.weight": np.zeros(4, np.float32)},
        extra_metadata={"tokenizer.ggml.pre": "klingon", "llama.warp.factor": 9.0},
    )
    done = run("check", source, "--json")
    result = json.loads(done.out)
    assert (done.code, result["exit_code"]) == (4, 4)
    text = "\n".join(result["problems"])
    for word in ("blk.{0..1}.attn_q.weight", "blk.0.mystery.weight", "klingon", "llama.warp.factor"):
        assert word in text
    plain = run("check", source)
    assert plain.code == 4
    assert plain.out.count("problem: ") == len(result["problems"])
    assert not plain.err


# --- Help --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_has_examples(command: str | None) -> None:
    for option in ("--help", "-h"):
        done = run(*([command] if command else []), option)
        assert (done.code, done.err) == (0, "")
        examples = re.search(r"Examples:\n((?:\s+gguf2st .*\n)+)", done.out)
        assert examples, done.out
        assert command is None or f"gguf2st {command}" in examples[1]


def test_help_names_every_exit_code() -> None:
    text = run("--help").out
    for code in ("0 done", "2 usage", "3 bad source", "4 not convertible", "5 verification", "6 cannot write", "130"):
        assert re.search(code.replace(" ", r"\s+"), text), code


def test_version() -> None:
    assert run("--version").out == f"gguf2st, version {gguf2st.__version__}\n"


def test_the_installed_script() -> None:
    script = Path(sys.executable).with_name("gguf2st")
    assert run("archs", program=(str(script),)) == run("archs")


# --- Imports -----------------------------------------------------------------------------------------------------

HEAVY = ("torch", "transformers", "numba", "tokenizers", "numpy", "safetensors", "huggingface_hub", "rich", "gguf")
LIGHT = {
    "help": ("--help",),
    "archs": ("archs",),
    "inspect": ("inspect", "SRC"),
    "check": ("check", "SRC"),
    "plan": ("plan", "SRC"),
    "dry run": ("convert", "SRC", "-o", "never", "--dry-run"),
    "help of a command": ("convert", "--help"),
}


@pytest.mark.parametrize("case", LIGHT)
def test_commands_that_read_headers_are_light(case: str, source: Path) -> None:
    arguments = [str(source) if word == "SRC" else word for word in LIGHT[case]]
    program = (sys.executable, "-X", "importtime", "-m", "gguf2st")
    done = run(*arguments, program=program)
    assert done.code == 0
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.err.splitlines()}
    assert "click" in imported
    assert imported & set(HEAVY) == set()


def test_conversions_import_neither_torch_nor_transformers(source: Path, tmp_path: Path) -> None:
    program = (sys.executable, "-X", "importtime", "-m", "gguf2st")
    done = run("convert", source, "-o", tmp_path / "out", "--device", "cpu", program=program)
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.err.splitlines()}
    assert {"numba", "tokenizers"} <= imported
    assert imported & {"torch", "transformers", "rich"} == set()


# --- Terminals ---------------------------------------------------------------------------------------------------


def test_progress_and_colours_on_a_terminal(source: Path, tmp_path: Path) -> None:
    done = on_terminal("convert", source, "-o", tmp_path / "out", "--threads", "1", program=SLOW)
    assert done.code == 0
    assert "converting" in done.out
    assert re.search(r"[\d.]+\S*/[\d.]+ [kM]?B", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.out)), "bytes done of all"
    assert f"{ESC}[32m{ESC}[1mdone{ESC}[0m" in done.out
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.out)
    assert ESC not in plain, "colours and cursor movement only"


def test_errors_are_red_on_a_terminal(tmp_path: Path) -> None:
    done = on_terminal("convert", tmp_path / "gone.gguf")
    assert done.code == 3
    assert done.out.startswith(f"{ESC}[31m{ESC}[1merror{ESC}[0m: ")


def test_quiet_is_quiet_on_a_terminal(source: Path, tmp_path: Path) -> None:
    assert on_terminal("convert", source, "-o", tmp_path / "out", "-q", program=SLOW) == Done(0, "", "")


EVIL = f"{ESC}]0;pwned\x07{ESC}[2J\r\n\x9b31m‮"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files with a terminal sequence in each place where a file can have text."""
    folder = tmp_path_factory.mktemp("hostile")
    zeros = np.zeros(4, np.float32)
    template = f"{{{{ messages }}}}{EVIL}"
    return {
        "convertible": tiny_llama(
            folder / "convertible.gguf",
            extra_metadata={
                "general.name": f"tiny{EVIL}",
                f"general.{EVIL}": "key",
                "general.tags": [f"a{EVIL}", "b"],
                "tokenizer.chat_template": template,
            },
        ),
        "tensor": tiny_llama(folder / "tensor.gguf", extra_tensors={f"blk.0.{EVIL}.weight": zeros}),
        "key": tiny_llama(folder / "key.gguf", extra_metadata={f"llama.{EVIL}": 3}),
        "arch": tiny_llama(folder / "arch.gguf", extra_metadata={"general.architecture": f"llama{EVIL}"}),
        "pre": tiny_llama(folder / "pre.gguf", extra_metadata={"tokenizer.ggml.pre": f"smollm{EVIL}"}),
        "template": tiny_llama(folder / "template.gguf", extra_metadata={f"tokenizer.chat_template.{EVIL}": "x"}),
        "file name": tiny_llama(folder / f"name{EVIL}.gguf"),
    }


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("command", ["inspect", "check", "plan", "convert"])
@pytest.mark.parametrize("kind", ["convertible", "tensor", "key", "arch", "pre", "template", "file name"])
def test_terminal_sequences_of_strangers_are_shown_not_sent(
    kind: str, command: str, terminal: bool, hostile: dict[str, Path]
) -> None:
    done = (on_terminal if terminal else run)(command, hostile[kind], *(["--dry-run"] if command == "convert" else []))
    assert done.code in (0, 4)
    assert "Traceback" not in done.out + done.err
    text = re.sub(r"\x1b\[\d*m", "", done.out + done.err) if terminal else done.out + done.err
    text = text.replace("\r\n", "\n")
    assert not {c for c in text if not c.isprintable()} - {"\n"}


def test_a_hostile_name_survives_a_conversion(hostile: dict[str, Path]) -> None:
    done = run("convert", hostile["file name"])
    assert done.code == 0
    assert ESC not in done.out
    assert (hostile["file name"].parent / f"name{EVIL}-safetensors/config.json").is_file()


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_terminals_without_unicode(encoding: str, tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf", extra_metadata={"general.name": "Überträgödie 模型"})
    done = run("inspect", source, environment={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    assert (done.code, done.err) == (0, "")
    assert "\\u6a21\\u578b" in done.out


FAILING_JSON: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "gone.gguf", "--json"),
    "plan": ("plan", "gone.gguf", "--json"),
    "verify": ("verify", "gone", "--json"),
    "verify against": ("verify", "gone", "--against", "SRC", "--json"),
    "convert": ("convert", "gone.gguf", "--json", "-"),
}


@pytest.mark.parametrize("case", FAILING_JSON)
def test_a_failure_is_json_too(case: str, source: Path, tmp_path: Path) -> None:
    done = run(*(str(source) if word == "SRC" else word for word in FAILING_JSON[case]), cwd=tmp_path)
    facts = json.loads(done.out)
    assert facts["exit_code"] == done.code != 0
    assert "gone" in facts["error"]
    assert done.err.startswith("error: ")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_unwanted_colours_stay_away(environment: dict[str, str], source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = on_terminal("check", source)
    assert "\x1b[" in shown.out
    program = ["env", *(f"{k}={v}" for k, v in environment.items()), *GGUF2ST]
    for arguments in (("check", source), ("check", "gone.gguf"), ("convert", "gone.gguf")):
        assert "\x1b[" not in on_terminal(*arguments, program=program).out


def test_suggested_commands_keep_the_options(source: Path, tmp_path: Path) -> None:
    """Copied and pasted, they must work: a map of the user's own, an odd name."""
    own = tmp_path / "my map.toml"
    own.write_text((maps_folder() / "llama.toml").read_text())
    checked = run("check", source, "--arch-map", own)
    assert f"gguf2st convert {source} --arch-map '{own}'" in checked.out
    converted = run("convert", source, "-o", tmp_path / "out", "--arch-map", own)
    line = next(line for line in converted.out.splitlines() if "compare every value" in line)
    words = shlex.split(line.partition("gguf2st ")[2])
    assert run(*words).code == 0


def test_float16_is_advised_against_where_it_overflows(tmp_path: Path) -> None:
    gemma = tiny_gemma3(tmp_path / "g.gguf")
    noted = run("convert", gemma, "--dtype", "float16", "--dry-run")
    assert "note: float16: its activations overflow" in noted.out
    assert "note: float16" not in run("convert", gemma, "--dry-run").out


# --- Lines -------------------------------------------------------------------------------------------------------


def test_long_lines_are_broken_on_a_terminal_only(source: Path) -> None:
    """The terminal has 100 columns; what follows in a column begins where the column does."""
    shown = click.unstyle(on_terminal("check", source).out).splitlines()
    assert max(map(len, shown)) <= 100
    first = next(i for i, line in enumerate(shown) if line.startswith("  repack "))
    assert shown[first + 1].startswith(" " * 12 + shown[first + 1].strip()[0])
    piped = run("check", source).out.splitlines()
    (whole,) = [line for line in piped if line.startswith("  repack ")]
    assert len(whole) > 100
    assert " ".join(" ".join(shown[first:]).split()).startswith(" ".join(whole.split()))


def test_table_and_line_break_before_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("a", "one two three four five six seven"), ("bcd", "short")]
    assert lines.table(rows, width=31) == ("  a    one two three four five\n       six seven\n  bcd  short")
    assert lines.table(rows) == "  a    one two three four five six seven\n  bcd  short"
    assert lines.table(rows, width=20) == lines.table(rows), "too narrow to help"
    monkeypatch.setattr(lines, "terminal_width", lambda: 30)
    lines.echo_line("  note: one two three four five six")
    assert capsys.readouterr().out == "  note: one two three four\n    five six\n"
    lines.echo_table([], "rows")
    assert capsys.readouterr().out == ""


def test_a_file_without_tensors_has_no_table(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, {})
    done = run("inspect", tmp_path / "m.gguf")
    assert "0 tensors, 0 parameters, 0 B\nmetadata\n" in done.out


def test_plan_says_each_problem_once(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf", drop=["blk.0.attn_q.weight", "output_norm.weight"])
    done = run("plan", source)
    assert done.code == 4
    for name in ("blk.0.attn_q.weight", "output_norm.weight"):
        assert sum(name in line for line in done.err.splitlines()) == 1, done.err
    assert "problem" not in done.out


@pytest.mark.parametrize("command", ["check", "inspect", "plan", "convert"])
def test_the_hint_about_several_models_suits_each_command(command: str, tmp_path: Path) -> None:
    for name in ("m.Q4_0.gguf", "m.Q8_0.gguf"):
        tiny_llama(tmp_path / name)
    done = run(command, tmp_path)
    hint = f"hint: name one, such as: {tmp_path}:Q4_0"
    assert hint in done.out + done.err
    assert run("check", f"{tmp_path}:Q4_0").code == 0


def test_a_place_that_takes_no_folder(source: Path) -> None:
    done = run("convert", source, "-o", "/proc/x")
    assert_error(done, 6, "/proc/x.partial cannot be written: No such file or directory", "takes no files of ours")
