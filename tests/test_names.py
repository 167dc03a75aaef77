"""Names are data: what a stranger wrote is never a path, a shell's word, a terminal's command or a program."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gguf2st.cli.lines import printable
from gguf2st.errors import Gguf2stError, short
from gguf2st.quoting import shell_line, shell_word
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import GGUF2ST, on_terminal, run

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = (
    *("a b", "x'y", 'x"y', "$(touch pwned)", "`touch pwned`", "a;touch pwned", "a\nb", "\x1b[2Jx", "\x1b]0;t\x07"),
    *("-rf", "--help", "~", "*", "é한", "\u202egnp", "b\udcffd", "\\", "'\\\x07", "#", "!!", "%s", "&", "|", "<x>"),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_word_for_a_shell(name: str) -> None:
    """bash itself says what the word means."""
    word = shell_word(Path(name))
    assert word.isprintable()
    echoed = subprocess.run(["bash", "-c", f"printf '%s' {word}"], capture_output=True, check=True).stdout
    assert os.fsdecode(echoed) == (f"./{name}" if name.startswith("-") else name)


def test_a_command_for_a_shell() -> None:
    assert shell_line(["gguf2st", "--select", "a b", Path("-x")]) == "gguf2st --select 'a b' ./-x"


EVIL = "\x1b]0;pwned\x07\x1b[2J\x9b2J\u202e$(touch pwned)../../x"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A model whose every free text is hostile, under a hostile name."""
    metadata = {
        "general.name": EVIL,
        "general.license": EVIL,
        "general.description": EVIL,
        "tokenizer.chat_template": f"{EVIL}{{{{ messages.append(1) }}}}",
        "tokenizer.ggml.mystery": EVIL,
        EVIL: EVIL,
    }
    return tiny_llama(tmp_path / "m\x1b]0;pwned\x07\u202e $(touch pwned).gguf", extra_metadata=metadata)


@pytest.mark.parametrize(
    "command",
    [
        ("inspect",),
        ("inspect", "--json"),
        ("check",),
        ("check", "--json"),
        ("plan",),
        ("plan", "--json"),
        ("convert", "--dry-run"),
        ("convert", "--dry-run", "--json", "-"),
        ("convert", "-o", "out"),
        ("verify", "--against"),
    ],
)
def test_no_command_of_a_terminal_gets_through(command: tuple[str, ...], evil: Path, tmp_path: Path) -> None:
    name, *options = command
    options = [str(tmp_path / "out") if option == "out" else option for option in options]
    if name == "verify":
        assert run("convert", evil, "-o", tmp_path / "out", "-q").code == 0
        arguments: tuple[object, ...] = (name, tmp_path / "out", *options, evil)
    else:
        arguments = (name, evil, *options)
    done = on_terminal(*arguments)
    assert done.code == 0, done
    assert "\x1b]" not in done.out
    assert "\x1b[2J" not in done.out
    assert "\x07" not in done.out
    assert "\x9b" not in done.out
    assert "\u202e" not in done.out
    if "--json" in options:
        json.loads(run(*arguments).out)
    assert not list(tmp_path.glob("**/pwned*"))
    assert {p.name for p in tmp_path.iterdir()} <= {evil.name, "out"}


def test_suggested_commands_can_be_run(evil: Path, tmp_path: Path) -> None:
    """Pasted into bash as they are."""
    done = run("convert", evil, "-o", tmp_path / "o ut")
    line = next(line for line in done.out.splitlines() if "compare every value" in line)
    command = line.partition(":")[2].strip().replace("gguf2st", " ".join(GGUF2ST), 1)
    again = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "values equal to the source" in again.stdout, again
    ok = run("check", evil).out.splitlines()[0].removeprefix("ok: ").replace("gguf2st", " ".join(GGUF2ST), 1)
    dry = subprocess.run(["bash", "-c", f"{ok} --dry-run"], capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry
    assert not list(tmp_path.glob("**/pwned*"))


OFFLINE = """
import sys
def refuse(event, arguments):
    programs = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
    if event.startswith("socket.") or event in programs:
        raise RuntimeError(f"{event} {arguments}")
sys.addaudithook(refuse)
from gguf2st.cli import main
main()
"""


@pytest.mark.parametrize(
    "command", ["inspect SRC", "check SRC", "plan SRC", "convert SRC -o OUT2", "verify OUT --against SRC --model"]
)
def test_no_network_and_no_other_program(command: str, evil: Path, tmp_path: Path) -> None:
    """A Hub source apart, nothing is asked of anybody."""
    if "OUT " in command:
        assert run("convert", evil, "-o", tmp_path / "out", "-q").code == 0
    names = {"SRC": evil, "OUT": tmp_path / "out", "OUT2": tmp_path / "out2"}
    done = run(*(names.get(word, word) for word in command.split()), program=(sys.executable, "-c", OFFLINE))
    assert done.code == 0, done


def test_code_beside_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    """config.json may name Python files of the folder; transformers would offer to run them."""
    out = tmp_path / "out"
    assert run("convert", tiny_llama(tmp_path / "m.gguf"), "-o", out, "-q").code == 0
    (out / "evil.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    config = json.loads((out / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (out / "config.json").write_text(json.dumps(config))
    for level in ("--model", "--run"):
        done = run("verify", out, level)
        assert done.code == 5, done
        assert "custom code" in done.err, "transformers was asked to open it, and refused"
        assert "Traceback" not in done.err
    assert not (tmp_path / "pwned").exists()


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    """A folder whose weights are a pickle: named as a problem, and not loaded to see whether it would run."""
    out = tmp_path / "out"
    assert run("convert", tiny_llama(tmp_path / "m.gguf"), "-o", out, "-q").code == 0
    (out / "model.safetensors").unlink()
    (out / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "pwned").encode())
    done = run("verify", out, "--run")
    assert done.code == 5
    assert "pytorch_model.bin" in done.err
    assert not (tmp_path / "pwned").exists()


class _Dangers(ast.NodeVisitor):
    """Calls and imports that would turn text into actions."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name in ("eval", "exec", "compile", "os.system", "os.popen", "torch.load", "__import__"):
            self.found.append(f"{name} in line {node.lineno}")
        for keyword in node.keywords:
            value = ast.unparse(keyword.value)
            if (keyword.arg, value) in (("shell", "True"), ("trust_remote_code", "True"), ("weights_only", "False")):
                self.found.append(f"{keyword.arg}={value} in line {node.lineno}")
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [a.name for a in node.names if a.name in ("pickle", "marshal", "shelve", "dill", "yaml")]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.visit_Import(ast.Import([ast.alias(node.module or "")]))


def test_nothing_in_the_package_turns_text_into_actions() -> None:
    found = {}
    for path in sorted((ROOT / "gguf2st").rglob("*.py")):
        dangers = _Dangers()
        dangers.visit(ast.parse(path.read_text(encoding="utf-8")))
        if dangers.found:
            found[path.relative_to(ROOT).as_posix()] = dangers.found
    assert found == {}
    probe = _Dangers()
    probe.visit(ast.parse("import pickle\neval('1')\nf(shell=True)"))
    assert len(probe.found) == 3


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_printable(text: str) -> None:
    assert printable(text).isprintable()


def test_messages_have_an_end() -> None:
    huge: Any = "x" * 5_000_000
    error = Gguf2stError(huge, hint=huge, problems=[huge] * 1_000)
    assert len(str(error)) == len(error.message) < 2_100
    assert len(error.hint) < 2_100
    assert len(error.problems) == 201
    assert error.problems[-1] == "... and 800 more"
    assert all(len(line) < 2_100 for line in error.problems)
    assert short("abc") == "abc"
    assert short("a" * 60 + "z", 50) == "a" * 40 + " ... (61 characters) ... " + "a" * 9 + "z"
