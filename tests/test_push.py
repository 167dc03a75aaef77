"""Uploads to a real HTTP server: what arrives, what is sent twice, what goes wrong, and what nobody may read."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from gguf2st.errors import UsageError
from gguf2st.hub.push import PushOptions
from tests.hub_cards import check_card
from tests.hub_server import READER, STRANGER, WRITER, HubServer
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import completed

Run = subprocess.CompletedProcess[str]
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


def _gguf(folder: Path) -> Path:
    return tiny_llama(folder / "tiny.gguf", qtype="Q8_0", extra_metadata={"general.license": "mit"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of three shards, converted once; tests take copies."""
    folder = tmp_path_factory.mktemp("made")
    command = ["convert", str(_gguf(folder)), "-o", str(folder / "out"), "--max-shard-size", "80KB"]
    completed(*command).check_returncode()
    assert sorted(p.name for p in (folder / "out").glob("*.safetensors")) == SHARDS
    return folder / "out"


@pytest.fixture
def checkpoint(made: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in made.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def run(hub: HubServer, tmp_path: Path) -> Callable[..., Run]:
    """The command line with the test's Hub; no token may ever be in what it prints."""

    def go(*arguments: object, token: str | None = WRITER, code: int = 0, **environment: str) -> Run:
        done = completed(*arguments, cwd=tmp_path, environment=hub.environment(tmp_path, token) | environment)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        for secret in (WRITER, READER, STRANGER):
            assert secret not in done.stdout + done.stderr
        return done

    return go


def _sent(hub: HubServer, since: int = 0) -> list[str]:
    """The sha256 of the large files that were sent, in order of their end."""
    found = (re.match(r"/_lfs/(\w{64})(?:/part/\d+)?$", r.path) for r in hub.requests[since:] if r.method == "PUT")
    return [match[1] for match in found if match]


def _local(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("storage", ["lfs", "multipart", "xet"])
def test_everything_arrives_once_and_a_second_push_sends_nothing(
    storage: str, checkpoint: Path, tmp_path: Path
) -> None:
    local = _local(checkpoint)
    with HubServer(
        tmp_path / storage, chunk_nbytes=30_000 if storage == "multipart" else None, xet=storage == "xet"
    ) as hub:
        command = ("push", checkpoint, "tester/tiny", "--json")
        first, second = (
            json.loads(completed(*command, environment=hub.environment(tmp_path)).stdout) for _ in range(2)
        )
        there = hub.files("tester/tiny")
        card = there.pop("README.md").decode()
        assert there == local
        assert first["changed"] is True
        assert second["changed"] is False
        assert second["commit"] == first["commit"] == hub.store.repos["tester/tiny"].refs["main"].oid
        assert len(hub.store.repos["tester/tiny"].commits) == 2, "the first one is the Hub's own"
        if storage == "lfs":
            assert len(_sent(hub)) == 3
        if storage == "multipart":
            assert len(_sent(hub)) > 6
            assert len(hub.requested("POST", r"/_lfs/\w+/complete$")) == 3
        if storage == "xet":
            assert not _sent(hub), "nothing went by LFS"
            assert hub.requested("GET", "/xet-write-token/")
        # Storage has its own addresses, which carry the permission: the token must not go there.
        facts = ModelCard(card).data.to_dict()
        assert check_card(card) == ([], [])
        assert facts["license"] == "mit"
        assert hub.requested("POST", "/api/validate-yaml")
    assert _local(checkpoint) == local, "a push changes nothing here"
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or WRITER.encode() not in path.read_bytes(), path


def test_what_is_public_tells_no_folder(
    hub: HubServer, run: Callable[..., Run], checkpoint: Path, tmp_path: Path
) -> None:
    run("push", checkpoint, "tester/tiny")
    public = b"".join(hub.files("tester/tiny").values())
    assert str(tmp_path).encode() not in public
    assert str(Path.home()).encode() not in public


def test_a_refused_upload_is_resumed_with_what_is_missing(
    hub: HubServer, run: Callable[..., Run], checkpoint: Path
) -> None:
    """Storage refuses one shard: nothing is visible, and the next try sends that one only."""
    from hashlib import sha256

    digests = {sha256((checkpoint / name).read_bytes()).hexdigest(): name for name in SHARDS}
    refused = next(digest for digest, name in digests.items() if name == SHARDS[1])
    hub.fail("PUT", f"/_lfs/{refused}", 403)
    done = run("push", checkpoint, "tester/tiny", code=8)
    assert done.stderr.startswith("error: access to tester/tiny is forbidden")
    assert hub.files("tester/tiny") == {}
    assert sorted(_sent(hub)) == sorted(digests)
    before = len(hub.requests)
    run("push", checkpoint, "tester/tiny")
    assert _sent(hub, before) == [refused]
    assert SHARDS[1] in hub.files("tester/tiny")


def test_a_connection_cut_in_the_middle_is_taken_up_again(
    hub: HubServer, run: Callable[..., Run], checkpoint: Path
) -> None:
    cut = hub.cut("PUT", "/_lfs/", after=20_000)
    run("push", checkpoint, "tester/tiny")
    assert cut.reached.is_set()
    assert {name: hub.files("tester/tiny")[name] for name in SHARDS} == {
        name: (checkpoint / name).read_bytes() for name in SHARDS
    }


def test_killed_in_the_middle_and_run_again(
    hub: HubServer, run: Callable[..., Run], checkpoint: Path, tmp_path: Path
) -> None:
    from hashlib import sha256

    digests = [sha256((checkpoint / name).read_bytes()).hexdigest() for name in SHARDS]
    held = hub.hold("PUT", f"/_lfs/{digests[2]}", after=10_000)
    command = [sys.executable, "-m", "gguf2st", "push", str(checkpoint), "tester/tiny"]
    with subprocess.Popen(command, env=os.environ | hub.environment(tmp_path), stderr=subprocess.DEVNULL) as process:
        assert held.reached.wait(60)
        while len(_sent(hub)) < 2:  # the two others are sent at the same time
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    held.released.set()
    assert hub.files("tester/tiny") == {}
    before = len(hub.requests)
    run("push", checkpoint, "tester/tiny")
    assert _sent(hub, before) == [digests[2]]
    assert set(SHARDS) <= hub.files("tester/tiny").keys()


Break = Callable[[HubServer], Any]
REFUSALS: dict[str, tuple[tuple[str, ...], str | None, Break, str, str]] = {
    "no token": (("tester/x",), None, lambda hub: None, "needs a token", "hf auth login"),
    "a wrong token": (("tester/x",), "hf_unknown", lambda hub: None, "does not know the token", "hf auth login"),
    "a token that may not write": (("tester/x",), READER, lambda hub: None, "must use a write token", "permission"),
    "a namespace of others": (("other/x",), WRITER, lambda hub: None, "makes none for 'other'", "tester, org"),
    "a repository of others": (
        ("other/x",),
        WRITER,
        lambda hub: hub.add("other/x", {}),
        "You don't have write access",
        "permission",
    ),
    "a private repository of others": (
        ("other/x",),
        WRITER,
        lambda hub: hub.add("other/x", {}, private=True),
        "makes none for 'other'",
        "tester, org",
    ),
    "a gated repository of others": (
        ("other/x", "--create-pr"),
        STRANGER,
        lambda hub: hub.add("other/x", {}, gated=True),
        "other/x is gated",
        "accept its terms",
    ),
    "a branch that cannot be": (
        ("tester/x", "--revision", "refs/pr/9"),
        WRITER,
        lambda hub: None,
        "no revision 'refs/pr/9'",
        "leave out",
    ),
    "409": (
        ("tester/x",),
        WRITER,
        lambda hub: hub.fail("POST", "/commit/", 409, message=f"Conflicting ref ({WRITER})"),
        "Conflicting ref",
        "try again",
    ),
    "413": (
        ("tester/x",),
        WRITER,
        lambda hub: hub.fail("POST", "/objects/batch", 413),
        "refuses something so large",
        "storage limits",
    ),
    "a commit meanwhile": (
        ("tester/x",),
        WRITER,
        lambda hub: hub.fail("POST", "/commit/", 412, message="A commit has happened since"),
        "has changed meanwhile",
        "run the command again",
    ),
    "the Hub in trouble": (
        ("tester/x",),
        WRITER,
        lambda hub: hub.fail("POST", "/commit/", 501),
        "trouble of its own",
        "try again later",
    ),
    "a connection cut": (
        ("tester/x",),
        WRITER,
        lambda hub: hub.cut("POST", "/commit/", after=0, times=9),
        "cannot be reached",
        "sends nothing twice",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_say_what_to_do(case: str, hub: HubServer, run: Callable[..., Run], checkpoint: Path) -> None:
    arguments, token, happen, message, hint = REFUSALS[case]
    happen(hub)
    done = run("push", checkpoint, *arguments, token=token, code=8)
    error, advice = (line for line in done.stderr.splitlines() if line.startswith(("error: ", "hint: ")))
    assert message in error
    assert hint in advice
    assert all(set(repo.refs["main"].files) == {".gitattributes"} for repo in hub.store.repos.values())


@pytest.mark.parametrize(
    ("environment", "message"),
    [({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"), ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached")],
)
def test_without_a_hub(environment: dict[str, str], message: str, run: Callable[..., Run], checkpoint: Path) -> None:
    done = run("push", checkpoint, "tester/x", code=8, **environment)
    assert message in done.stderr
    assert "cache" not in done.stderr


@pytest.mark.parametrize("repo", ["a/b/c", "../x", "https://huggingface.co/a/b", "a/b.git", "", "a b/c", "a/b@main"])
def test_what_is_no_repository(repo: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a repository"):
        PushOptions(repo)


def test_a_word_in_place_of_a_repository(run: Callable[..., Run], hub: HubServer, checkpoint: Path) -> None:
    done = run("push", checkpoint, "tiny", code=2)
    assert "'tiny' is not the name of a repository" in done.stderr
    assert not hub.requests


def test_what_verification_notes_is_said(run: Callable[..., Run], checkpoint: Path) -> None:
    """A text may be edited on purpose, or by mistake: whoever pushes it should know."""
    assert "has changed" not in run("push", checkpoint, "tester/whole").stdout
    file = checkpoint / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"temperature": 0.5}))
    note = "generation_config.json has changed since it was written: its sha256 is not that in gguf2st.json"
    assert f"\n  note: {note}\n" in run("push", checkpoint, "tester/edited").stdout
    told = json.loads(run("push", checkpoint, "tester/edited", "--json").stdout)
    assert note in told["verification"]["notes"]


def test_a_damaged_checkpoint_is_not_pushed(hub: HubServer, run: Callable[..., Run], checkpoint: Path) -> None:
    os.truncate(checkpoint / SHARDS[1], 1000)
    done = run("push", checkpoint, "tester/x", code=5)
    assert SHARDS[1] in done.stderr
    assert not hub.requests
    assert "is not there" in run("push", checkpoint / "nowhere", "tester/x", code=3).stderr


def test_private(hub: HubServer, run: Callable[..., Run], checkpoint: Path) -> None:
    assert run("push", checkpoint, "tester/new", "--private").stderr == "", "no progress in a pipe"
    assert hub.store.repos["tester/new"].private
    run("push", checkpoint, "tester/new", "--private")
    hub.add("tester/open", {})
    done = run("push", checkpoint, "tester/open", "--private", code=8)
    assert "tester/open exists already and is public" in done.stderr
    assert hub.files("tester/open") == {}


def test_a_branch_and_a_pull_request(hub: HubServer, run: Callable[..., Run], checkpoint: Path) -> None:
    hub.add("tester/x", {"notes.txt": b"mine"})
    run("push", checkpoint, "tester/x", "--revision", "bf16", "--message", "Add bf16")
    assert set(hub.files("tester/x")) == {"notes.txt"}
    assert set(hub.files("tester/x", "bf16")) > {"notes.txt", *SHARDS}
    assert hub.store.repos["tester/x"].refs["bf16"].summary == "Add bf16"
    done = run("push", checkpoint, "tester/x", "--create-pr", token=STRANGER)
    assert f"{hub.url}/tester/x/discussions/1" in done.stdout
    assert set(hub.files("tester/x")) == {"notes.txt"}
    assert set(hub.files("tester/x", "refs/pr/1")) > {"notes.txt", *SHARDS}
    assert "leave out" in run("push", checkpoint, "tester/x", "--create-pr", "--revision", "bf16", code=2).stderr


def test_whose_card_it_is(hub: HubServer, run: Callable[..., Run], checkpoint: Path) -> None:
    """Ours is written anew each time; an edited one, on either side, is kept."""
    run("push", checkpoint, "tester/x")
    written = hub.files("tester/x")["README.md"]
    hub.add("tester/x", {"README.md": written.replace(b"scheme", b"SCHEME")})
    assert "README.md is kept" in run("push", checkpoint, "tester/x").stdout
    assert b"SCHEME" in hub.files("tester/x")["README.md"]
    run("push", checkpoint, "tester/y")
    hub.add("tester/x", {"README.md": hub.files("tester/y")["README.md"]})
    run("push", checkpoint, "tester/x")
    assert hub.files("tester/x")["README.md"] == written
    (checkpoint / "README.md").write_bytes(hub.files("tester/y")["README.md"])
    run("push", checkpoint, "tester/x")
    assert hub.files("tester/x")["README.md"] == written
    mine = "---\nlicense: apache-2.0\n---\n# Mine\n"
    (checkpoint / "README.md").write_text(mine)
    run("push", checkpoint, "tester/x")
    assert hub.files("tester/x")["README.md"].decode() == mine
    (checkpoint / "README.md").write_text(mine.replace("apache-2.0", "apache 2"))
    done = run("push", checkpoint, "tester/x", code=8)
    assert done.stderr.startswith("error: the Hub refuses README.md")
    assert "apache 2" in done.stderr
    assert hub.files("tester/x")["README.md"].decode() == mine


def test_a_provenance_of_other_weights_is_not_believed(
    hub: HubServer, run: Callable[..., Run], checkpoint: Path
) -> None:
    path = checkpoint / "gguf2st.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"output_nbytes": 1}))
    assert "gguf2st.json is about other weights" in run("push", checkpoint, "tester/x").stdout
    assert b"GGUF" not in hub.files("tester/x")["README.md"]


def test_from_python(hub: HubServer, checkpoint: Path, tmp_path: Path) -> None:
    code = f"""
import gguf2st
from huggingface_hub.utils import are_progress_bars_disabled
target = gguf2st.PushOptions("org/x", private=True, message="from Python")
print(gguf2st.push({str(checkpoint)!r}, target).changed, gguf2st.push({str(checkpoint)!r}, "org/x").changed)
print(are_progress_bars_disabled())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | hub.environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False", "False"]
    assert done.stderr == ""
    assert hub.store.repos["org/x"].refs["main"].summary == "from Python"


def test_files_of_an_earlier_upload_do_not_stay_beside_the_new_ones(
    hub: HubServer, run: Callable[..., Run], checkpoint: Path
) -> None:
    old = (
        "model.safetensors",
        "model-00004-of-00004.safetensors",
        "tokenizer.model",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "modules.json",
        "preprocessor_config.json",
    )
    others = {
        "LICENSE": b"text",
        "images/model.safetensors": b"not ours",
        "images/additional_chat_templates/tool_use.jinja": b"not ours",
        "model.Q8_0.gguf": b"GGUF",
    }
    hub.add("tester/x", dict.fromkeys(old, b"old") | others)
    (checkpoint / ".env").write_text("SECRET=1")
    (checkpoint / ".cache").mkdir()
    (checkpoint / ".cache" / "big").write_text("x")
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling" / "config.json").write_text("{}")
    done = run("push", checkpoint, "tester/x")
    there = hub.files("tester/x")
    assert not there.keys() & {*old}
    assert there.keys() > {*others, *SHARDS, "1_Pooling/config.json"}
    assert not [name for name in there if name.startswith(".")]
    assert "hidden files are not uploaded: .cache, .env" in done.stdout
    assert all(f"removed {name}" in done.stdout for name in old)


@pytest.mark.parametrize("name", ["notes.txt", "tokenizer.model", "1_Pooling/config.json"])
def test_a_link_to_a_file_elsewhere_is_not_followed(
    name: str, run: Callable[..., Run], checkpoint: Path, hub: HubServer
) -> None:
    """A folder from somebody else may name any file of this machine."""
    secret = checkpoint.with_name("secret")
    secret.write_text("of nobody else")
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).symlink_to(secret)
    done = run("push", checkpoint, "tester/model", code=3)
    assert f"{checkpoint / name} is a link to {secret}" in done.stderr
    assert not hub.store.repos


def test_links_inside_and_to_weights_and_of_the_cache_are_followed(
    run: Callable[..., Run], checkpoint: Path, hub: HubServer
) -> None:
    snapshot = checkpoint.with_name("models--a--b") / "snapshots" / "0123"
    blobs = snapshot.parent.parent / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    for path in checkpoint.iterdir():
        kept = path if path.suffix == ".safetensors" else path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(kept)
    (snapshot / "inside.txt").symlink_to(snapshot / "config.json")
    run("push", snapshot, "tester/model")
    assert {*SHARDS, "config.json", "inside.txt"} <= {*hub.files("tester/model")}


def test_a_commit_between_looking_and_committing_is_not_overwritten(
    hub: HubServer, run: Callable[..., Run], checkpoint: Path, tmp_path: Path
) -> None:
    hub.add("tester/x", {"model.safetensors": b"old"})
    held = hub.hold("POST", "/api/validate-yaml")
    command = [sys.executable, "-m", "gguf2st", "push", str(checkpoint), "tester/x"]
    environment = os.environ | hub.environment(tmp_path)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert held.reached.wait(60)
        hub.add("tester/x", {"model.safetensors": b"somebody's new one"})
        held.released.set()
        assert process.stderr is not None
        assert "has changed meanwhile" in process.stderr.read()
    assert process.returncode == 8
    assert hub.files("tester/x") == {"model.safetensors": b"somebody's new one"}
    run("push", checkpoint, "tester/x")
    assert "model.safetensors" not in hub.files("tester/x")


def test_what_the_hub_holds_is_compared_after_the_commit(
    hub: HubServer, run: Callable[..., Run], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests import hub_routes

    monkeypatch.setattr(hub_routes, "_entry", lambda path, file: {**entry(path, file), "size": file.nbytes + 1})
    assert "holds another" in run("push", checkpoint, "tester/x", code=8).stderr


def entry(path: str, file: Any) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": file.nbytes, "oid": file.git_oid}
