"""Packing on a CUDA device: Triton kernels, the same bytes and losses as `gguf2st.kernels.cpu_pack`.

A `Packer` says what memory a batch of blocks takes on the device, and starts the kernels on it: one launch of each,
for however many weights. Sums and counts are those of each weight's own rows, so the device
gives them per group, and the CPU adds them up in the order in which it always does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gguf2st.kernels import cpu_pack, gpu
from gguf2st.kernels import gpu_pack_bodies as bodies
from gguf2st.quants.layout import TYPES
from gguf2st.schemes.base import Packed, Scheme, not_a_target
from gguf2st.schemes.fp4 import Fp4
from gguf2st.schemes.integers import Integers
from gguf2st.schemes.lattice import LATTICES, scale_offset
from gguf2st.schemes.search import KEEP, KEPT, PEAK_TRIALS, RANGE_TRIALS

Bytes = npt.NDArray[np.uint8]
Memory: TypeAlias = dict[str, tuple[torch.dtype, int]]
"""Name of a buffer -> (element type, elements per block)."""
Buffers: TypeAlias = dict[str, Tensor]
"""Name -> (n_blocks, elements) in device memory."""

THREADS = 32 * gpu.WARPS
"""Of a program, each of which gets a group, a block, or 16 bytes to write."""

_INNER = frozenset({"values", "exact", "known"})


@dataclass(frozen=True, slots=True)
class Packer:
    """How blocks of a type become a scheme's parts on a device.

    Attributes:
        memory: what it needs beside the blocks.
        launch: starts the kernels on the current stream. Its buffers, `blocks` (n_blocks, nbytes) uint8 among them, are
            contiguous and 16-byte aligned. It may overwrite any but `known`, which `cpu_pack.known_scales` fills.
        packed: `packed(results, n_rows)` of some rows, (n_blocks, bytes) uint8 each.
    """

    memory: Memory
    launch: Callable[[Buffers], None]
    packed: Callable[[Mapping[str, Bytes], int], Packed]

    @property
    def results(self) -> tuple[str, ...]:
        """Buffers that come back."""
        return tuple(name for name in self.memory if name not in _INNER)

    def nbytes(self, name: str) -> int:
        """Of a buffer, per block."""
        dtype, elements = self.memory[name]
        return dtype.itemsize * elements


def packer(scheme: Scheme, qtype: str, dtype: str) -> Packer:
    """How blocks of a type become a scheme, with scales of a dtype.

    Raises:
        SchemeError: the type cannot become this scheme.
    """
    if isinstance(scheme, Integers):
        return _searched(scheme, qtype, dtype) if scheme.lattice(qtype) is None else _exact(scheme, qtype, dtype)
    if not isinstance(scheme, Fp4) or qtype != scheme.source:
        raise not_a_target(qtype, scheme.name)
    return _fp4(scheme, qtype)


def _exact(scheme: Integers, qtype: str, dtype: str) -> Packer:
    """The scale of a block becomes the scales of its groups, and what a scale of 1 decodes to the codes."""
    layout, lattice, rounds = TYPES[qtype], LATTICES[qtype], dtype == "bfloat16"
    groups = layout.block // scheme.group
    memory: Memory = {
        "values": (torch.int16, layout.block),
        "exact": (torch.float32, 1),
        "packed": (torch.int32, layout.block * scheme.bits // 32),
        "scales": (gpu.ELEMENT[dtype], groups),
        "bad": (torch.uint8, groups),
    }
    if rounds:
        memory |= {"errors": (torch.float64, 1), "powers": (torch.float64, 1)}

    def launch(buffers: Buffers) -> None:
        blocks = buffers["blocks"]
        n = len(blocks)
        bodies.take_scales[(_ceil(n, THREADS),)](
            blocks,
            buffers["scales"],
            buffers["exact"],
            buffers["bad"],
            n,
            NBYTES=layout.nbytes,
            AT=scale_offset(qtype),
            UNIT=lattice.unit,
            REPEATS=groups,
            BLOCKS=THREADS,
            **gpu.OPTIONS,
        )
        gpu.dequantize(qtype, "bfloat16", blocks, buffers["values"])
        runs = n * layout.block // 8
        bodies.code_words[(_ceil(runs, THREADS),)](
            buffers["values"], buffers["packed"], runs, BITS=scheme.bits, RUNS=THREADS, **gpu.OPTIONS
        )
        if rounds:
            tile = 32 * THREADS // layout.block
            bodies.scale_errors[(_ceil(n, tile),)](
                buffers["values"],
                buffers["exact"],
                buffers["scales"],
                buffers["errors"],
                buffers["powers"],
                n,
                BLOCK=layout.block,
                BLOCKS=tile,
                **gpu.OPTIONS,
            )

    def packed(found: Mapping[str, Bytes], n_rows: int) -> Packed:
        zeros = None if scheme.symmetric else np.full(found["bad"].size, 1 << scheme.bits - 1, np.uint8)
        return _integers(found, n_rows, zeros, np.float64)

    return Packer(memory, launch, packed)


def _searched(scheme: Integers, qtype: str, dtype: str) -> Packer:
    """The weights in float32, then the best scales and codes for them."""
    layout = TYPES[qtype]
    groups = layout.block // cpu_pack.GROUP
    keeps = scheme.symmetric and qtype in KEPT
    memory: Memory = {
        "values": (torch.float32, layout.block),
        "packed": (torch.int32, layout.block * scheme.bits // 32),
        "scales": (gpu.ELEMENT[dtype], groups),
        "errors": (torch.float32, groups),
        "powers": (torch.float32, groups),
        "bad": (torch.uint8, groups),
    }
    if keeps:
        memory["known"] = (torch.float32, groups)
    if not scheme.symmetric:
        memory["zeros"] = (torch.uint8, groups)

    def launch(buffers: Buffers) -> None:
        blocks = buffers["blocks"]
        gpu.dequantize(qtype, "float32", blocks, buffers["values"])
        n = len(blocks) * groups
        trials = _trials(scheme.symmetric, blocks.device)
        bodies.searched[(_ceil(n, THREADS),)](
            buffers["values"],
            buffers["known"] if keeps else buffers["values"],
            trials,
            buffers["packed"],
            buffers["scales"],
            buffers["bad"] if scheme.symmetric else buffers["zeros"],
            buffers["errors"],
            buffers["powers"],
            buffers["bad"],
            n,
            N_TRIALS=len(trials) // 2,
            KEEP=KEEP if keeps else 0.0,
            SYMMETRIC=scheme.symmetric,
            BITS=scheme.bits,
            GROUPS=THREADS,
            **gpu.OPTIONS,
        )

    def packed(found: Mapping[str, Bytes], n_rows: int) -> Packed:
        return _integers(found, n_rows, found.get("zeros"), np.float32)

    return Packer(memory, launch, packed)


def _integers(found: Mapping[str, Bytes], n_rows: int, zeros: Bytes | None, real: type[np.floating[Any]]) -> Packed:
    parts = {"_packed": found["packed"].reshape(-1), "_scale": found["scales"].reshape(-1)}
    if zeros is not None:
        parts["_zero_point"] = cpu_pack.down(zeros, n_rows)
    error, power = 0.0, 0.0
    if "errors" in found:
        error, power = cpu_pack.added_up(*(found[name].reshape(-1).view(real) for name in ("errors", "powers")))
    return Packed(parts, error, power, int(np.count_nonzero(found["bad"])))


def _fp4(scheme: Fp4, qtype: str) -> Packer:
    """Nibbles in order, and scales."""
    layout = TYPES[qtype]
    groups, n_codes = layout.block // scheme.group, layout.block // 2
    memory: Memory = {"packed": (torch.uint8, n_codes), "scales": (torch.uint8, groups), "bad": (torch.uint8, groups)}

    def launch(buffers: Buffers) -> None:
        blocks = buffers["blocks"]
        tile = 16 * THREADS // n_codes
        bodies.fp4[(_ceil(len(blocks), tile),)](
            blocks,
            buffers["packed"],
            buffers["scales"],
            buffers["bad"],
            len(blocks),
            NBYTES=layout.nbytes,
            GROUPS=groups,
            HALF=scheme.group // 2,
            E8M0=qtype == "MXFP4",
            BLOCKS=tile,
            **gpu.OPTIONS,
        )

    def packed(found: Mapping[str, Bytes], n_rows: int) -> Packed:
        parts = {scheme.codes: found["packed"].reshape(-1), scheme.scales: found["scales"].reshape(-1)}
        return Packed(parts, 0.0, 0.0, int(np.count_nonzero(found["bad"])))

    return Packer(memory, launch, packed)


@cache
def _trials(symmetric: bool, device: torch.device) -> Tensor:
    """Factors, then addends, float32."""
    trials = np.array(PEAK_TRIALS if symmetric else RANGE_TRIALS, np.float32)
    return torch.tensor(trials.T.reshape(-1), device=device)


def _ceil(n: int, step: int) -> int:
    return -(-n // step)
