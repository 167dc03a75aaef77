"""What a Hub remembers: repositories, their commits and branches, and the content of files by its sha256."""

import hashlib
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

LFS_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".model", ".npz", ".zip", ".parquet")
LFS_NBYTES = 10 << 20
"""The Hub keeps every file above this size in LFS, whatever its name."""


@dataclass(frozen=True)
class File:
    """One file of a commit; `xet` is its hash in the content-addressed store, where it was uploaded through that."""

    sha256: str
    nbytes: int
    git_oid: str
    lfs: bool
    xet: str | None = None


@dataclass(frozen=True)
class Commit:
    oid: str
    files: Mapping[str, File]
    summary: str
    description: str


@dataclass
class Repo:
    name: str
    owner: str
    private: bool = False
    gated: bool = False
    """Anyone may look at its list of files, only `readers` may download them."""
    readers: set[str] = field(default_factory=set)
    refs: dict[str, Commit] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def at(self, revision: str) -> Commit | None:
        """The commit of a branch, a pull request (refs/pr/1), or an oid of which at least 7 digits are given."""
        if revision in self.refs:
            return self.refs[revision]
        found = [c for oid, c in self.commits.items() if len(revision) >= 7 and oid.startswith(revision)]
        return found[0] if found else None

    def commit(self, ref: str, files: Mapping[str, File], summary: str, description: str = "") -> Commit:
        text = f"{self.name} {ref} {len(self.commits)} {sorted(files.items())} {summary}"
        made = Commit(hashlib.sha1(text.encode()).hexdigest(), dict(files), summary, description)
        self.commits[made.oid] = self.refs[ref] = made
        return made


class Store:
    """All repositories, in memory, and their content, on disk below `root`. Lock it around what must be atomic."""

    def __init__(self, root: Path, *, xet: bool) -> None:
        self.root = root
        self.repos: dict[str, Repo] = {}
        self.lock = threading.RLock()
        self.cas = f"local://{root / 'cas'}" if xet else None
        """hf_xet takes a folder for a server of content: it does the whole client's work, then writes it there."""
        for name in ("blobs", "incoming"):
            (root / name).mkdir(parents=True)

    def create(self, name: str, owner: str, **attributes: bool) -> Repo:
        repo = self.repos[name] = Repo(name, owner, **attributes)
        repo.commit("main", {".gitattributes": self.regular(b"*.safetensors filter=lfs\n")}, "initial commit")
        return repo

    def blob(self, sha256: str) -> Path:
        return self.root / "blobs" / sha256

    def read(self, file: File) -> bytes:
        return self.blob(file.sha256).read_bytes()

    def add(self, path: str, content: bytes) -> File:
        """A file put into a repository by the test itself, in LFS where the Hub would do so."""
        if not is_lfs(path, len(content), content[:512]):
            return self.regular(content)
        file = self._keep(content)
        return replace(file, lfs=True, git_oid=pointer_oid(file.sha256, file.nbytes))

    def regular(self, content: bytes) -> File:
        return replace(self._keep(content), git_oid=git_oid(content))

    def lfs(self, sha256: str, nbytes: int) -> File | None:
        """A file uploaded before its commit; None if its content never arrived."""
        xet = self._xet_hash(sha256) if self.cas else None
        if not self.blob(sha256).exists():
            if xet is None:
                return None
            self._fetch(sha256, xet, nbytes)
        return File(sha256, nbytes, pointer_oid(sha256, nbytes), lfs=True, xet=xet)

    def _keep(self, content: bytes) -> File:
        sha256 = hashlib.sha256(content).hexdigest()
        self.blob(sha256).write_bytes(content)
        return File(sha256, len(content), "", lfs=False)

    def _xet_hash(self, sha256: str) -> str | None:
        """The xet hash of a file that was uploaded in xet mode: a commit names only the sha256.

        A shard file is: header 48 bytes | per file: (hash 32 bytes, flags u32, n u32, 8 unused), n records of 48 bytes,
        with flag bit 31 n records more, with flag bit 30 one record that starts with the sha256. All ones end it.
        Hashes are printed as four little-endian u64.
        """
        assert self.cas
        for path in Path(self.cas.removeprefix("local://")).glob("**/xorbs/shards/*.mdb"):
            data, at = path.read_bytes(), 48
            while at + 48 <= len(data) and data[at : at + 32] != b"\xff" * 32:
                file_hash = data[at : at + 32]
                flags, n_records = struct.unpack_from("<II", data, at + 32)
                at += 48 * (1 + n_records * (2 if flags >> 31 & 1 else 1))
                if flags >> 30 & 1:
                    if _words(data[at : at + 32]) == sha256:
                        return _words(file_hash)
                    at += 48
        return None

    def _fetch(self, sha256: str, xet: str, nbytes: int) -> None:
        """Bring the content of a xet upload where plain HTTP requests are served from."""
        import hf_xet

        until = int(time.time()) + 3600
        with hf_xet.XetSession().new_file_download_group(
            endpoint=self.cas, token="token", token_expiry_unix_secs=until
        ) as group:
            group.start_download_file(hf_xet.XetFileInfo(xet, nbytes), str(self.blob(sha256)))


def is_lfs(path: str, nbytes: int, start: bytes) -> bool:
    return path.endswith(LFS_SUFFIXES) or nbytes > LFS_NBYTES or b"\0" in start


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def pointer_oid(sha256: str, nbytes: int) -> str:
    return git_oid(f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {nbytes}\n".encode())


def _words(data: bytes) -> str:
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", data))
