"""Models on the Hub as sources, over HTTP: every way to name one, what is fetched, and what goes wrong.

Each command runs in a process of its own: huggingface_hub reads its settings when it is imported.
"""

import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.hub_server import READER, STRANGER, WRITER, HubServer
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import GGUF2ST, Done, on_terminal, run

LOCATE = """
import json, sys
from gguf2st.errors import Gguf2stError
from gguf2st.header import read_header
from gguf2st.source import locate
for src in sys.argv[2:]:
    try:
        model = locate(src)
        if sys.argv[1] == "open":
            read_header(model.files)
        print(json.dumps({"files": model.files, "output": str(model.output), "origin": model.origin}))
    except Gguf2stError as err:
        print(json.dumps({"code": err.exit_code, "error": err.message, "hint": err.hint, "problems": err.problems}))
"""
PART_NBYTES = 16 << 20  # of a download


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", qtype="Q8_0").read_bytes()


def locate(
    hub: HubServer, home: Path, *sources: str, token: str | None = WRITER, how: str = "locate", **environment: str
) -> list[dict[str, Any]]:
    """What `gguf2st.source.locate` says of each source, and `read_header` too if `how` is "open"."""
    done = run(
        how,
        *sources,
        program=(sys.executable, "-c", LOCATE),
        cwd=home,
        environment={**hub.environment(home, token), **environment},
    )
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def gguf2st(hub: HubServer, home: Path, *arguments: object, token: str | None = WRITER, **environment: str) -> Done:
    return run(*arguments, cwd=home, environment=hub.environment(home, token) | environment)


def content(hub: HubServer) -> int:
    """Bytes of files' content sent so far."""
    return sum(r.sent for r in hub.requested("GET", "_cdn|resolve"))


def split(source: Path, folder: Path, count: int = 3) -> dict[str, bytes]:
    """A model cut into shards by gguf-py's own writer."""
    reader = gguf.GGUFReader(source)
    per_shard = -(-len(reader.tensors) // count)
    writer = gguf.GGUFWriter(folder / "big-Q8_0.gguf", "llama", split_max_tensors=per_shard)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shards = sorted(folder.glob("big-Q8_0-*.gguf"))
    assert len(shards) == count
    return {f"big/{shard.name}": shard.read_bytes() for shard in shards}


# --- Names -------------------------------------------------------------------------------------------------------

SHARDS = [f"UD-Q2_K_XL/Big-UD-Q2_K_XL-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


NAMES: dict[str, list[str] | None] = {
    "org/Qwen2.5-7B-GGUF:Q4_K_M": ["Qwen2.5-7B-Q4_K_M.gguf"],
    "org/Qwen2.5-7B-GGUF:iq4_xs": ["Qwen2.5-7B.IQ4_XS.gguf"],
    "hf://org/Qwen2.5-7B-GGUF:UD-Q4_K_M": ["Qwen2.5-7B-UD-Q4_K_M.gguf"],
    "org/Qwen2.5-7B-GGUF:ud-q2_k_xl": SHARDS,
    "org/Qwen2.5-7B-GGUF:Q2_K_XL": SHARDS,
    f"hf://org/Qwen2.5-7B-GGUF/{SHARDS[1]}": SHARDS,
    "hf://org/Qwen2.5-7B-GGUF/UD-Q2_K_XL": SHARDS,
    "hf://org/Qwen2.5-7B-GGUF/qwen2.5-7b-q4_k_m.gguf": ["Qwen2.5-7B-Q4_K_M.gguf"],
    "hf://org/Qwen2.5-7B-GGUF/with space@1.gguf": ["with space@1.gguf"],
    "HUB/org/Qwen2.5-7B-GGUF/blob/main/with%20space%401.gguf": ["with space@1.gguf"],
    "HUB/org/Qwen2.5-7B-GGUF/resolve/main/Qwen2.5-7B-Q4_K_M.gguf?download=true": ["Qwen2.5-7B-Q4_K_M.gguf"],
    "HUB/org/Qwen2.5-7B-GGUF/tree/main/UD-Q2_K_XL": SHARDS,
    "HUB/org/Qwen2.5-7B-GGUF?show_file_info=Qwen2.5-7B-Q4_K_M.gguf": ["Qwen2.5-7B-Q4_K_M.gguf"],
    "https://huggingface.co/org/Qwen2.5-7B-GGUF/blob/main/Qwen2.5-7B-Q4_K_M.gguf": ["Qwen2.5-7B-Q4_K_M.gguf"],
    "hf.co/org/Qwen2.5-7B-GGUF:Q4_K_M": ["Qwen2.5-7B-Q4_K_M.gguf"],
    "hf://org/Qwen2.5-7B-GGUF/mmproj-F16.gguf": ["mmproj-F16.gguf"],  # by its full name only
    "org/Qwen2.5-7B-GGUF:F16": None,
    "org/Qwen2.5-7B-GGUF": None,
    "org/Qwen2.5-7B-GGUF:Q4_K_L": None,
    "hf://org/Qwen2.5-7B-GGUF/README.md": None,
    "hf://org/Qwen2.5-7B-GGUF/absent.gguf": None,
    "org/one": ["model.Q8_0.gguf"],
    "hf://org/branched@old": ["old.gguf"],
    "hf://org/branched/old.gguf@old": ["old.gguf"],
    "org/branched@old:old": ["old.gguf"],
}
"""SRC -> files; None where the model that is meant cannot be told."""


def test_names(hub: HubServer, tmp_path: Path) -> None:
    quants = ["Qwen2.5-7B-Q4_K_M.gguf", "Qwen2.5-7B-UD-Q4_K_M.gguf", "Qwen2.5-7B.IQ4_XS.gguf", "with space@1.gguf"]
    files = [*quants, *SHARDS, "mmproj-F16.gguf", "imatrix_unsloth.gguf", "README.md", "config.json"]
    hub.add("org/Qwen2.5-7B-GGUF", dict.fromkeys(files, b"GGUF"))
    hub.add("org/one", {"model.Q8_0.gguf": b"GGUF", "mmproj-model-f16.gguf": b"GGUF"})
    hub.add("org/branched", {"old.gguf": b"GGUF"}, revision="old")
    found = dict(zip(NAMES, locate(hub, tmp_path, *(src.replace("HUB", hub.url) for src in NAMES)), strict=True))
    for src, paths in NAMES.items():
        if paths is None:
            assert found[src]["code"] == 3, found[src]
            assert "org/Qwen2.5-7B-GGUF:Q4_K_M (4 B)" in found[src]["problems"]
            assert "org/Qwen2.5-7B-GGUF:UD-Q2_K_XL (12 B, 3 shards)" in found[src]["problems"]
            continue
        repo = next(name for name in ("Qwen2.5-7B-GGUF", "one", "branched") if f"/{name}" in src)
        commit = hub.store.repos[f"org/{repo}"].refs["old" if repo == "branched" else "main"].oid
        assert found[src]["files"] == [f"hf://org/{repo}@{commit}/{path}" for path in paths]
        assert found[src]["origin"] == found[src]["files"][0]
        stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", paths[0].rsplit("/", 1)[-1])
        assert found[src]["output"] == f"{stem}-safetensors", "in the current folder"
    assert content(hub) == 0


def test_the_listed_commands_work(hub: HubServer, tmp_path: Path) -> None:
    """Each line of a list of models is a SRC that takes the one it names."""
    names = ["8B-Q4_0.gguf", "70B-Q4_0.gguf", "x/8B-Q4_0.gguf", "8B-Q6_K.gguf", "8B-imatrix-Q5_0.gguf", "plain.gguf"]
    hub.add("org/many", dict.fromkeys(names, b"GGUF"))
    (listed,) = locate(hub, tmp_path, "org/many")
    sources = [re.sub(r" \(4 B\)$", "", line) for line in listed["problems"]]
    taken = [found["files"][0].split("/", 4)[-1] for found in locate(hub, tmp_path, *sources)]
    assert sorted(taken) == sorted(names)
    assert listed["hint"].removeprefix("name one, such as: ") in sources


BARREN: dict[str, tuple[list[str], list[str]]] = {
    "safetensors": (["config.json", "model.safetensors"], ["1 .json, 1 .safetensors", "vllm serve org/barren"]),
    "companions": (["mmproj-F16.gguf", "imatrix.gguf"], ["only companions", "mmproj-F16.gguf"]),
    "cut": (["m.gguf-split-a", "m.gguf-split-b"], ["cut into 2 pieces", "cat m.gguf-split-a m.gguf-split-b > m.gguf"]),
    "nothing": ([], ["it holds nothing", "-GGUF"]),
    "shards": (
        ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"],
        ["1 of 3 shards is missing: m-00002-of-00003.gguf"],
    ),
}


@pytest.mark.parametrize("kind", BARREN)
def test_repositories_without_a_whole_model(hub: HubServer, tmp_path: Path, kind: str) -> None:
    files, words = BARREN[kind]
    hub.add("org/barren", dict.fromkeys(files, b"GGUF"))
    sources = ["org/barren", *(["hf://org/barren/m-00003-of-00003.gguf"] if kind == "shards" else ())]
    for found in locate(hub, tmp_path, *sources):
        assert found["code"] == 3
        for word in words:
            assert word in found["error"] + found["hint"]


def test_a_local_path_and_ollama_are_proposed(hub: HubServer, tmp_path: Path) -> None:
    store = tmp_path / "ollama/manifests/registry.ollama.ai/someone/tiny"
    store.mkdir(parents=True)
    (store / "latest").write_text("{}")
    absent, ollama = locate(hub, tmp_path, "models/absent", "someone/tiny", OLLAMA_MODELS=str(tmp_path / "ollama"))
    assert absent["code"] == ollama["code"] == 8
    assert "no file or folder here has this name either" in absent["error"]
    assert ollama["hint"] == "ollama has it: ollama://someone/tiny"


# --- Headers only ------------------------------------------------------------------------------------------------


def large(tiny: bytes) -> bytes:
    """With content behind the last tensor: a file of 40 MB whose header has some kilobytes."""
    return tiny + os.urandom(4096) * (40_000_000 // 4096)


@pytest.mark.parametrize("command", [["check"], ["inspect"], ["plan"], ["convert", "--dry-run"]], ids=" ".join)
def test_the_header_is_enough(hub: HubServer, tmp_path: Path, tiny: bytes, command: list[str]) -> None:
    hub.add("org/big", {"big.Q8_0.gguf": large(tiny), "big.Q4_0.gguf": b"GGUF"})
    done = gguf2st(hub, tmp_path, *command, "org/big:Q8_0")
    assert (done.code, done.err) == (0, "")
    assert content(hub) == 256 << 10, "one request of one chunk, of a file of 40 MB"
    assert len(hub.requests) == 3, "the list of files, the file's address, the chunk"
    assert not list((tmp_path / "hf-home").rglob("*.gguf"))


def test_of_a_split_all_headers_are_read(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    (tmp_path / "tiny.gguf").write_bytes(tiny)
    hub.add(
        "org/big", {path: data + bytes(3_000_000) for path, data in split(tmp_path / "tiny.gguf", tmp_path).items()}
    )
    done = gguf2st(hub, tmp_path, "inspect", "org/big", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["convertible"]
    assert json.loads(done.out)["tensors"] == len(gguf.GGUFReader(tmp_path / "tiny.gguf").tensors)
    assert content(hub) == 3 * (256 << 10)


def test_small_tensors_that_become_configuration_are_read(hub: HubServer, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "rope.gguf", extra_tensors={"rope_freqs.weight": np.ones(8, np.float32)})
    data = path.read_bytes()
    hub.add("org/rope", {"rope.gguf": data + bytes(1_000_000)})
    done = gguf2st(hub, tmp_path, "check", "org/rope")
    assert done.code == 0, done.out
    ranges = [r.range for r in hub.requested("GET", "_cdn")]
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "rope_freqs.weight")
    assert f"bytes={tensor.data_offset}-{tensor.data_offset + 31}" in ranges
    assert content(hub) < (256 << 10) + 1000


@pytest.mark.real
def test_bytes_of_a_real_header(hub: HubServer, tmp_path: Path, smollm2: Path) -> None:
    hub.add("org/SmolLM2-GGUF", {"SmolLM2-135M-Instruct.Q4_1.gguf": smollm2.read_bytes()})
    done = gguf2st(hub, tmp_path, "check", "org/SmolLM2-GGUF")
    assert done.code == 0, done.out
    assert content(hub) == 7 * (256 << 10), "1.8 MB of 98 MB, in three requests"


# --- Conversion --------------------------------------------------------------------------------------------------


def test_only_the_chosen_file_is_downloaded_and_converted(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    hub.add("org/two", {"m.Q8_0.gguf": tiny, "m.Q4_0.gguf": tiny, "mmproj-F16.gguf": tiny})
    commit = hub.store.repos["org/two"].refs["main"].oid
    done = gguf2st(hub, tmp_path, "convert", "org/two:Q8_0", "--json", "report.json")
    assert (done.code, done.err) == (0, "")
    assert "gguf2st verify m.Q8_0-safetensors --against org/two:Q8_0" in done.out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["origin"] == f"hf://org/two@{commit}/m.Q8_0.gguf"
    assert report["files"] == [report["origin"]]
    cached = list((tmp_path / "hf-home").rglob("snapshots/*/*"))
    assert [path.name for path in cached] == ["m.Q8_0.gguf"]
    assert cached[0].read_bytes() == tiny
    assert not list((tmp_path / "hf-home").rglob("*.gguf2st*"))
    # The same as from the file itself.
    (tmp_path / "local.gguf").write_bytes(tiny)
    assert gguf2st(hub, tmp_path, "convert", "local.gguf", "-o", "local").code == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "m.Q8_0-safetensors" / name).read_bytes()
    # What is cached is not fetched again, nor needed from the Hub.
    before = content(hub)
    assert gguf2st(hub, tmp_path, "verify", "local", "--against", "org/two:Q8_0").code == 0
    assert content(hub) == before
    hub.close()
    offline = gguf2st(hub, tmp_path, "convert", "org/two:Q8_0", "-o", "offline", HF_HUB_OFFLINE="1")
    assert offline.code == 0, offline.err
    assert "the Hub was not reached" in offline.out


def test_a_split_is_downloaded_whole(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    (tmp_path / "tiny.gguf").write_bytes(tiny)
    hub.add("org/big", split(tmp_path / "tiny.gguf", tmp_path))
    done = gguf2st(hub, tmp_path, "convert", "hf://org/big/big/big-Q8_0-00002-of-00003.gguf")
    assert done.code == 0, done.err
    checked = gguf2st(hub, tmp_path, "verify", "big-Q8_0-safetensors", "--against", "tiny.gguf")
    assert checked.code == 0, checked.err


def test_nothing_is_downloaded_that_cannot_be_converted(hub: HubServer, tmp_path: Path) -> None:
    novel = tiny_llama(tmp_path / "novel.gguf", extra_metadata={"general.architecture": "novelty"}).read_bytes()
    hub.add("org/novel", {"novel.gguf": novel + bytes(5_000_000)})
    done = gguf2st(hub, tmp_path, "convert", "org/novel")
    assert done.code == 4
    assert content(hub) == 256 << 10
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".gguf") == ["hub-server"]


def test_a_file_of_git_itself_is_checked_too(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    """Files may be stored without LFS: their hash is git's."""
    hub.add("org/git", {}).commit("main", {"m.gguf": hub.store.regular(tiny)}, "added by the test")
    assert gguf2st(hub, tmp_path, "convert", "org/git").code == 0
    file = hub.store.regular(tiny + b"2")
    hub.store.blob(file.sha256).write_bytes(tiny + b"3")
    hub.store.repos["org/git"].commit("main", {"n.gguf": file}, "added by the test")
    assert_refused(gguf2st(hub, tmp_path, "convert", "org/git"), 8, "arrived damaged")


def test_a_file_in_xet_storage_comes_by_ranges_too(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    repo = hub.add("org/xet", {"m.gguf": tiny})
    files = repo.refs["main"].files
    repo.commit("main", {**files, "m.gguf": dataclasses.replace(files["m.gguf"], xet="0" * 64)}, "moved to xet")
    done = gguf2st(hub, tmp_path, "convert", "org/xet", HF_HUB_DISABLE_XET="0")
    assert (done.code, done.err) == (0, "")
    assert not hub.requested("GET", "xet-read-token")


# --- Interruptions -----------------------------------------------------------------------------------------------


def start(hub: HubServer, home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | hub.environment(home)
    return subprocess.Popen(
        [*GGUF2ST, *arguments], cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_download_cut_off_goes_on_where_it_stopped(
    hub: HubServer, tmp_path: Path, tiny: bytes, sent: signal.Signals
) -> None:
    data = large(tiny)
    hub.add("org/big", {"big.gguf": data})
    assert gguf2st(hub, tmp_path, "check", "org/big").code == 0
    before = content(hub)
    hub.hold("GET", "_cdn", after=1 << 20)  # passes: it meets the header, which is smaller
    stalled = hub.hold("GET", "_cdn", after=1 << 20)
    process = start(hub, tmp_path, "convert", "org/big", "-o", "out")
    assert stalled.reached.wait(60)
    marks = lambda: [p.read_bytes() for p in (tmp_path / "hf-home").rglob("*.parts")]  # noqa: E731
    deadline = time.monotonic() + 60
    while not any(m.count(b"\1") == 2 for m in marks()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(sent)
    _, err = process.communicate(timeout=20)  # it waits for no server
    assert process.returncode == (130 if sent != signal.SIGKILL else -9)
    assert b"Traceback" not in err
    assert (b"what was downloaded is kept" in err) == (sent != signal.SIGKILL)
    stalled.released.set()
    fetched = content(hub)
    done = gguf2st(hub, tmp_path, "convert", "org/big", "-o", "out")
    assert done.code == 0, done.err
    rest = content(hub) - fetched - (256 << 10)
    assert 0 < rest <= PART_NBYTES, "only the part that was not finished"
    assert fetched - before > PART_NBYTES
    (blob,) = (p for p in (tmp_path / "hf-home").rglob("blobs/*") if not p.suffix)
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == hashlib.sha256(data).hexdigest() == blob.name


def test_a_connection_that_breaks_is_taken_up_again(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    data = large(tiny)
    hub.add("org/big", {"big.gguf": data})
    for _ in ("the header, which is smaller", "a part", "another"):
        hub.cut("GET", "_cdn", after=1_000_000)
    done = gguf2st(hub, tmp_path, "convert", "org/big", "-o", "out")
    assert (done.code, done.err) == (0, ""), "no warning, no signed address"
    starts = sorted(int(r.range.split("=")[1].split("-")[0]) for r in hub.requested("GET", "_cdn") if r.status)
    assert len(starts) == 1 + 3 + 2
    assert [start % PART_NBYTES // 100_000 for start in starts if start % PART_NBYTES] == [7, 7], "not from the start"


def test_two_processes_fetch_a_file_once(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    data = large(tiny)
    hub.add("org/big", {"big.gguf": data})
    both = [start(hub, tmp_path, "convert", "org/big", "-o", name) for name in ("a", "b")]
    for process in both:
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
    assert content(hub) <= len(data) + 2 * (256 << 10)


def test_a_server_that_fails_for_a_moment(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    hub.add("org/m", {"m.gguf": tiny})
    hub.fail("GET", "_cdn", 503, times=1)
    done = gguf2st(hub, tmp_path, "check", "org/m")
    assert (done.code, done.err) == (0, "")


def test_what_arrives_damaged_is_deleted(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    repo = hub.add("org/m", {"m.gguf": large(tiny)})
    commit = repo.at("main")
    assert commit is not None
    path = hub.store.blob(commit.files["m.gguf"].sha256)
    with path.open("r+b") as stored:
        stored.seek(30_000_000)
        stored.write(b"!")
    done = gguf2st(hub, tmp_path, "convert", "org/m", "-o", "out")
    assert done.code == 8
    assert "arrived damaged" in done.err
    assert not list((tmp_path / "hf-home").rglob("blobs/*"))
    assert not list(tmp_path.glob("out*"))


def test_a_full_disk_is_known_before_the_download(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    hub.add("org/m", {"m.gguf": large(tiny)})
    small = "import shutil; shutil.disk_usage = lambda path: type('Usage', (), {'free': 50_000_000})"
    done = run(
        "convert",
        "org/m",
        program=(sys.executable, "-c", f"{small}; import gguf2st.cli; gguf2st.cli.main()"),
        cwd=tmp_path,
        environment=hub.environment(tmp_path),
    )
    assert done.code == 6, done.err
    assert re.search(
        r"the download needs 1\d\d\.\d MB and the checkpoint [\d.]+ kB, but \S+ has 50.0 MB free", done.err
    )
    assert content(hub) == 256 << 10


def test_progress_on_a_terminal(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    hub.add("org/big", {"big.gguf": large(tiny)})
    settings = [f"{name}={value}" for name, value in hub.environment(tmp_path).items()]
    shown = on_terminal("convert", "org/big", "-o", tmp_path / "out", program=("env", *settings, *GGUF2ST))
    assert shown.code == 0
    assert "downloading" in shown.out
    assert "40.1 MB" in shown.out, "in all"
    assert "MB/s" in shown.out
    assert (tmp_path / "out/config.json").is_file()


# --- Refusals ----------------------------------------------------------------------------------------------------

REFUSALS: dict[str, tuple[str, str | None, int, list[str]]] = {
    "absent": ("org/absent:Q4_0", WRITER, 8, ["there is no repository org/absent", "hf auth login"]),
    "absent, no token": ("hf://org/absent", None, 8, ["there is no repository org/absent", "hf auth login"]),
    "private": ("org/private", STRANGER, 8, ["no access to it", "hf auth login"]),
    "private, no token": ("org/private", None, 8, ["no access to it", "hf auth login"]),
    "gated": ("org/gated", STRANGER, 8, ["org/gated is gated", "/org/gated, then log in"]),
    "gated, no token": ("org/gated", None, 8, ["org/gated is gated", "accept its terms"]),
    "revision": ("hf://org/open@v9", WRITER, 8, ["org/open has no revision 'v9'", "leave out the revision"]),
    "file": ("hf://org/open/absent.gguf", WRITER, 3, ["org/open has no file or folder 'absent.gguf'", "org/open:Q8_0"]),
    "quant": ("org/open:Q4_K_M", WRITER, 3, ["org/open has no Q4_K_M", "name one, such as: org/open:Q8_0"]),
    "kind": ("hf://org/open/README.md", WRITER, 3, ["README.md is not a GGUF file"]),
    "name": ("hf://org/re--po", WRITER, 8, ["org/re--po"]),
    "pointer": ("hf://org/open/pointer.gguf", WRITER, 3, ["Git LFS pointer"]),
    "page": ("hf://org/open/page.gguf", WRITER, 3, ["web page"]),
}


@pytest.fixture
def guarded(hub: HubServer, tiny: bytes) -> HubServer:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
    page = b"<!doctype html><html></html>"
    hub.add("org/open", {"m.Q8_0.gguf": tiny, "README.md": b"# m", "pointer.gguf": pointer, "page.gguf": page})
    hub.add("org/private", {"m.gguf": tiny}, private=True)
    hub.add("org/gated", {"m.gguf": tiny}, gated=True)
    return hub


def assert_refused(done: Done, code: int, *words: str) -> None:
    assert done.code == code, done
    first, *rest = done.err.splitlines()
    assert first.startswith("error: ")
    assert any(line.startswith("hint: ") for line in rest)
    for word in words:
        assert word in done.err
    assert "Traceback" not in done.err
    assert not re.search(r"NeverShown|_cdn|Signature", done.err + done.out)


def test_refusals(guarded: HubServer, tmp_path: Path) -> None:
    for token in {token for _, token, _, _ in REFUSALS.values()}:
        cases = [case for case in REFUSALS.values() if case[1] == token]
        found = locate(guarded, tmp_path, *(src for src, *_ in cases), token=token, how="open")
        for refused, (_, _, code, words) in zip(found, cases, strict=True):
            assert refused["code"] == code, refused
            assert refused["hint"]
            assert "\n" not in refused["error"]
            for word in words:
                assert word in " ".join([refused["error"], refused["hint"], *refused["problems"]]), refused
            assert not re.search(r"NeverShown|_cdn", str(refused))


def test_a_refusal_on_the_command_line(guarded: HubServer, tmp_path: Path) -> None:
    assert_refused(gguf2st(guarded, tmp_path, "convert", "org/gated", token=None), 8, *REFUSALS["gated"][3])
    assert_refused(gguf2st(guarded, tmp_path, "convert", "org/open:Q4_K_M"), 3, *REFUSALS["quant"][3])
    assert not list(tmp_path.glob("*-safetensors*"))


def test_private_and_gated_models_with_the_right_token(guarded: HubServer, tmp_path: Path) -> None:
    for src in ("org/private", "org/gated"):
        assert gguf2st(guarded, tmp_path, "convert", src, "-o", src.split("/")[1], token=READER).code == 0


FAULTS: dict[str, tuple[int, str, str, list[str]]] = {
    "bad token": (401, "", "Invalid credentials in Authorization header", ["does not know the token", "hf auth login"]),
    "forbidden": (403, "", "Your token hf_AbCdEfGhIjKl may not", ["forbidden (HTTP 403", "hf_...", "the permission"]),
    "limit": (429, "", "", ["no more requests", "wait a few minutes"]),
    "trouble": (500, "", "", ["trouble of its own (HTTP 500", "try again later"]),
    "disabled": (403, "", "Access to this resource is disabled.", ["was disabled"]),
}


@pytest.mark.parametrize("case", FAULTS)
def test_answers_that_are_errors(guarded: HubServer, tmp_path: Path, case: str) -> None:
    status, code, message, words = FAULTS[case]
    guarded.fail("GET", "/api/models/org/open", status, code=code, message=message, times=9)
    done = gguf2st(guarded, tmp_path, "inspect", "org/open:Q8_0")
    assert_refused(done, 8, "org/open" if case not in ("limit",) else "hint", *words)
    assert "AbCdEfGh" not in done.err


UNREACHED: dict[str, tuple[Mapping[str, str], list[str]]] = {
    "offline": ({"HF_HUB_OFFLINE": "1"}, ["HF_HUB_OFFLINE forbids", "not in the local cache"]),
    "nothing there": ({"HF_ENDPOINT": "http://127.0.0.1:9"}, ["cannot be reached (no connection)", "proxy settings"]),
    "no such host": ({"HF_ENDPOINT": "http://hub.invalid"}, ["cannot be reached", "http://hub.invalid"]),
    "silence": ({"HF_HUB_ETAG_TIMEOUT": "1"}, ["no answer in time"]),
}


@pytest.mark.parametrize("case", UNREACHED)
def test_a_hub_out_of_reach(guarded: HubServer, tmp_path: Path, case: str) -> None:
    environment, words = UNREACHED[case]
    if case == "silence":
        guarded.hold("GET", "/api/models/org/open")
    done = gguf2st(guarded, tmp_path, "check", "org/open:Q8_0", **environment)
    assert done.code == 8
    for word in words:
        assert word in done.out, done.out
    converted = gguf2st(guarded, tmp_path, "convert", "org/open:Q8_0", **environment)
    if case != "silence":  # that one answers the second time
        assert_refused(converted, 8, *words)


def test_what_the_cache_lacks_is_said(guarded: HubServer, tmp_path: Path, tiny: bytes) -> None:
    guarded.add("org/open", {"m.Q4_0.gguf": tiny})
    assert gguf2st(guarded, tmp_path, "convert", "org/open:Q8_0", "-o", "out").code == 0
    done = gguf2st(guarded, tmp_path, "convert", "org/open:Q4_0", HF_HUB_OFFLINE="1")
    assert_refused(done, 8, "HF_HUB_OFFLINE", "org/open:Q8_0")


def test_something_else_than_the_file(guarded: HubServer, tmp_path: Path) -> None:
    """As where a network answers every request with a page of its own: 200, and no range."""
    guarded.fail("GET", "_cdn", 200, times=9)
    done = gguf2st(guarded, tmp_path, "inspect", "org/open:Q8_0")
    assert_refused(done, 8, "sends no ranges", "hf download org/open m.Q8_0.gguf")
    assert len(guarded.requested("GET", "_cdn")) == 1


# --- Elsewhere ---------------------------------------------------------------------------------------------------


def test_a_tokenizer_and_a_model_from_the_hub(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    (tmp_path / "tiny.gguf").write_bytes(tiny)
    assert gguf2st(hub, tmp_path, "convert", "tiny.gguf", "-o", "first").code == 0
    names = ("tokenizer.json", "tokenizer_config.json")
    files = {name: (tmp_path / "first" / name).read_bytes() + b"\n" for name in names}
    hub.add("org/base", files | {"model.safetensors": bytes(1000)})
    hub.add("org/m", {"m.gguf": tiny})
    done = gguf2st(hub, tmp_path, "convert", "org/m", "--tokenizer-from", "org/base@main")
    assert done.code == 0, done.err
    assert (tmp_path / "m-safetensors/tokenizer.json").read_bytes() == files["tokenizer.json"]
    assert not hub.requested("GET", r"base.*model\.safetensors")
    absent = gguf2st(hub, tmp_path, "convert", "org/m", "-o", "x", "--tokenizer-from", "org/absent")
    assert_refused(absent, 8, "there is no repository org/absent")


def test_serving_converts_a_model_of_the_hub_once(hub: HubServer, tmp_path: Path, tiny: bytes) -> None:
    hub.add("org/m-GGUF", {"m.Q8_0.gguf": tiny, "m.Q4_0.gguf": tiny})
    program = """
from gguf2st.serving import launch
folder, new = launch.checkpoint(launch.find("org/m-GGUF:Q8_0"))
print(folder, new, launch.model_name("org/m-GGUF:Q8_0", folder))
"""
    environment = hub.environment(tmp_path) | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for new in ("True", "False"):
        done = run(program=(sys.executable, "-c", program), cwd=tmp_path, environment=environment)
        assert done.code == 0, done.err
        folder, is_new, name = done.out.split()
        assert (is_new, name) == (new, "m.Q8_0")
        assert Path(folder).name.startswith("m.Q8_0-")
        assert (Path(folder) / "config.json").is_file()
