"""ollama's local store, laid out as ollama 0.x does: manifests in folders named by host, namespace and model."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from gguf2st import api
from gguf2st.errors import SourceError
from gguf2st.source import locate
from tests.make_gguf import tiny_llama

MODEL = "application/vnd.ollama.image.model"


class Store:
    """A store to fill."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs").mkdir(parents=True)

    def blob(self, content: bytes) -> Path:
        path = self.root / "blobs" / f"sha256-{hashlib.sha256(content).hexdigest()}"
        path.write_bytes(content)
        return path

    def layer(self, kind: str, content: bytes, **more: Any) -> dict[str, Any]:
        digest = self.blob(content).name.replace("-", ":")
        return {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": len(content), **more}

    def manifest(self, name: str, *layers: dict[str, Any]) -> Path:
        path = self.root / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        config = {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "digest": "sha256:" + "0" * 64,
            "size": 9,
        }
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        path.write_text(json.dumps({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": list(layers)}))
        return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "store")


@pytest.fixture
def gguf(tmp_path: Path) -> bytes:
    return tiny_llama(tmp_path / "tiny.gguf").read_bytes()


def error(src: str | Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        locate(src)
    return caught.value


@pytest.mark.parametrize(
    ("manifest", "names", "origin", "output"),
    [
        (
            "registry.ollama.ai/library/llama3.2/1b",
            [
                "ollama://llama3.2:1b",
                "ollama:/llama3.2:1b",
                "llama3.2:1b",
                "ollama://LLaMA3.2:1B",
            ],
            "ollama://llama3.2:1b",
            "llama3.2-1b",
        ),
        (
            "registry.ollama.ai/library/tiny/latest",
            ["tiny", "ollama://tiny", "ollama://tiny:latest", "ollama://registry.ollama.ai/library/tiny:latest"],
            "ollama://tiny:latest",
            "tiny-latest",
        ),
        ("registry.ollama.ai/someone/tiny/v2", ["ollama://someone/tiny:v2"], "ollama://someone/tiny:v2", "tiny-v2"),
        (
            "hf.co/org/Tiny-GGUF/Q4_K_M",
            ["ollama://hf.co/org/Tiny-GGUF:Q4_K_M", "ollama://hf.co/org/tiny-gguf:q4_k_m"],
            "ollama://hf.co/org/Tiny-GGUF:Q4_K_M",
            "Tiny-GGUF-Q4_K_M",
        ),
        ("localhost:5000/a/b/c", ["ollama://localhost:5000/a/b:c"], "ollama://localhost:5000/a/b:c", "b-c"),
    ],
)
def test_a_model_by_every_name(
    store: Store, gguf: bytes, manifest: str, names: list[str], origin: str, output: str
) -> None:
    others = (store.layer("template", b"{{ .Prompt }}"), store.layer("license", b"MIT"), store.layer("params", b"{}"))
    store.manifest(manifest, store.layer("model", gguf), *others)
    blob = store.blob(gguf)
    store.manifest("registry.ollama.ai/library/broken/latest").write_text("{")
    for name in [*names, str(blob), str(blob.relative_to(Path.cwd()))]:
        found = locate(name)
        assert [path.resolve() for path in found.paths] == [blob]
        assert (found.origin, found.output) == (origin, Path(f"{output}-safetensors"))


def test_a_model_is_converted_beside_nothing_of_the_store(store: Store, gguf: bytes, tmp_path: Path) -> None:
    store.manifest("registry.ollama.ai/library/tiny/1b", store.layer("model", gguf))
    before = sorted(store.root.rglob("*"))
    report = api.convert("ollama://tiny:1b", dtype="float32")
    assert (report.origin, report.output) == ("ollama://tiny:1b", "tiny-1b-safetensors")
    assert (tmp_path / "tiny-1b-safetensors/model.safetensors").is_file()
    assert sorted(store.root.rglob("*")) == before


def test_a_vision_projector_is_left_behind(store: Store, gguf: bytes) -> None:
    store.manifest("registry.ollama.ai/library/vl/7b", store.layer("model", gguf), store.layer("projector", b"GGUF"))
    assert "projector" in locate("ollama://vl:7b").notes[0]


def test_what_is_not_one_whole_gguf_is_refused(store: Store, gguf: bytes) -> None:
    base = store.layer("model", gguf, **{"from": "llama3.2"})
    at = "registry.ollama.ai/library"
    store.manifest(f"{at}/lora/latest", base, store.layer("adapter", b"GGUF adapter"))
    store.manifest(f"{at}/split/latest", base, store.layer("model", gguf + b"2"))
    store.manifest(f"{at}/mlx/latest", store.layer("tensor", b"1"), store.layer("tensor", b"2"))
    store.manifest(f"{at}/cloud/latest")
    assert "adapter over llama3.2" in error("ollama://lora").message
    assert "2 layers of weights" in error("ollama://split").message
    assert "as single tensors" in error("ollama://mlx").message
    assert "without weights" in error("ollama://cloud").message


def test_a_damaged_store(store: Store, gguf: bytes) -> None:
    at = "registry.ollama.ai/library"
    broken = store.manifest(f"{at}/broken/latest")
    broken.write_text("{")
    assert "not a manifest" in error("ollama://broken").message
    store.manifest(f"{at}/gone/latest", store.layer("model", gguf + b"x"))
    store.blob(gguf + b"x").unlink()
    assert "are not in" in error("ollama://gone").message
    assert error("ollama://gone").hint == "ollama pull gone:latest"
    store.manifest(f"{at}/half/latest", store.layer("model", gguf))
    store.blob(gguf).write_bytes(gguf[:1000])
    assert f"1000 bytes of ollama://half:latest's {len(gguf)}" in error("ollama://half").message
    assert "starts with" in error(store.blob(b"\x93NUMPY")).message  # a layer of another kind


def test_absent_models_and_stores(store: Store, gguf: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "there is no store" in error("ollama://tiny").message
    store.manifest("registry.ollama.ai/library/tiny/1b", store.layer("model", gguf))
    for name in ("ollama://tiny:70b", "ollama://tiny"):
        assert error(name).problems == ("ollama://tiny:1b",)
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert "OLLAMA_MODELS" in error("ollama://tiny").hint
    store.root.rename(tmp_path / "moved")
    (tmp_path / "home/.ollama").mkdir(parents=True)
    (tmp_path / "moved").rename(tmp_path / "home/.ollama/models")
    assert locate("tiny:1b").origin == "ollama://tiny:1b"
