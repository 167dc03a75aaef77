"""gpt-oss as ollama's library has had it since August 2025, before ggml had MXFP4: as today's file, once it is read."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import gguf2st
from gguf2st.errors import Gguf2stError
from gguf2st.header import read_header
from gguf2st.quants.nibbles import apart
from tests.make_gguf import quantize
from tests.oracle.rewrite import Metadata, Tensors, requantized
from tests.oracle.tiny import oracle_gguf
from tests.test_wild_ollama import CASES, as_ollama

pytestmark = pytest.mark.oracle


def _old_blocks(values: Any) -> Any:
    """MXFP4 as ollama wrote it in August 2025: the scale, then two neighbours in each byte."""
    blocks = quantize(np.asarray(values, np.float32), "MXFP4").reshape(-1, 17)
    numbers = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], 1)  # numbers 0 to 15, then 16 to 31
    return np.concatenate([blocks[:, :1], numbers[:, ::2] | numbers[:, 1::2] << 4], 1)


def _of_the_library(_metadata: Metadata, tensors: Tensors) -> None:
    """One tensor of gate and up, whose rows take turns, and one of query, key and value."""
    for name in [n for n in tensors if ".ffn_gate_exps." in n]:
        gate, up = tensors.pop(name), tensors.pop(name.replace("gate", "up"))
        axis = 1  # after that of the experts
        both = np.stack([gate, up], axis + 1).reshape(len(gate), -1, *gate.shape[2:])
        tensors[name.replace("gate", "gate_up")] = both
    for name in [n for n in tensors if ".attn_q." in n]:
        parts = [tensors.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
        tensors[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    for name in [n for n in tensors if n.endswith("_exps.weight")]:
        raw: Any = _old_blocks(tensors[name]).reshape(-1), "MXFP4", tensors[name].shape
        tensors[name] = raw


def _renumbered(path: Path) -> Path:
    """MXFP4 under the number 4, as ollama wrote it before ggml had it."""
    data = bytearray(path.read_bytes())
    for name in [n for n, source in read_header([path]).sources.items() if source.qtype == "MXFP4"]:
        at = data.index(name.encode()) + len(name) + 4 + 3 * 8
        assert data[at : at + 4] == b"\x27\0\0\0"
        data[at] = 4
    path.write_bytes(data)
    return path


def _require_the_bytes_of(path: Path, found: dict[str, torch.Tensor]) -> None:
    """Published checkpoints of gpt-oss have neighbours in a byte, as these files do: the bytes are the same."""
    for name, source in read_header([path]).sources.items():
        part = {"gate_up_exps": "gate_up_proj", "down_exps": "down_proj"}.get(name.split(".")[-2].removeprefix("ffn_"))
        if part and "weight" in name:
            blocks = np.fromfile(path, np.uint8, source.nbytes or 0, offset=source.offset).reshape(-1, 17)
            module = f"model.layers.{name.split('.')[1]}.mlp.experts.{part}"
            assert found[f"{module}_scales"].numpy().tobytes() == blocks[:, 0].tobytes()
            assert found[f"{module}_blocks"].numpy().tobytes() == blocks[:, 1:].tobytes()


def test_a_gpt_oss_of_ollamas_library_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    written = dataclasses.replace(CASES["gpt_oss"], edit=_of_the_library)
    path = _renumbered(as_ollama("gpt_oss", written, tmp_path / "o.gguf"))
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(Gguf2stError):
        gguf2st.convert(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_numbers_that_share_a_byte_come_apart() -> None:
    """Of one block written by hand: number n is n % 16, but the last four."""
    neighbours = bytes([121, *(2 * j % 16 | (2 * j + 1) % 16 << 4 for j in range(14)), 0x07, 0xF8])
    apart_by_16 = bytes([121, *range(0, 0x100, 0x11)])[:13] + bytes([0x7C, 0x0D, 0x8E, 0xFF])
    found = apart(np.frombuffer(neighbours * 2, np.uint8).reshape(2, 17))
    assert found.tolist() == [list(apart_by_16)] * 2


@pytest.mark.parametrize("repack", ["none", "exact"])
def test_the_gpt_oss_of_ollamas_library(repack: str, tmp_path: Path) -> None:
    plain = requantized(
        oracle_gguf("gpt_oss"), tmp_path / "a.gguf", lambda n: "MXFP4" if n.endswith("_exps.weight") else ""
    )
    written = dataclasses.replace(CASES["gpt_oss"], edit=_of_the_library)
    path = _renumbered(as_ollama("gpt_oss", written, tmp_path / "o.gguf"))
    header = read_header([path])
    layers = header.metadata["gpt-oss.block_count"]
    assert len(header.sources) == 13 * layers + 3  # as ollama's log counts: 471 of gpt-oss:120b, which has 36 layers
    for file, folder in ((plain, "a"), (path, "o")):
        gguf2st.convert(file, tmp_path / folder, repack=repack, dtype="float32" if repack == "none" else "bfloat16")
    found, wanted = (load_file(tmp_path / folder / "model.safetensors") for folder in "oa")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    if repack == "exact":
        _require_the_bytes_of(path, found)
    configs = [json.loads((tmp_path / folder / "config.json").read_text()) for folder in "oa"]
    assert configs[0] == configs[1]
    assert (configs[0].get("quantization_config") or {}).get("quant_method") == {"exact": "mxfp4"}.get(repack)
    gguf2st.verify(tmp_path / "o", against=path).require_ok()
