"""What decodes and packs: numba on the CPU, or Triton on a CUDA device. Both give the same bits."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from gguf2st.errors import DeviceError, UsageError
from gguf2st.kernels import cpu

if TYPE_CHECKING:
    from gguf2st.schemes import Packed, Scheme

Decoder: TypeAlias = Callable[[str, str, npt.NDArray[np.uint8], npt.NDArray[Any]], None]
"""(ggml type, output dtype, blocks (n_blocks, nbytes) uint8, out (n_blocks, block)): decode into `out`."""

_CUDA = "cuda"
"""torch's name of the device that is current: the first that CUDA_VISIBLE_DEVICES leaves."""
OLDEST_TRITON = (3, 6)
"""That of torch 2.10. In those before it, `tl.div_rn` compiles to div.rn.ftz.f32, for which subnormal numbers are 0."""


@runtime_checkable
class Backend(Protocol):
    """What decodes and packs, and how it wants to be used. All methods are called from several threads at once."""

    @property
    def chunk_nbytes(self) -> int:
        """Output bytes to take from one tensor at a time, where it is decoded."""

    @property
    def batch_nbytes(self) -> int:
        """Output bytes to collect, from several tensors, for one call; 0: every chunk is a call.

        Packed weights count as if they were decoded.
        """

    def empty(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory to read blocks into and take values from; never zeroed, so that untouched pages cost nothing."""

    def decode(self, qtype: str, dtype: str, blocks: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> int:
        """Decode into `out`; returns how many values are NaN or infinite."""

    def pack(
        self,
        scheme: "Scheme",
        qtype: str,
        dtype: str,
        blocks: npt.NDArray[np.uint8],
        runs: Sequence[tuple[int, int]],
    ) -> "list[Packed]":
        """Rows of several weights -> what `scheme.pack` gives for those of each, to the last bit.

        Args:
            scheme, qtype, dtype: as for `Scheme.pack`.
            blocks: (n_blocks, nbytes), those of one weight after those of another.
            runs: (n_blocks, n_rows) of each weight.
        """


@dataclass(frozen=True, slots=True)
class Host:
    """A Backend of a function that decodes in ordinary memory. It packs with numba."""

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

    def pack(
        self,
        scheme: "Scheme",
        qtype: str,
        dtype: str,
        blocks: npt.NDArray[np.uint8],
        runs: Sequence[tuple[int, int]],
    ) -> "list[Packed]":
        """See `Backend`."""
        parts = zip(slices(runs), runs, strict=True)
        return [scheme.pack(qtype, blocks[part], n_rows, dtype) for part, (_, n_rows) in parts]


def slices(runs: Sequence[tuple[int, int]]) -> list[slice]:
    """Which blocks are those of each of the runs of `Backend.pack`."""
    ends = accumulate(n_blocks for n_blocks, _ in runs)
    return [slice(end - n_blocks, end) for end, (n_blocks, _) in zip(ends, runs, strict=True)]


def choose(device: str) -> tuple[str, tuple[str, ...]]:
    """What `auto` stands for here, and a note if a CUDA device lies idle. Imports no torch where there is no device.

    `cpu` and `cuda` stand for themselves.
    """
    if device != "auto":
        return device, ()
    if not _cuda_devices():
        return "cpu", ()
    if missing := _missing() or _failing():
        return "cpu", (f"decoded on the CPU although there is a CUDA device: {missing}",)
    return "cuda", ()


def decoder(device: str) -> Decoder | Backend:
    """The decoder for `cpu` or `cuda`, as `choose` gives them.

    Raises:
        UsageError: `cuda` without a device, Triton, or a torch that can use them.
        DeviceError: they are there, and do not work.
    """
    if device == "cpu":
        return cpu.dequantize
    hint = "use --device cpu"
    if not _cuda_devices():
        raise UsageError("device cuda: the NVIDIA driver finds no device here, or there is no driver", hint=hint)
    if missing := _missing():
        raise UsageError(f"device cuda: {missing}", hint=f"install what is missing, or {hint}")
    if failing := _failing():
        raise DeviceError(f"device cuda: {failing}", hint=f"see whether nvidia-smi shows it at rest, or {hint}")
    from gguf2st.kernels.gpu_stream import Lanes

    return Lanes(_CUDA)


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
    if (version := _triton_version())[:2] < OLDEST_TRITON:
        needed = ".".join(map(str, OLDEST_TRITON))
        return f"Triton {'.'.join(map(str, version))} is older than {needed}, which torch 2.10 brings"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA (see pytorch.org for one that is)"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} cannot use it (is the driver older than CUDA {torch.version.cuda}?)"
    return None


def _triton_version() -> tuple[int, ...]:
    from triton import __version__

    return tuple(int(number) for number in __version__.partition("+")[0].split(".")[:3] if number.isdecimal())


def _failing() -> str | None:
    """What fails in a first batch on a device that lacks nothing: memory that others hold, or Triton's first launch,
    which wants a C compiler, Python's headers and a folder to write to."""
    from gguf2st.kernels.gpu_stream import Lanes

    try:
        # 0x3C3C is a float16 scale of about 1, 0x3C a code.
        Lanes(_CUDA).decode("Q8_0", "bfloat16", np.full((64, 34), 0x3C, np.uint8), np.empty((64, 32), np.uint16))
    except DeviceError as err:
        return err.message.removeprefix(f"device {_CUDA}: ")
    return None
