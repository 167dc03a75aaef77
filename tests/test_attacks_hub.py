"""Answers that no Hub gives: login pages, proxies, and servers that mean harm. Each is one line and exit code 8."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import gguf2st
from tests.make_gguf import tiny_llama

TOKEN = "hf_TokenOfNobodyAtAll"
LOCATE = """
import json, sys
from gguf2st.errors import Gguf2stError
from gguf2st.source import locate
for src in sys.argv[1:]:
    try:
        print(json.dumps({"code": 0, "files": locate(src).files}))
    except Gguf2stError as err:
        print(json.dumps({"code": err.exit_code, "error": err.message, "hint": err.hint}))
"""
COMMIT = "c0ffee" + "0" * 34


def _info(**changed: Any) -> bytes:
    """What the Hub says of a repository with one file."""
    file = {"rfilename": "m.gguf", "size": 9, "lfs": {"sha256": "a" * 64, "size": 9, "pointerSize": 130}}
    info = {"id": "org/m", "modelId": "org/m", "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "likes": 0}
    info["siblings"] = [file | changed.pop("file", {})]
    return json.dumps(info | changed).encode()


ANSWERS: dict[str, bytes] = {
    "login-page": b"<html><form action='login'>Welcome to the hotel</form></html>",
    "cut": b'{"id": "org/m", "siblings": [{"rfile',
    "nothing": b"",
    "list": b"[]",
    "null": b"null",
    "text": b'"m.gguf"',
    "no-keys": b"{}",
    "deep": b"[" * 100_000,
    "files-are-a-number": _info(siblings=7),
    "nameless-file": _info(siblings=[{}]),
    "name-is-a-number": _info(file={"rfilename": 7}),
    "name-leads-outside": _info(file={"rfilename": "../../m.gguf"}),
    "name-from-the-root": _info(file={"rfilename": "/etc/m.gguf"}),
    "size-is-a-text": _info(file={"size": "9"}),
    "commit-is-a-number": _info(sha=7),
    "commit-leads-outside": _info(sha="../../x"),
}


class _Handler(BaseHTTPRequestHandler):
    """Of org/NAME it gives ANSWERS[NAME], of `circle` a redirection to itself, of `sound` what a Hub gives."""

    def log_message(self, format: str, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.split("?")[0].rpartition("/")[2]
        answer = b"" if name == "circle" else ANSWERS.get(name, _info())
        self.send_response(302 if name == "circle" else 200)
        self.send_header("Content-Length", str(len(answer)))
        if name == "circle":
            self.send_header("Location", self.path)
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Name of a repository -> what became of it, from one process."""
    names = [*ANSWERS, "circle", "sound"]
    home = tmp_path_factory.mktemp("home")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        settings = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
            "HF_HOME": str(home),
            "HF_TOKEN": TOKEN,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-c", LOCATE, *(f"hf://org/{name}" for name in names)]
        done = subprocess.run(
            command, cwd=home, env=os.environ | settings, capture_output=True, text=True, check=False, timeout=120
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_no_answer_of_a_hub(name: str, found: dict[str, dict[str, Any]]) -> None:
    assert found[name]["code"] == 8, found[name]
    assert "does not answer as a Hub does" in found[name]["error"]
    assert "proxy or a login page" in found[name]["hint"]


def test_a_redirection_to_itself(found: dict[str, dict[str, Any]]) -> None:
    assert found["circle"]["code"] == 8
    assert "its answers lead in a circle" in found["circle"]["error"]


def test_the_same_server_when_it_answers_well(found: dict[str, dict[str, Any]]) -> None:
    assert found["sound"] == {"code": 0, "files": [f"hf://org/sound@{COMMIT}/m.gguf"]}


def test_no_fault_of_our_own_is_blamed_on_the_hub() -> None:
    """Errors of the same classes, raised outside of huggingface_hub, stay what they are."""
    from gguf2st.hub.errors import hub_errors

    with pytest.raises(KeyError), hub_errors("org/m"):
        raise KeyError("ours")


@pytest.mark.parametrize(
    "name",
    [
        "a--b",
        "a..b",
        "-a",
        "a-",
        ".a",
        "a.",
        "a.git",
        "a",
        "a-b",
        "a.b",
        "a_b",
        "7",
        "a" * 80,
        "a" * 97,
        "\u00e9",
        "a b",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_names_to_push_to_are_those_that_can_be_made(name: str, first: bool) -> None:
    """A name that huggingface_hub refuses would fail after the conversion; the oracle is its own check."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    from gguf2st.errors import UsageError
    from gguf2st.hub.push import PushOptions

    repo = f"{name}/x" if first else f"me/{name}"
    try:
        validate_repo_id(repo)
        # It lets letters of all scripts pass, and before 2.0 organizations of any length, which the Hub does not.
        known = name.isascii() and len(name) <= 96
    except HFValidationError:
        known = False
    try:
        accepted = bool(PushOptions(repo))
    except UsageError:
        accepted = False
    assert accepted == known


def test_passwords_in_addresses_are_not_repeated() -> None:
    from gguf2st.errors import SourceError
    from gguf2st.source import locate

    with pytest.raises(SourceError) as caught:
        locate("s3://user:secret@bucket/m.gguf")
    assert caught.value.message == "s3://...@bucket/m.gguf: s3:// is not read directly"


def test_a_million_tags_do_not_end_in_the_card(tmp_path: Path) -> None:
    """Nor a million base models: what a stranger's file says of itself is copied only as far as it may be true."""
    tags = [f"tag{i}" for i in range(100_000)]
    models = {f"general.base_model.{i}.name": "x" for i in (0, 999, 1000, 10**9)}
    more: dict[str, Any] = {"general.tags": tags, "general.languages": ["en", "de"], **models}
    source = tiny_llama(tmp_path / "m.gguf", extra_metadata=more)
    gguf2st.convert(source, tmp_path / "out")
    text = (tmp_path / "out/gguf2st.json").read_text()
    general = json.loads(text)["general"]
    assert {key for key in general if key.startswith("general.base_model.")} == {*models} - {*list(models)[2:]}
    assert general["general.languages"] == ["en", "de"]
    assert "general.tags" not in general
    assert len(text) < 10_000
