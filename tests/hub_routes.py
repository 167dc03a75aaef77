"""The Hub's endpoints, as huggingface_hub 1.31 and 2.x call them; see tests/hub_server.py."""

import base64
import json
import re
import secrets
import time
from collections.abc import Callable
from hashlib import sha1, sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from tests.hub_cards import check_card
from tests.hub_store import Commit, File, Repo, is_lfs

if TYPE_CHECKING:
    from tests.hub_server import _Handler as Handler

TRUE = ("true", "True", "1")


def _error(status: int, code: str = "", message: str = "") -> Exception:
    from tests.hub_server import HubError

    return HubError(status, code, message)


def _commit(repo: Repo, revision: str) -> Commit:
    found = repo.at(revision)
    if found is None:
        raise _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return found


# --- accounts and repositories


def whoami(h: "Handler") -> None:
    from tests.hub_server import ORGANIZATIONS

    user = h.user()
    if user is None:
        raise _error(401, "", "Invalid credentials in Authorization header")
    orgs = [{"type": "org", "name": name} for name in ORGANIZATIONS[user]]
    role = {"type": "access_token", "accessToken": {"displayName": "test", "role": "write"}}
    h.answer({"type": "user", "name": user, "fullname": user, "orgs": orgs, "auth": role})


def create_repo(h: "Handler") -> None:
    asked = h.json()
    user = h.require_writer()
    owner = asked.get("organization") or user
    name, store = f"{owner}/{asked['name']}", h.hub.store
    if not h.writable_namespace(owner):
        raise _error(403, "", f'You don\'t have the rights to create a model under the namespace "{owner}"')
    facts = {"url": f"{h.hub.url}/{name}", "name": name, "id": name}
    with store.lock:
        if name in store.repos:
            h.answer({"error": "You already created this model repo", **facts}, 409)
            return
        store.create(name, owner, private=bool(asked.get("private")) or asked.get("visibility") == "private")
    h.answer(facts)


def delete_repo(h: "Handler") -> None:
    asked = h.json()
    name = f"{asked.get('organization') or h.user()}/{asked['name']}"
    h.repo(name, write=True)
    del h.hub.store.repos[name]
    h.answer({})


def validate_yaml(h: "Handler") -> None:
    errors, warnings = check_card(h.json()["content"])
    found = {"errors": [{"message": e} for e in errors], "warnings": [{"message": w} for w in warnings]}
    h.answer(found, 400 if errors else 200)


def create_branch(h: "Handler", repo: str, revision: str) -> None:
    found = h.repo(repo, write=True)
    start = h.json().get("startingPoint") or "main"
    if revision in found.refs:
        raise _error(409, "", "Reference already exists")
    if revision.startswith("refs/"):
        raise _error(400, "", f"Invalid reference for a branch: {revision}")
    found.refs[revision] = _commit(found, start)
    h.answer({}, 201)


# --- looking


def repo_info(h: "Handler", repo: str, revision: str = "main") -> None:
    found = h.repo(repo)
    commit = _commit(found, revision)
    siblings = []
    for path, file in sorted(commit.files.items()):
        sizes = {key: value for key, value in _entry(path, file).items() if key in ("size", "lfs")}
        blobs = {**sizes, "blobId": file.git_oid} if h.query.get("blobs") in TRUE else {}
        siblings.append({"rfilename": path, **blobs})
    facts = {"_id": "0", "id": repo, "modelId": repo, "author": found.owner, "sha": commit.oid, "siblings": siblings}
    state = {"private": found.private, "gated": "auto" if found.gated else False, "disabled": False}
    dates = {"createdAt": "2026-01-01T00:00:00.000Z", "lastModified": "2026-01-01T00:00:00.000Z"}
    h.answer({**facts, **state, **dates, "tags": [], "downloads": 0, "likes": 0})


def auth_check(h: "Handler", repo: str, write: str = "") -> None:
    h.repo(repo, write=bool(write), content=True)
    h.answer({})


def list_refs(h: "Handler", repo: str) -> None:
    found = h.repo(repo)
    names = {"branches": ("refs/heads/", False), "pullRequests": ("", True)}
    refs: dict[str, Any] = {"tags": [], "converts": []}
    for kind, (prefix, pulls) in names.items():
        refs[kind] = [
            {"name": name, "ref": prefix + name, "targetCommit": commit.oid}
            for name, commit in found.refs.items()
            if name.startswith("refs/pr/") == pulls
        ]
    h.answer(refs)


def list_tree(h: "Handler", repo: str, revision: str, folder: str = "") -> None:
    commit = _commit(h.repo(repo), revision)
    base, recursive = PurePosixPath(folder), h.query.get("recursive") in TRUE
    rows: dict[str, dict[str, Any]] = {}
    for path, file in sorted(commit.files.items()):
        if not PurePosixPath(path).is_relative_to(base):
            continue
        above = [str(p) for p in PurePosixPath(path).parents if p != base and p.is_relative_to(base)]
        for inner in reversed(above):
            rows.setdefault(inner, _folder(inner))
        rows[path] = _entry(path, file)
    if folder and not rows:
        raise _error(404, "EntryNotFound", f'{folder} does not exist on "{revision}"')
    wanted = [row for path, row in rows.items() if recursive or PurePosixPath(path).parent == base]
    h.answer(wanted, headers={"X-Repo-Commit": commit.oid})


def paths_info(h: "Handler", repo: str, revision: str) -> None:
    text = h.body().decode()  # a form, unlike all others
    asked = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text)["paths"]
    files = _commit(h.repo(repo), revision).files
    rows = []
    for path in asked:
        if path in files:
            rows.append(_entry(path, files[path]))
        elif any(PurePosixPath(other).is_relative_to(path) for other in files):
            rows.append(_folder(path))
    h.answer(rows)


def _entry(path: str, file: File) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "path": path, "size": file.nbytes, "oid": file.git_oid}
    if file.lfs:
        row["lfs"] = {"oid": file.sha256, "sha256": file.sha256, "size": file.nbytes, "pointerSize": 134}
    return row | ({"xetHash": file.xet} if file.xet else {})


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "size": 0, "oid": sha1(path.encode()).hexdigest()}


# --- uploading


def preupload(h: "Handler", repo: str, revision: str) -> None:
    asked = h.json()
    found = h.repo(repo, write=h.query.get("create_pr") != "1")
    files = _commit(found, revision).files
    rows = []
    for file in asked["files"]:
        lfs = is_lfs(file["path"], file["size"], base64.b64decode(file["sample"]))
        row = {"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
        if there := files.get(file["path"]):
            row["oid"] = there.sha256 if there.lfs else there.git_oid
        rows.append(row)
    h.answer({"files": rows})


def lfs_batch(h: "Handler", repo: str) -> None:
    asked = h.json()
    h.repo(repo)
    h.require_writer()
    rows = []
    for item in asked["objects"]:
        oid, nbytes = item["oid"], item["size"]
        row: dict[str, Any] = {"oid": oid, "size": nbytes}
        if not h.hub.store.blob(oid).exists():
            upload: dict[str, Any] = {"href": f"{h.hub.url}/_lfs/{oid}"}
            chunk = h.hub.chunk_nbytes
            if chunk and nbytes > chunk and "multipart" in asked.get("transfers", ()):
                count = -(-nbytes // chunk)
                parts = {f"{i:05}": f"{upload['href']}/part/{i}" for i in range(1, count + 1)}
                upload = {"href": f"{upload['href']}/complete", "header": {"chunk_size": str(chunk), **parts}}
            row["actions"] = {"upload": upload, "verify": {"href": f"{h.hub.url}/_lfs/{oid}/verify"}}
        rows.append(row)
    h.answer({"transfer": "basic", "objects": rows}, headers={"Content-Type": "application/vnd.git-lfs+json"})


def put_whole(h: "Handler", oid: str) -> None:
    """As with the storage behind the Hub, the address is the permission: no token is wanted, and none must come."""
    incoming = _incoming(h, secrets.token_hex(8))
    with incoming.open("wb") as file:
        digest = h.receive(file.write)
    _keep(h, incoming, oid, digest)
    h.answer(b"", headers={"ETag": f'"{digest[:32]}"'})


def put_part(h: "Handler", oid: str, number: str) -> None:
    with _incoming(h, f"{oid}.{number}").open("wb") as file:
        digest = h.receive(file.write)
    h.answer(b"", headers={"ETag": f'"{digest[:32]}"'})


def complete(h: "Handler", oid: str) -> None:
    digest, joined = sha256(), _incoming(h, f"{oid}.joined")
    with joined.open("wb") as file:
        for part in h.json()["parts"]:
            piece = _incoming(h, f"{oid}.{part['partNumber']}").read_bytes()
            digest.update(piece)
            file.write(piece)
    _keep(h, joined, oid, digest.hexdigest())
    h.answer({})


def verify(h: "Handler", oid: str) -> None:
    asked, blob = h.json(), h.hub.store.blob(oid)
    h.answer({}, 200 if blob.exists() and blob.stat().st_size == asked["size"] else 404)


def _incoming(h: "Handler", name: str) -> Path:
    return h.hub.store.root / "incoming" / name


def _keep(h: "Handler", incoming: Path, oid: str, digest: str) -> None:
    if digest != oid:
        raise _error(400, "", "the content does not have the announced sha256")
    incoming.replace(h.hub.store.blob(oid))


def commit(h: "Handler", repo: str, revision: str) -> None:
    lines = [json.loads(line) for line in h.body().splitlines() if line.strip()]
    as_pull = h.query.get("create_pr") == "1"
    found = h.repo(repo, write=not as_pull)
    h.require_writer()
    with h.hub.store.lock:
        head = next(line["value"] for line in lines if line["key"] == "header")
        parent = _commit(found, revision)
        if not parent.oid.startswith(head.get("parentCommit") or ""):
            raise _error(412, "", "A commit has happened since. Please refresh and try again.")
        files = dict(parent.files)
        for line in lines:
            _apply(h, files, line["key"], line["value"])
        ref, pull = revision, None
        if as_pull:
            number = 1 + sum(name.startswith("refs/pr/") for name in found.refs)
            ref, pull = f"refs/pr/{number}", f"{h.hub.url}/{repo}/discussions/{number}"
        made = found.commit(ref, files, head["summary"], head.get("description", ""))
    url = f"{h.hub.url}/{repo}/commit/{made.oid}"
    h.answer({"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": "", "pullRequestUrl": pull})


def _apply(h: "Handler", files: dict[str, File], kind: str, value: dict[str, Any]) -> None:
    if kind == "file":
        content = base64.b64decode(value["content"])
        if value["path"] == "README.md" and (errors := check_card(content.decode())[0]):
            raise _error(400, "", "; ".join(errors))
        files[value["path"]] = h.hub.store.regular(content)
    elif kind == "lfsFile":
        file = h.hub.store.lfs(value["oid"], value.get("size", 0))
        if file is None:
            raise _error(400, "", f"LFS pointer pointed to a file that does not exist: {value['path']}")
        files[value["path"]] = file
    elif kind == "deletedFile":
        if files.pop(value["path"], None) is None:
            raise _error(404, "EntryNotFound", "A file with this name doesn't exist")
    elif kind == "deletedFolder":
        for path in [p for p in files if PurePosixPath(p).is_relative_to(value["path"])]:
            del files[path]


def xet_token(h: "Handler", repo: str, kind: str, revision: str) -> None:
    found = h.repo(repo, write=kind == "write" and h.query.get("create_pr") != "1")
    _commit(found, revision)
    cas, until = h.hub.store.cas, int(time.time()) + 3600
    if cas is None:
        raise _error(404, "", "this repository is not in xet storage")
    headers = {"X-Xet-Cas-Url": cas, "X-Xet-Access-Token": "token", "X-Xet-Token-Expiration": str(until)}
    h.answer({"casUrl": cas, "accessToken": "token", "exp": until}, headers=headers)


# --- downloading


def resolve(h: "Handler", repo: str, revision: str, path: str) -> None:
    made = _commit(h.repo(repo, content=True), revision)
    file = made.files.get(path)
    if file is None:
        raise _error(404, "EntryNotFound", "Entry not found")
    name = PurePosixPath(path).name
    headers = {"X-Repo-Commit": made.oid, "Content-Disposition": f'inline; filename="{name}"', "Accept-Ranges": "bytes"}
    if not file.lfs:
        h.answer_file(h.hub.store.blob(file.sha256), {**headers, "ETag": f'"{file.git_oid}"'})
        return
    # To another host name: clients stop at it when they only look, and do not send it the token.
    headers |= {"Location": f"http://localhost:{h.hub.port}/_cdn/{file.sha256}"}
    headers |= {"ETag": f'"{file.sha256}"', "X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.nbytes)}
    if file.xet:
        address = f"{h.hub.url}/api/models/{repo}/xet-read-token/{made.oid}"
        headers |= {"X-Xet-Hash": file.xet, "Link": f'<{address}>; rel="xet-auth"'}
    h.answer(b"", 302, headers)


def content(h: "Handler", oid: str) -> None:
    h.answer_file(h.hub.store.blob(oid), {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})


_REPO, _REVISION, _OID = r"(?P<repo>[^/]+/[^/]+)", r"(?P<revision>[^/]+)", r"(?P<oid>[0-9a-f]{64})"
_MODEL = rf"/api/models/{_REPO}"
ROUTES: list[tuple[str, re.Pattern[str], Callable[..., None]]] = [
    (method, re.compile(pattern), route)
    for method, pattern, route in [
        ("GET", r"/api/whoami-v2", whoami),
        ("POST", r"/api/repos/create", create_repo),
        ("DELETE", r"/api/repos/delete", delete_repo),
        ("POST", r"/api/validate-yaml", validate_yaml),
        ("GET", _MODEL, repo_info),
        ("GET", rf"{_MODEL}/revision/{_REVISION}", repo_info),
        ("GET", rf"{_MODEL}/auth-check(?P<write>/write)?", auth_check),
        ("GET", rf"{_MODEL}/refs", list_refs),
        ("GET", rf"{_MODEL}/tree/{_REVISION}(?:/(?P<folder>.+))?", list_tree),
        ("POST", rf"{_MODEL}/paths-info/{_REVISION}", paths_info),
        ("POST", rf"{_MODEL}/branch/{_REVISION}", create_branch),
        ("POST", rf"{_MODEL}/preupload/{_REVISION}", preupload),
        ("POST", rf"{_MODEL}/commit/{_REVISION}", commit),
        ("GET", rf"{_MODEL}/xet-(?P<kind>read|write)-token/{_REVISION}", xet_token),
        ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", lfs_batch),
        ("PUT", rf"/_lfs/{_OID}", put_whole),
        ("PUT", rf"/_lfs/{_OID}/part/(?P<number>\d+)", put_part),
        ("POST", rf"/_lfs/{_OID}/complete", complete),
        ("POST", rf"/_lfs/{_OID}/verify", verify),
        ("GET", rf"/_cdn/{_OID}", content),
        ("GET", rf"/{_REPO}/resolve/{_REVISION}/(?P<path>.+)", resolve),
    ]
]
