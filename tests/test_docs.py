"""Every command and Python block in README.md and docs/ runs and prints what the page says."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from gguf2st.batch.manifest import read_manifest
from gguf2st.cli import cli
from gguf2st.cli.batch import _options, _problem
from tests.oracle.terminal import completed

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECONDS = re.compile(r"\d+\.\d s\b")


def _blocks(page: Path, *kinds: str) -> list[str]:
    return [text for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if kind in kinds]


def _session(text: str) -> list[tuple[str, str]]:
    """`$ command` and the output below it, for each command of a console block."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A working folder with the README's model in it, and the checkpoint that its first command makes."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / smollm2.name).symlink_to(smollm2)
    return folder


@pytest.mark.real
def test_console_blocks_print_what_they_say(folder: Path) -> None:
    seen = 0
    for page in PAGES:
        for command, expected in (row for block in _blocks(page, "console") for row in _session(block)):
            program, *arguments = shlex.split(command)
            assert program in ("gguf2st", "python"), f"{page.name}: {command}"
            if program == "python":  # a script, named from the repository's root
                whole = [sys.executable, str(ROOT / arguments[0]), *arguments[1:]]
                run = subprocess.run(whole, cwd=folder, capture_output=True, text=True, check=False)
            else:
                run = completed(*arguments, cwd=folder)
            assert run.returncode == 0, f"{page.name}: {command}: {run.stderr}"
            assert _SECONDS.sub("N s", run.stdout) == _SECONDS.sub("N s", expected), f"{page.name}: {command}"
            seen += 1
    assert seen >= 3


@pytest.mark.real
def test_python_blocks_run(folder: Path) -> None:
    blocks = [block for page in PAGES for block in _blocks(page, "python")]
    assert blocks
    for block in blocks:
        run = subprocess.run([sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr


def test_the_manifest_in_the_help_is_one(tmp_path: Path) -> None:
    shown = completed("batch", "--help").stdout.partition("A manifest:\n")[2].partition("\n\n")[0]
    (tmp_path / "models.toml").write_text(shown)
    models = read_manifest(tmp_path / "models.toml", _options(), _problem).models
    assert len(models) == shown.count("[[model]]") > 0


def test_make_targets_named_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {m for page in PAGES for m in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert named
    assert named <= targets


def test_options_shown_with_a_command_are_its_own() -> None:
    context, seen = click.Context(cli), 0
    for page in (*PAGES, ROOT / "SECURITY.md"):
        for name, rest in re.findall(r"gguf2st ([a-z]+)([^`\n]*)", page.read_text(encoding="utf-8")):
            if name in cli.list_commands(context):  # else a sentence goes on
                named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.split(" -- |gguf2st", rest)[0])
                command = cli.get_command(context, name)
                assert command is not None
                options = {text for option in command.params for text in (*option.opts, *option.secondary_opts)}
                assert set(named) <= {*options, "--help"}, f"{page.name}: gguf2st {name}{rest}"
                seen += len(named)
    assert seen > 30


def test_equations_in_the_docs_are_those_of_real_maps() -> None:
    maps = [tomllib.loads(p.read_text(encoding="utf-8")) for p in (ROOT / "arch_maps").glob("*.toml")]
    groups = [group for table in maps for group in table["tensors"]]
    seen = 0
    for page in PAGES:
        for block in _blocks(page, "toml"):
            for line in block.splitlines():
                if line.startswith('"'):
                    ((name, text),) = tomllib.loads(line).items()
                    assert any(
                        text == x or text in (x if isinstance(x, list) else []) for g in groups if (x := g.get(name))
                    )
                    seen += 1
    assert seen >= 2


def _anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links to them, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    seen = 0
    for page in (*PAGES, ROOT / "SECURITY.md", ROOT / "BENCHMARKS.md"):
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(place), f"{page.name}: {target}#{anchor}"
            seen += bool(anchor)
    assert seen > 10


def test_generated_parts_are_current() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "scripts/generate_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
