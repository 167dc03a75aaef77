"""Decode blocks on a CUDA device: Triton kernels, the same bits as `gguf2st.kernels.cpu`.

One launch decodes a batch of blocks of one type, from however many tensors. Everything runs on the current stream of
the current device, which must be that of the tensors.
Under TRITON_INTERPRET=1 the same kernels run on CPU tensors.
"""

import subprocess
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gguf2st.errors import UsageError
from gguf2st.kernels.cpu import EXPONENTS, SAME_BITS
from gguf2st.quants.codebooks import table
from gguf2st.quants.layout import TYPES, undecodable

try:
    from triton.errors import TritonError

    from gguf2st.kernels import gpu_bodies, gpu_codebooks  # noqa: F401  (they register the bodies)
    from gguf2st.kernels.gpu_access import BODIES
except ModuleNotFoundError as err:
    if (err.name or "").partition(".")[0] != "triton":
        raise
    raise UsageError(
        "device cuda needs Triton, which is not installed",
        hint="pip install triton (torch's own CUDA builds for Linux bring it), or use --device cpu",
    ) from err

WARPS = 8
"""Per program."""
ELEMENTS = 2048
"""Values per program, for the kernels that know no blocks."""

_PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.uint16,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""Types without a block -> what their bytes are viewed as; bits, in the case of bfloat16."""

QTYPES: frozenset[str] = frozenset(BODIES) | frozenset(_PLAIN)
"""ggml types with a kernel."""

ELEMENT = {"float32": torch.float32, "bfloat16": torch.int16, "float16": torch.float16}
"""Output dtype -> element type of the pointer that a kernel gets (see `gpu_access`)."""

OPTIONS: dict[str, Any] = {"num_warps": WARPS, "enable_fp_fusion": False}
"""Of every launch. Without fusion, because `d * q - m` rounds twice, as ggml does."""

FAILURES: tuple[type[Exception], ...] = (
    TritonError,
    RuntimeError,
    OSError,
    AssertionError,
    subprocess.SubprocessError,
)
"""What launches and copies raise that is no mistake of the caller's: CUDA's own errors, and what Triton says of code
that it cannot compile, its cache folder, the C compiler that it calls once, or the driver's library."""


def dequantize(qtype: str, dtype: str, blocks: Tensor, out: Tensor) -> None:
    """Decode `blocks` into `out`, each value rounded once from ggml's float32 to nearest even.

    Args:
        qtype: ggml type name, one of `QTYPES`.
        dtype: "float32", or "bfloat16" / "float16" whose bits go into 16-bit integers.
        blocks: (n_blocks, nbytes) uint8, contiguous, 16-byte aligned.
        out: (n_blocks, block) float32, or int16 or uint16; contiguous, 16-byte aligned, same device; overwritten.

    Raises:
        SchemeError: no kernel for `qtype`.
        ValueError: an unknown `dtype`, or a tensor of another shape, element type or layout.
    """
    if qtype not in QTYPES:
        raise undecodable(qtype)
    layout = TYPES[qtype]
    n_blocks = len(blocks)
    _check("blocks", blocks, (n_blocks, layout.nbytes), (torch.uint8,))
    _check("out", out, (n_blocks, layout.block), _bits(dtype))
    if n_blocks == 0:
        return
    values = out.view(ELEMENT[dtype])
    if (qtype, dtype) in SAME_BITS:
        out.view(torch.uint8).copy_(blocks)
    elif qtype in _PLAIN:
        numbers = blocks.view(_PLAIN[qtype])
        gpu_bodies.plain[(_ceil(n_blocks, ELEMENTS),)](numbers, values, n_blocks, ELEMENTS=ELEMENTS, **OPTIONS)
    else:
        tables = (_on_device(name, blocks.device) for name in BODIES[qtype].tables)
        n_tile = tile_blocks(qtype, dtype)
        kernel = BODIES[qtype].kernel[(_ceil(n_blocks, n_tile),)]
        kernel(blocks, values, n_blocks, *tables, BLOCKS=n_tile, **OPTIONS)


def tile_blocks(qtype: str, dtype: str) -> int:
    """Blocks per program: what its threads store with one instruction of 16 bytes each, or less."""
    width = min(BODIES[qtype].width, 16 // ELEMENT[dtype].itemsize)
    return 32 * WARPS * width // TYPES[qtype].block


def count_nonfinite(dtype: str, out: Tensor) -> Tensor:
    """How many values are NaN or infinite -> (1,) int64 on the device of `out`; does not wait for it.

    Args:
        dtype: as in `dequantize`.
        out: any shape, contiguous; float32, or int16 or uint16.

    Raises:
        ValueError: an unknown `dtype`, or a tensor of another element type or layout.
    """
    _check("out", out, out.shape, _bits(dtype))
    count = torch.zeros(1, dtype=torch.int64, device=out.device)
    if out.numel():
        bits = out.view(torch.int32 if dtype == "float32" else torch.int16)
        grid = (_ceil(out.numel(), ELEMENTS),)
        gpu_bodies.count_masked[grid](bits, count, out.numel(), EXPONENT=EXPONENTS[dtype], ELEMENTS=ELEMENTS, **OPTIONS)
    return count


def failure(err: Exception) -> str:
    """One of FAILURES in a few words."""
    if isinstance(err, subprocess.CalledProcessError):
        return "the C compiler that Triton calls failed (Python's headers are in the package python3-dev)"
    if isinstance(err, OSError) and err.filename is not None:
        return f"{err.filename}: {err.strerror} (Triton's cache is in TRITON_CACHE_DIR, or ~/.triton)"
    return str(err).strip().partition("\n")[0] or type(err).__name__


def _bits(dtype: str) -> tuple[torch.dtype, ...]:
    """Element types that a caller may give an output of `dtype`."""
    if dtype not in ELEMENT:
        raise ValueError(f"no kernel writes {dtype!r}; available: {', '.join(ELEMENT)}")
    return (torch.float32,) if dtype == "float32" else (torch.int16, torch.uint16)


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    fits = tensor.shape == shape and tensor.dtype in dtypes and tensor.is_contiguous()
    if not fits or tensor.data_ptr() % 16:
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} at {tensor.data_ptr():#x}, expected contiguous, 16-byte "
            f"aligned {' or '.join(map(str, dtypes))} {tuple(shape)}"
        )


@cache
def _on_device(name: str, device: torch.device) -> Any:
    """A table of `gguf2st.quants.codebooks` as a tensor."""
    return torch.tensor(table(name), device=device)


def _ceil(n: int, step: int) -> int:
    return -(-n // step)
