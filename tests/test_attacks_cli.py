"""The command line under hurried hands: nothing that was asked for is passed over without a word."""

import json
import os
import shlex
from pathlib import Path

import click.testing
import pytest

import gguf2st
from gguf2st.cli import convert
from gguf2st.errors import OutputError
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import run

TEMPLATE = "{% for message in messages %}" + "{{ message.content }}" * 10


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "tiny.gguf"
    metadata = {"tokenizer.chat_template": TEMPLATE, "general.languages": ["en"], "general.tags": ["a", "b"]}
    return tiny_llama(path, extra_metadata=metadata)


@pytest.mark.parametrize("options", [("--sample", "0.1"), ("--max-rel-rmse", "0.1"), ("--max-rel-rmse", "1")])
def test_comparing_with_nothing(options: tuple[str, str], source: Path, tmp_path: Path) -> None:
    """`ok` after `verify DIR --sample 0.1` would be read as: the sample was compared."""
    gguf2st.convert(source, tmp_path / "out")
    done = run("verify", tmp_path / "out", *options)
    assert done.code == 2
    assert "go with --against SRC" in done.err
    assert done.out == ""
    assert run("verify", tmp_path / "out", *options, "--against", source).code == 0


def test_what_inspect_cuts_it_says(source: Path) -> None:
    done = run("inspect", source)
    assert done.code == 0
    rows = {words[0]: " ".join(words[1:]) for line in done.out.splitlines() if (words := line.split())}
    assert rows["tokenizer.chat_template"] == f"{TEMPLATE[:77]}... (239 characters)"
    assert rows["general.languages"] == "['en'] (1 item)"
    assert rows["general.tags"] == "['a', 'b'] (2 items)"
    assert rows["general.name"] == "Tiny llama"


@pytest.mark.parametrize("arguments", [("verify", "{}", "--json"), ("push", "{}", "org/name", "--json")])
def test_what_the_system_refuses_is_json_too(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """An error of the system about a file, wherever it comes from: here a name that is longer than any may be."""
    name = str(tmp_path / ("n" * 300))
    done = run(*(word.format(name) for word in arguments))
    assert done.code == json.loads(done.out)["exit_code"] != 0
    assert "File name too long" in json.loads(done.out)["error"]
    assert done.err.startswith("error: ")


@pytest.mark.parametrize("command", ["convert", "finish", "batch"])
def test_a_report_that_cannot_be_written_is_known_before(command: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    plan, manifest = tmp_path / "m.plan", tmp_path / "m.toml"
    assert run("plan", source, "-o", tmp_path / "out", "--write", plan).code == 0
    manifest.write_text(f"[[model]]\nsrc = {json.dumps(str(source))}\noutput = 'out'\n")
    words = {"convert": [source, "-o", tmp_path / "out"], "finish": [plan], "batch": [manifest]}[command]
    before = sorted(tmp_path.iterdir())
    for name, code, says in (("folder", 6, "is a folder"), ("gone/r.json", 2, "does not exist")):
        done = run(command, *words, "--json", tmp_path / name)
        assert done.code == code
        assert name in done.err
        assert says in done.err
        assert sorted(tmp_path.iterdir()) == before


def test_a_bound_without_repacking(source: Path, tmp_path: Path) -> None:
    for command in ("convert", "plan"):
        where = ("--write", tmp_path / "p") if command == "plan" else ()
        done = run(command, source, "-o", tmp_path / "out", "--max-rel-rmse", "0.1", *where)
        assert done.code == 2
        assert "--repack near" in done.err
    assert not list(tmp_path.iterdir())


def test_commands_to_copy_with_names_that_begin_with_a_dash(tmp_path: Path) -> None:
    """What is printed to run next does run: a name with a dash in front would be an option."""
    tiny_llama(tmp_path / "-m.gguf")
    done = run("convert", "-o", "-odd", "--", "-m.gguf", cwd=tmp_path)
    assert done.code == 0, done.err
    commands = [
        shlex.split(line)[shlex.split(line).index("gguf2st") :] for line in done.out.splitlines() if "gguf2st" in line
    ]
    assert commands == [["gguf2st", "verify", "./-odd", "--against", "./-m.gguf"]]
    assert "vllm serve ./-odd" in done.out
    assert run(*commands[0][1:], cwd=tmp_path).code == 0
    inspected = run("inspect", "--", "-m.gguf", cwd=tmp_path).out.splitlines()[-1]
    assert inspected.endswith("gguf2st convert ./-m.gguf")


def test_a_folder_that_cannot_be_read_is_no_mistake_of_the_command(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions are the output's matter, exit code 6, wherever they are found wrong."""
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(Path, "iterdir", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    done = click.testing.CliRunner().invoke(convert.command, [str(source), "-o", str(tmp_path / "out")])
    assert isinstance(done.exception, OutputError), done.output
    assert done.exception.exit_code == 6


def test_nothing_to_pack_is_said_once_with_a_way_on(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf", hidden=256, heads=4, ffn=256, qtype="Q4_K")
    done = run("convert", source, "-o", tmp_path / "out", "--repack", "exact")
    assert done.code == 0
    lines = [line for line in done.out.splitlines() if "no scheme holds the numbers of Q4_K" in line]
    assert len(lines) == 2  # why, and the note
    assert ", and 4 more: dequantized: " in lines[0]
    assert lines[1].endswith("; --repack near packs them, in 8 bits")
    assert len(gguf2st.convert(source, tmp_path / "again", repack="exact").choices) == 7
    assert "nothing to pack" not in run("convert", source, "-o", tmp_path / "near", "--repack", "near").out
