"""Which decoder runs: numba on the CPU, or the torch reference on a CUDA device. Both give the same bits."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gguf2st.errors import UsageError
from gguf2st.kernels import cpu

Decoder: TypeAlias = Callable[[str, str, npt.NDArray[np.uint8], npt.NDArray[Any]], None]
"""(ggml type, output dtype, blocks (n_blocks, nbytes) uint8, out (n_blocks, block)): decode into `out`."""


def decoder(device: str) -> Decoder:
    """The decoder for `auto`, `cpu` or `cuda`.

    `auto` is the CPU: its kernels outrun the disk, and torch on a CUDA device is there for completeness.

    Raises:
        UsageError: `cuda` without a CUDA device.
    """
    if device != "cuda":
        return cpu.dequantize
    import torch

    if not torch.cuda.is_available():
        raise UsageError("device cuda: torch finds no CUDA device here", hint="use --device cpu")
    return on_torch_device("cuda")


def on_torch_device(device: str) -> Decoder:
    """The torch reference decoders on any torch device, behind the signature of the CPU kernels."""
    import torch

    from gguf2st.quants.reference import QUANTS

    def decode(qtype: str, dtype: str, blocks: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        values = QUANTS[qtype].dequantize(torch.from_numpy(blocks).to(device))
        cast = values.to(getattr(torch, dtype)).cpu()
        bits = cast if dtype == "float32" else cast.view(torch.uint16)
        np.copyto(out, bits.numpy().reshape(out.shape))

    return decode
