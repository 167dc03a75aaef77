"""Names of what lies on the Hub: `org/repo:Q4_K_M`, `hf://org/repo/path.gguf@rev`, and addresses of web pages.

    [hf://]org/repo [@rev] [/path] [@rev] [:quant]      hf://, hf:/ and models/ may be left out where no path follows
    https://huggingface.co/org/repo [/(resolve|blob|raw|tree)/rev [/path]] [?show_file_info=path] [:quant]
    huggingface.co/..., hf.co/... and the host of HF_ENDPOINT likewise

A name with an explicit revision right behind the repository takes its path as it is, `@` and all: so are the addresses
spelled that gguf2st writes (`Reference.address`).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from gguf2st.errors import SourceError
from gguf2st.hub.errors import mask

SCHEME = "hf://"
HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")

_NAME = r"[A-Za-z0-9_][\w.-]*"
_REPO = rf"(?P<repo>{_NAME}/{_NAME})"
# Branches with a slash must be written %2F, but for the Hub's own refs/pr/1 and refs/convert/parquet.
_REVISION = r"(?:refs/(?:pr/\d+|convert/[\w.-]+)|[^/:@]+)"
_EARLY, _LATE = rf"(?:@(?P<early>{_REVISION}))?", rf"(?:@(?P<late>{_REVISION})(?<!\.gguf))?"  # x@y.gguf is a file
_SHORT = re.compile(rf"{_REPO}{_EARLY}(?::(?P<quant>[^@]+?))?{_LATE}")
_LONG = re.compile(
    rf"hf:/{{1,2}}(?:models/(?={_NAME}/))?{_REPO}{_EARLY}(?:/(?P<path>.*?))?(?::(?P<quant>[^@/]+?))?{_LATE}", re.DOTALL
)
_PINNED = re.compile(rf"hf:/{{1,2}}{_REPO}@(?P<revision>{_REVISION})/(?P<path>.+\.gguf)", re.DOTALL | re.IGNORECASE)
_CACHED = re.compile(
    r"/models--(?P<org>[\w.-]+?)--(?P<name>[\w.-]+)/snapshots/(?P<commit>[0-9a-f]{40})/(?P<path>.+)", re.DOTALL
)
_PAGES = ("resolve", "blob", "raw", "tree")
_NOT_MODELS = ("datasets", "spaces", "buckets", "collections", "papers", "docs", "api", "kernels", "settings")


@dataclass(frozen=True)
class Reference:
    """What a name says. Everything but `repo` may be empty.

    Attributes:
        repo: `org/name`.
        revision: branch, tag or commit; empty for the main branch.
        path: of a file or folder inside.
        quant: text that selects one of several models.
    """

    repo: str
    revision: str = ""
    path: str = ""
    quant: str = ""

    @property
    def address(self) -> str:
        """`hf://org/repo@revision/path`: the one spelling that says everything but the quant."""
        return f"{SCHEME}{self.repo}{self._at}" + (f"/{self.path}" if self.path else "")

    def select(self, path: str = "", quant: str = "") -> str:
        """How to name a file, or a quant, of the same repository at the same revision, as briefly as possible."""
        return f"{SCHEME}{self.repo}{self._at}/{path}" if path else f"{self.repo}{self._at}:{quant}"

    @property
    def _at(self) -> str:
        # refs/pr/1 is the only kind of revision that is read with its slashes.
        plain = re.fullmatch(_REVISION, self.revision)
        return f"@{self.revision if plain else quote(self.revision, safe='')}" if self.revision else ""


def cached_reference(file: Path) -> Reference | None:
    """What a file in huggingface_hub's cache is: `.../models--org--repo/snapshots/<commit>/<path>`, else None."""
    match = _CACHED.search(file.absolute().as_posix())
    return Reference(f"{match['org']}/{match['name']}", match["commit"], match["path"]) if match else None


def is_explicit(src: str) -> bool:
    """Whether a name can mean nothing but the Hub."""
    return src.startswith("hf:/") or _host(src) in _hosts()


def parse_reference(src: str) -> Reference | None:
    """What a name of something on the Hub says; None when it is no such name.

    A bare `org/repo` may be a local path as well: that is for the caller to know.

    Raises:
        SourceError: the name means something on the Hub that holds no model.
    """
    if src.startswith("hf:/"):
        return _parse_scheme(src)
    if _host(src) in _hosts():
        return _parse_page(src)
    match = _SHORT.fullmatch(src)
    if not match or (match["early"] and match["late"]):
        return None
    return Reference(match["repo"], _revision(match), "", match["quant"] or "")


def parse_address(address: str) -> Reference:
    """What `Reference.address` wrote."""
    reference = parse_reference(address)
    if reference is None or not reference.path:
        raise SourceError(
            f"{mask(address)}: not the address of a file on the Hub", hint="give it as hf://org/repo@revision/file.gguf"
        )
    return reference


def _parse_scheme(src: str) -> Reference:
    if pinned := _PINNED.fullmatch(src):
        return Reference(pinned["repo"], unquote(pinned["revision"]), pinned["path"])
    kind = re.sub("hf:/{1,2}", "", src).split("/")[0]
    if kind in _NOT_MODELS:
        raise _no_model(src, kind)
    match = _LONG.fullmatch(src)
    if not match or (match["early"] and match["late"]):
        raise SourceError(
            f"{mask(src)}: not a name on the Hub",
            hint="write hf://org/repo, hf://org/repo/file.gguf or hf://org/repo/file.gguf@revision",
        )
    path = (match["path"] or "").strip("/")
    return Reference(match["repo"], _revision(match), path, match["quant"] or "")


def _revision(match: re.Match[str]) -> str:
    return unquote(match["early"] or match["late"] or "")


def _parse_page(src: str) -> Reference:
    """The address of a page: what the browser shows, or what a download link says."""
    url = urlsplit(src if "://" in src else f"https://{src}")
    if "@" in url.netloc:
        raise SourceError(
            f"{url.scheme}://...@{url.hostname}/...: an address with a password or token in it",
            hint="leave it out and log in: hf auth login, or set HF_TOKEN",
        )
    parts = [unquote(part) for part in url.path.split("/") if part]
    if parts and parts[0] in _NOT_MODELS:
        raise _no_model(src, parts[0])
    quant = ""
    if parts and len(parts) in (2, 4) and ":" in parts[-1]:
        parts[-1], _, quant = parts[-1].partition(":")
    if len(parts) < 2 or not re.fullmatch(f"{_NAME}/{_NAME}", "/".join(parts[:2])):
        raise SourceError(
            f"{mask(src)}: not the address of a model", hint="it has the form https://huggingface.co/org/repo"
        )
    repo, rest = "/".join(parts[:2]), parts[2:]
    shown = parse_qs(url.query).get("show_file_info", [""])[0]
    if not rest:
        return Reference(repo, "", shown, quant)
    if rest[0] not in _PAGES or len(rest) < 2:
        raise SourceError(f"{mask(src)}: this page holds no file", hint=f"give the model itself: {repo}")
    n = 4 if rest[1] == "refs" and len(rest) >= 4 else 2
    return Reference(repo, "/".join(rest[1:n]), "/".join(rest[n:]) or shown, quant)


def _no_model(src: str, kind: str) -> SourceError:
    return SourceError(
        f"{mask(src)}: {kind} on the Hub are no models",
        hint="give a model repository: org/repo, or hf://org/repo/file.gguf",
    )


def _host(src: str) -> str:
    """The host that a web address names, in small letters; also of one without https://."""
    match = re.match(r"(?:https?://(?:[^/@]*@)?)?([^/:?#\s]+(?::\d+)?)/", src, re.IGNORECASE)
    return match[1].lower() if match else ""


def _hosts() -> tuple[str, ...]:
    from huggingface_hub import constants

    return (*HOSTS, urlsplit(constants.ENDPOINT).netloc.lower())
