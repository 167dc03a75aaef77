"""Models of ollama's local store: a manifest names the blobs of a model, and one of them is a GGUF.

    STORE/manifests/registry.ollama.ai/library/llama3.2/1b    {"layers": [{"mediaType", "digest", "size"}]}
    STORE/manifests/hf.co/org/repo/Q4_K_M                     of a model pulled from elsewhere
    STORE/blobs/sha256-<64 hex digits>                        its layers: weights, template, license, parameters

STORE is what ollama's own variable OLLAMA_MODELS says, else ~/.ollama/models, else that of ollama's system service.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gguf2st.errors import SourceError
from gguf2st.source import Model
from gguf2st.source.selection import shortened

SERVICE_STORE = Path("/usr/share/ollama/.ollama/models")
"""Where ollama's installer for Linux lets the service keep its models."""

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
"""What ollama adds to a name that leaves them out."""

_LAYER = "application/vnd.ollama.image."
_BLOB = re.compile(r"sha256[-:]([0-9a-f]{64})")
_NAME = re.compile(r"(?:(?:[\w.-]+(?::\d+)?/)?[\w.-]+/)?[\w.-]+(?::[\w.-]+)?")


def find_model(name: str) -> Model:
    """The GGUF of a model `[host/][namespace/]model[:tag]`, such as `llama3.2:1b` or `hf.co/org/repo:Q4_K_M`.

    Raises:
        SourceError: no such model in the store, or it is not stored as one whole GGUF.
    """
    path = _manifest(name)
    if path is None:
        raise _absent(name)
    return _model(path)


def has_model(name: str) -> bool:
    """Whether the store has a model of this name."""
    return _manifest(name) is not None


def origin_of(file: Path) -> str:
    """`ollama://model:tag` for a blob of the store, by the first manifest that names it; "" for any other file."""
    blob = _BLOB.fullmatch(file.name)
    if not blob or file.absolute().parent.name != "blobs":
        return ""
    store = file.absolute().parent.parent
    for path in _manifests(store):
        with suppress(SourceError):  # of another model
            if any(str(layer["digest"]).endswith(blob[1]) for layer in _weights(_read(path))):
                return _origin(store, path)
    return ""


def default_output(origin: str) -> Path:
    """`llama3.2-1b-safetensors` in the current folder: the store is no place for an output."""
    name = origin.removeprefix("ollama://").rsplit("/", 1)[-1]
    return Path(f"{name.replace(':', '-')}-safetensors")


def _stores() -> list[Path]:
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named)]
    return [Path.home() / ".ollama" / "models", SERVICE_STORE]


def _manifest(name: str) -> Path | None:
    """The manifest of a model; names are the same in small and capital letters."""
    if not _NAME.fullmatch(name):
        return None
    path, _, tag = name.partition(":") if "/" not in name else _rpartition_tag(name)
    parts = path.split("/")
    full = [*(HOST, NAMESPACE)[: 3 - len(parts)], *parts, tag or TAG]
    for store in _stores():
        found = store / "manifests"
        for part in full:
            found = _child(found, part)
        if _is_file(found):
            return found
    return None


def _rpartition_tag(name: str) -> tuple[str, str, str]:
    head, slash, last = name.rpartition("/")
    model, colon, tag = last.partition(":")
    return head + slash + model, colon, tag


def _child(folder: Path, name: str) -> Path:
    """The entry of a folder, whatever its letters' case."""
    try:
        return next((p for p in folder.iterdir() if p.name.lower() == name.lower()), folder / name)
    except OSError:
        return folder / name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _manifests(store: Path) -> Iterator[Path]:
    yield from (path for path in sorted((store / "manifests").rglob("*")) if path.is_file())


def _read(path: Path) -> list[dict[str, Any]]:
    """The layers of a manifest."""
    try:
        layers = json.loads(path.read_text(encoding="utf-8"))["layers"]
        if all(isinstance(layer, dict) for layer in layers):
            return list(layers)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
        raise SourceError(
            f"{path}: not a manifest of ollama's ({type(err).__name__})", hint="ollama pull it again"
        ) from err
    raise SourceError(f"{path}: not a manifest of ollama's", hint="ollama pull it again")


def _weights(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [layer for layer in layers if layer.get("mediaType") == f"{_LAYER}model"]
    return [layer for layer in found if _BLOB.fullmatch(str(layer.get("digest")))]


def _origin(store: Path, manifest: Path) -> str:
    """The shortest name that means this manifest."""
    *where, model, tag = manifest.relative_to(store / "manifests").parts
    if where and where[0] == HOST:
        where = where[1:]
        where = where[1:] if where == [NAMESPACE] else where
    return f"ollama://{'/'.join([*where, model])}:{tag}"


def _model(manifest: Path) -> Model:
    store = next(parent.parent for parent in manifest.parents if parent.name == "manifests")
    origin, layers = _origin(store, manifest), _read(manifest)
    kinds = {str(layer.get("mediaType", "")).removeprefix(_LAYER) for layer in layers}
    weights = _weights(layers)
    base = str(next((layer["from"] for layer in weights if layer.get("from")), ""))
    if "adapter" in kinds:
        raise SourceError(
            f"{origin} is an adapter over {base or 'another model'}: its own weights are only the difference",
            hint="merge the adapter first, or convert the model that it builds on",
        )
    if len(weights) > 1:
        raise SourceError(
            f"{origin} is stored in {len(weights)} layers of weights, which are no shards of one GGUF",
            hint="get the model as a GGUF from the Hub: gguf2st convert org/repo:QUANT",
        )
    if not weights:
        what = "as single tensors" if "tensor" in kinds else "without weights: it runs elsewhere"
        raise SourceError(f"{origin} is stored {what}, not as a GGUF", hint="get the model as a GGUF from the Hub")
    digest = str(weights[0]["digest"])
    blob = next((p for s in "-:" if _is_file(p := store / "blobs" / digest.replace(":", s))), None)
    again = f"ollama pull {origin.removeprefix('ollama://')}"
    if blob is None:
        raise SourceError(f"{origin}: its weights {digest[:19]}... are not in {store / 'blobs'}", hint=again)
    if (size := weights[0].get("size")) and blob.stat().st_size != size:
        raise SourceError(f"{blob}: {blob.stat().st_size} bytes of {origin}'s {size}", hint=again)
    notes = ("the model's vision projector is left behind: text only",) if "projector" in kinds else ()
    return Model((str(blob),), default_output(origin), origin, notes=notes)


def _absent(name: str) -> SourceError:
    stores = [store for store in _stores() if (store / "manifests").is_dir()]
    if not stores:
        return SourceError(
            f"ollama://{name}: there is no store of ollama's in {' or '.join(map(str, _stores()))}",
            hint="set OLLAMA_MODELS to the folder that holds manifests/ and blobs/",
        )
    here = [_origin(store, path) for store in stores for path in _manifests(store)]
    return SourceError(
        f"ollama://{name}: no such model in {' or '.join(map(str, stores))}",
        hint=f"ollama pull {name}" + (", or take one of these" if here else ""),
        problems=shortened(here),
    )
