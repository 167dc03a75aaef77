"""Which decoder runs: numba on the CPU, or Triton on a CUDA device. Both give the same bits."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from gguf2st.errors import UsageError
from gguf2st.kernels import cpu

Decoder: TypeAlias = Callable[[str, str, npt.NDArray[np.uint8], npt.NDArray[Any]], None]
"""(ggml type, output dtype, blocks (n_blocks, nbytes) uint8, out (n_blocks, block)): decode into `out`."""


@runtime_checkable
class Backend(Protocol):
    """A decoder, and how it wants to be used. All methods are called from several threads at once."""

    @property
    def chunk_nbytes(self) -> int:
        """Output bytes to take from one tensor at a time."""

    @property
    def batch_nbytes(self) -> int:
        """Output bytes to collect, from several tensors, for one call of `decode`; 0: every chunk is a call."""

    def empty(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory to read blocks into and take values from; never zeroed, so that untouched pages cost nothing."""

    def decode(self, qtype: str, dtype: str, blocks: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> int:
        """Decode into `out`; returns how many values are NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Host:
    """A Backend of a function that decodes in ordinary memory."""

    function: Decoder
    chunk_nbytes: int
    batch_nbytes: int = 0

    def empty(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """See `Backend`."""
        return np.empty(nbytes, np.uint8)

    def decode(self, qtype: str, dtype: str, blocks: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> int:
        """See `Backend`."""
        self.function(qtype, dtype, blocks, out)
        return cpu.count_nonfinite(dtype, out)


def choose(device: str) -> tuple[str, tuple[str, ...]]:
    """What `auto` stands for here, and a note if a CUDA device lies idle. Imports no torch where there is no device.

    `cpu` and `cuda` stand for themselves.
    """
    if device != "auto":
        return device, ()
    if not _cuda_devices():
        return "cpu", ()
    missing = _missing()
    if missing is None:
        return "cuda", ()
    return "cpu", (f"decoded on the CPU although there is a CUDA device: {missing}",)


def decoder(device: str) -> Decoder | Backend:
    """The decoder for `cpu` or `cuda`, as `choose` gives them.

    Raises:
        UsageError: `cuda` without a device, Triton, or a torch that can use them.
    """
    if device == "cpu":
        return cpu.dequantize
    hint = "use --device cpu"
    if not _cuda_devices():
        raise UsageError("device cuda: the NVIDIA driver finds no device here, or there is no driver", hint=hint)
    if missing := _missing():
        raise UsageError(f"device cuda: {missing}", hint=f"install what is missing, or {hint}")
    from gguf2st.kernels.gpu_stream import Lanes

    return Lanes("cuda")


def _cuda_devices() -> int:
    """How many devices the NVIDIA driver offers this process; 0 without a driver. Takes microseconds without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def _missing() -> str | None:
    """What keeps Triton from running on a device that is there."""
    if find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA (see pytorch.org for one that is)"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} cannot use it (is the driver older than CUDA {torch.version.cuda}?)"
    return None


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
