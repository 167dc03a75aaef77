"""Blocks to decode: random bytes, every kind of scale, and what ggml's quantizers write."""

import numpy as np

from gguf2st.quants.layout import TYPES
from tests.oracle import ggml

_HALVES = np.array(
    # zeros, subnormals (smallest, 3, largest), smallest normal, one, odd mantissas, largest, infinity, NaN
    [0x0000, 0x0001, 0x0003, 0x03FF, 0x0400, 0x3C00, 0x2E66, 0x5155, 0x7BFF, 0x7C00, 0x7E00],
    "<u2",
)
_EDGES = np.concatenate([_HALVES, _HALVES | 0x8000])
KINDS = ("random", "scales", "quantized")


def _random(qtype: str, n: int) -> np.ndarray:
    seed = [TYPES[qtype].id, n]
    return np.random.default_rng(seed).integers(0, 256, (n, TYPES[qtype].nbytes), dtype=np.uint8)


def make(qtype: str, kind: str) -> np.ndarray:
    """(n_blocks, nbytes) uint8 of one of KINDS; for a plain type the same kinds of numbers."""
    layout = TYPES[qtype]
    if kind == "random":
        if layout.nbytes == 2 and layout.block == 1:  # every value there is
            return np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
        return _random(qtype, 4096 if layout.block == 1 else 256)
    if kind == "scales":
        blocks = _random(qtype, len(_EDGES) ** 2)
        if qtype in ("MXFP4", "NVFP4"):  # one-byte scales: all of them
            blocks[:256, 0] = np.arange(256)
        first, second = (x.ravel() for x in np.meshgrid(_EDGES, _EDGES))
        start = 0
        for field in layout.fields:
            if (field.nbytes, field.itemsize) == (2, 2):
                blocks[:, start : start + 2] = first.view(np.uint8).reshape(-1, 2)
                first, second = second, first
            start += field.nbytes
        return blocks
    x = np.random.default_rng(layout.id).standard_normal((48, layout.block)).astype(np.float32)
    x[0], x[1] = 0, -x[1]
    x[2:8] *= np.float32(1e-6)
    if qtype in ggml.PLAIN:
        return x.astype(ggml.PLAIN[qtype]).view(np.uint8)
    if qtype in ggml.SLOW_TO_QUANTIZE:
        return _random(qtype, 48)
    if qtype in ("Q8_1", "Q8_K"):
        return ggml.quantize_reference(layout.id, x)
    return ggml.quantize(layout.id, x)
