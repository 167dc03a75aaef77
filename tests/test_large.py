"""Many tensors, many experts, many conversions: small numbers here, large ones in `scripts/large_test.py`."""

import json
import subprocess
import sys
from pathlib import Path

from safetensors import safe_open

import gguf2st
from tests.growth import GROWTH_NBYTES
from tests.large_models import sparse_model

ROOT = Path(__file__).resolve().parent.parent

GROWTH = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from tests.growth import grown
print(json.dumps([asdict(held) for held in grown(Path(sys.argv[1]), 24, 2)]))
"""


def test_nothing_grows_over_many_conversions(tmp_path: Path) -> None:
    """In two threads of a process of their own, with verifications and failures among them."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, tmp_path], cwd=ROOT, check=True, capture_output=True, text=True
    )
    before, after = json.loads(done.stdout)
    assert (after["descriptors"], after["threads"]) == (before["descriptors"], before["threads"])
    assert after["nbytes"] - before["nbytes"] < GROWTH_NBYTES


def test_many_tensors(tmp_path: Path) -> None:
    source = sparse_model(tmp_path / "m.gguf", layers=300)
    assert len(gguf2st.open_gguf(source).sources) == 2702
    report = gguf2st.convert(source, tmp_path / "out", max_shard_size=2_000_000)
    assert report.tensors == 2702
    assert len(report.shards) == 3
    assert gguf2st.verify(tmp_path / "out", source).compared == report.parameters
    assert len(report.to_json()) < 10_000, "reports fold layers"


def test_512_experts(tmp_path: Path) -> None:
    source = sparse_model(tmp_path / "m.gguf", arch="qwen3moe", layers=1, experts=512)
    for repack in ("none", "exact"):
        out = tmp_path / repack
        report = gguf2st.convert(source, out, repack=repack)
        assert gguf2st.verify(out, source).ok
        with safe_open(out / "model.safetensors", framework="np") as shard:
            names = [name for name in shard.keys() if ".experts." in name]  # noqa: SIM118 - it is no dict
        assert len(names) == 512 * 3 * (1 if repack == "none" else 3)
        assert len(report.to_json()) < 10_000


def test_a_hole_is_a_model_too(tmp_path: Path) -> None:
    """What the large tests stand on: the file is as large as it says, and takes no room."""
    source = sparse_model(tmp_path / "m.gguf", layers=44, hidden=8192, heads=64, kv_heads=8, ffn=28672)
    status = source.stat()
    assert (status.st_size > 40e9, status.st_blocks * 512 < 1e6) == (True, True)
    report = gguf2st.convert(source, tmp_path / "out", dry_run=True)
    assert (report.tensors, report.output_nbytes) == (398, 75_302_551_552)
    assert len(report.shards) == 16, "of 5 GB at most"
