"""A Hub to test against: huggingface_hub talks to it over HTTP as to the real one; nothing leaves this machine.

    with HubServer(tmp_path / "hub") as hub:
        hub.add("org/model", {"model.Q4_0.gguf": content})
        subprocess.run(command, env=os.environ | hub.environment(tmp_path))

It speaks repositories, branches and pull requests; uploads by LFS in one piece, LFS in parts (`chunk_nbytes`) and xet;
downloads with ranges, of LFS files through another host name, where clients lose their token as they should; private
and gated repositories; and the error codes that choose huggingface_hub's exceptions. `requests` records what happened,
`fail`, `cut` and `hold` make it go wrong.
"""

import hashlib
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests import hub_routes
from tests.hub_store import Repo, Store

WRITER, READER, STRANGER = "hf_WriterTokenNeverShown", "hf_ReaderTokenNeverShown", "hf_StrangerTokenNeverShown"
USERS = {WRITER: "tester", READER: "tester", STRANGER: "stranger"}
"""Token -> user. `tester` belongs to the organization `org`; READER's token may not write."""
ORGANIZATIONS = {"tester": ("org",), "stranger": ()}
HOLD_S = 60.0
"""How long a held request waits at most."""


@dataclass(frozen=True)
class Request:
    """One answered request. `received` and `sent` count the bytes of the bodies; `range` is the header's text."""

    method: str
    path: str
    status: int
    received: int
    sent: int
    range: str


@dataclass
class Fault:
    """Something that happens to the next `times` requests whose path holds `path`."""

    method: str
    path: str
    times: int
    status: int = 0
    code: str = ""
    message: str = ""
    after: int | None = None
    """Bytes of the request's body (of the answer's, for GET) that pass before the connection is cut or held."""
    holds: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    """Set once it happened."""
    released: threading.Event = field(default_factory=threading.Event)


class HubError(Exception):
    """An answer other than the wanted one."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class _Cut(Exception):  # noqa: N818 - not an error: the connection ends as a fault asked
    pass


class HubServer:
    """The server, running from construction to `close`."""

    def __init__(self, root: Path, *, chunk_nbytes: int | None = None, xet: bool = False) -> None:
        """Start it.

        Args:
            root: a folder to make; it holds the content of files.
            chunk_nbytes: larger LFS files go up in parts of this size.
            xet: files go up through hf_xet, which keeps their content in a folder below `root`.
        """
        self.store = Store(root, xet=xet)
        self.chunk_nbytes = chunk_nbytes
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> "HubServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for fault in self.faults:
            fault.released.set()
        self._server.shutdown()
        self._server.server_close()

    def environment(self, home: Path, token: str | None = WRITER) -> dict[str, str]:
        """What makes a subprocess's huggingface_hub use this server, a cache of its own, and no token but this one."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home / "hf-home"),
            "HF_TOKEN": token or "",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "0" if self.store.cas else "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def add(
        self,
        name: str,
        files: Mapping[str, bytes],
        *,
        revision: str = "main",
        private: bool = False,
        gated: bool = False,
    ) -> Repo:
        """A repository with these files beside what it has; made if need be, owned by the first part of its name."""
        with self.store.lock:
            repo = self.store.repos.get(name)
            if repo is None:
                repo = self.store.create(name, name.split("/")[0], private=private, gated=gated)
            base = repo.refs.get(revision, repo.refs["main"])
            added = {path: self.store.add(path, content) for path, content in files.items()}
            repo.commit(revision, {**base.files, **added}, "added by the test")
        return repo

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """What a repository holds, .gitattributes apart."""
        commit = self.store.repos[name].at(revision)
        assert commit is not None
        return {path: self.store.read(file) for path, file in commit.files.items() if path != ".gitattributes"}

    def fail(self, method: str, path: str, status: int, *, times: int = 1, code: str = "", message: str = "") -> Fault:
        """Answer with an error instead."""
        return self._fault(Fault(method, path, times, status, code, message))

    def cut(self, method: str, path: str, *, after: int, times: int = 1) -> Fault:
        """End the connection after so many bytes."""
        return self._fault(Fault(method, path, times, after=after))

    def hold(self, method: str, path: str, *, after: int = 0) -> Fault:
        """Stop after so many bytes, say so (`reached`), and go on only when told to (`released`)."""
        return self._fault(Fault(method, path, 1, after=after, holds=True))

    def _fault(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    def take_fault(self, method: str, path: str) -> Fault | None:
        with self.store.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and fault.path in path:
                    fault.times -= 1
                    return fault
        return None

    def requested(self, method: str, path: str) -> list[Request]:
        """The recorded requests of a method whose path matches a regular expression somewhere."""
        return [r for r in self.requests if r.method == method and re.search(path, r.path)]


class _Handler(BaseHTTPRequestHandler):
    """One connection. The routes are in tests/hub_routes.py; here is what they share."""

    protocol_version = "HTTP/1.1"
    hub: HubServer
    query: dict[str, str]

    def log_message(self, format: str, *_: object) -> None:
        """Quiet: `HubServer.requests` is the log."""

    def do_GET(self) -> None:
        self._received = self._sent = 0
        self._read = False
        url = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        self._fault = self.hub.take_fault(self.command, url.path)
        try:
            if self._fault and self._fault.status:
                self._fault.reached.set()
                raise HubError(self._fault.status, self._fault.code, self._fault.message or "injected failure")
            if self._fault and self.command in ("POST", "DELETE"):
                self._happen()  # bodies this small are not cut in the middle
            self._dispatch(url.path)
        except HubError as err:
            self._answer_error(err)
        except _Cut:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            self.hub.requests.append(Request(self.command, self.path, 0, self._received, self._sent, self._range()))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the base class looks for these names

    def _dispatch(self, path: str) -> None:
        method = "GET" if self.command == "HEAD" else self.command
        for wanted, pattern, route in hub_routes.ROUTES:
            if wanted == method and (match := pattern.fullmatch(path)):
                groups = {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
                route(self, **groups)
                return
        raise HubError(404, "", f"no route {self.command} {path}")

    def _answer_error(self, err: HubError) -> None:
        if not self._read:
            self.body()  # or the client sees a reset instead of the answer
        headers = {"X-Error-Code": err.code, "X-Error-Message": err.message}
        self.answer({"error": err.message}, err.status, {k: v for k, v in headers.items() if v})

    def _range(self) -> str:
        return self.headers.get("Range", "")

    def _happen(self) -> None:
        assert self._fault
        self._fault.reached.set()
        if not self._fault.holds:
            raise _Cut
        self._fault.released.wait(HOLD_S)

    def body(self) -> bytes:
        content = bytearray()
        self.receive(content.extend)
        return bytes(content)

    def json(self) -> Any:
        return json.loads(self.body() or b"{}")

    def receive(self, write: Callable[[bytes], object]) -> str:
        """Hand the request's body on piece by piece; its sha256."""
        self._read = True
        digest = hashlib.sha256()
        left = int(self.headers.get("Content-Length") or 0)
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        while chunked or left:
            if chunked:
                piece = self.rfile.read(int(self.rfile.readline().split(b";")[0], 16))
                self.rfile.readline()
                if not piece:
                    break
            else:
                piece = self.rfile.read1(min(left, 1 << 16))
                if not piece:
                    raise _Cut  # the client is gone
                left -= len(piece)
            self._received += len(piece)
            digest.update(piece)
            write(piece)
            fault = self._fault
            if fault and fault.after is not None and self._received >= fault.after and not fault.reached.is_set():
                self._happen()
        return digest.hexdigest()

    def answer(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.start(status, len(data), {"Content-Type": "application/json", **(headers or {})})
        self._send(data)

    def answer_file(self, path: Path, headers: Mapping[str, str]) -> None:
        """A file, or the range of it that is asked for."""
        size = path.stat().st_size
        first, last, status = 0, size - 1, 200
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self._range())
        if match and any(match.groups()):
            status = 206
            if match[1]:
                first, last = int(match[1]), min(int(match[2] or size), size - 1)
            else:
                first = max(0, size - int(match[2]))
            if first >= size:
                self.answer(b"", 416, {"Content-Range": f"bytes */{size}"})
                return
            headers = {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}
        self.start(status, last + 1 - first, {"Content-Type": "application/octet-stream", **headers})
        with path.open("rb") as file:
            file.seek(first)
            for at in range(first, last + 1, 1 << 16):
                self._send(file.read(min(1 << 16, last + 1 - at)))

    def start(self, status: int, nbytes: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(nbytes), "X-Request-Id": secrets.token_hex(8)}.items():
            self.send_header(name, value)
        self.end_headers()
        sent = 0 if self.command == "HEAD" else nbytes
        self.hub.requests.append(Request(self.command, self.path, status, self._received, sent, self._range()))

    def _send(self, data: bytes) -> None:
        if self.command == "HEAD":
            return
        fault = self._fault
        if fault and self.command == "GET" and fault.after is not None and not fault.reached.is_set():
            keep = fault.after - self._sent
            if keep < len(data):
                self.wfile.write(data[:keep])
                self._sent += keep
                data = data[keep:]
                self._happen()
        self.wfile.write(data)
        self._sent += len(data)

    def user(self) -> str | None:
        return USERS.get(self.token())

    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def writable_namespace(self, name: str) -> bool:
        user = self.user()
        return user is not None and name in (user, *ORGANIZATIONS[user])

    def repo(self, name: str, *, write: bool = False, content: bool = False) -> Repo:
        """A repository that the token may see, write to, or read the content of; HubError if not."""
        repo, user = self.hub.store.repos.get(name), self.user()
        inside = repo is not None and self.writable_namespace(repo.owner)
        if repo is None or (repo.private and not inside):
            raise HubError(404 if user else 401, "RepoNotFound", "Repository not found")
        if content and repo.gated and not inside and user not in repo.readers:
            raise HubError(403 if user else 401, "GatedRepo", f"Access to model {name} is restricted.")
        if write:
            self.require_writer()
            if not inside:
                raise HubError(403, "", f"You don't have write access to {name}")
        return repo

    def require_writer(self) -> str:
        """The user of a token that may write."""
        user = self.user()
        if user is None:
            raise HubError(401, "", "Invalid username or password.")
        if self.token() == READER:
            raise HubError(403, "", "Forbidden: you must use a write token to upload to a repository.")
        return user
