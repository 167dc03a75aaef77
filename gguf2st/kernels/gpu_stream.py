"""Batches through a CUDA device: host memory -> device -> kernel -> host memory, several batches at once.

The executor's threads read files, call `decode`, and write files. A call holds one of a few lanes: a stream and device
memory of its own. While one lane copies in, another decodes or copies out, and the threads beside them read and write:
the disk or the PCIe link is the limit, and device memory stays within `DEVICE_NBYTES`, however large a batch.

    thread 1   read | to device, kernel, to host | write
    thread 2          read | to device, kernel, to host | write
    thread 3                 read | to device, kernel, to host | write

Nothing here knows of tensors or files; given the device "cpu", it runs under TRITON_INTERPRET=1.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gguf2st.errors import UsageError
from gguf2st.kernels import gpu
from gguf2st.quants.layout import TYPES

DEVICE_NBYTES = 512 << 20
"""Device memory for batches. (CUDA itself and the kernels take a few hundred MB more.)"""
LANES = 4
"""One that copies in, one that decodes, one that copies out, and one that changes hands."""
BATCH_NBYTES = 16 << 20
"""Output bytes per launch: about half a millisecond of PCIe, far above the cost of launching."""

_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class _Lane:
    stream: Any
    """torch.cuda.Stream, or None on the CPU."""
    memory: torch.Tensor
    """uint8; the blocks of a batch, then its values."""

    def current(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()


class Lanes:
    """A `kernels.device.Backend` that decodes on a torch device."""

    def __init__(self, device: str, *, device_nbytes: int = DEVICE_NBYTES, batch_nbytes: int = BATCH_NBYTES) -> None:
        """Reserve the device memory.

        Args:
            device: "cuda", "cuda:1", ...; "cpu" where Triton interprets.
            device_nbytes: for all lanes together.
            batch_nbytes: output bytes to collect for a launch.

        Raises:
            UsageError: the device does not have that much memory free.
        """
        self.chunk_nbytes = self.batch_nbytes = batch_nbytes
        self._on_cuda = device != "cpu"
        self._lane_nbytes = device_nbytes // LANES
        self._lanes: SimpleQueue[_Lane] = SimpleQueue()
        self._launching = Lock()
        try:
            for _ in range(LANES):
                memory = torch.empty(self._lane_nbytes, dtype=torch.uint8, device=device)
                stream: Any = torch.cuda.Stream(device) if self._on_cuda else None  # type: ignore[no-untyped-call]
                self._lanes.put(_Lane(stream, memory))
        except torch.OutOfMemoryError as err:
            raise UsageError(
                f"device {device} does not have {device_nbytes:,} bytes of memory free", hint="use --device cpu"
            ) from err

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory that the device reads and writes by itself, at full speed (page-locked)."""
        array: NDArray[np.uint8] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._on_cuda).numpy()
        return array

    def decode(self, qtype: str, dtype: str, blocks: NDArray[np.uint8], out: NDArray[Any]) -> int:
        """Decode `blocks` into `out`; returns how many values are NaN or infinite. See `kernels.gpu.dequantize`.

        Any number of blocks: more than a lane holds go through it in parts. Any host memory; best from `empty`.

        Raises:
            SchemeError: no kernel for `qtype`.
        """
        lane = self._lanes.get()
        try:
            with lane.current():
                step = self._fitting(qtype, out.itemsize)
                counts = [
                    self._part(lane, qtype, dtype, blocks[at : at + step], out[at : at + step])
                    for at in range(0, len(blocks), step)
                ]
                # Reading the number waits for everything on the stream, the copies to `out` included.
                return int(torch.cat(counts).sum()) if counts else 0
        finally:
            self._lanes.put(lane)

    def _part(self, lane: _Lane, qtype: str, dtype: str, blocks: NDArray[np.uint8], out: NDArray[Any]) -> torch.Tensor:
        start = _aligned(blocks.nbytes)
        packed = lane.memory[: blocks.nbytes].view(blocks.shape)
        host = torch.from_numpy(out if dtype == "float32" else out.view(np.int16))
        values = lane.memory[start : start + out.nbytes].view(host.dtype).view(out.shape)
        packed.copy_(torch.from_numpy(blocks), non_blocking=True)
        with self._launching:  # a first launch compiles, and the compiler has options of the whole process
            gpu.dequantize(qtype, dtype, packed, values)
            count = gpu.count_nonfinite(dtype, values)
        host.copy_(values, non_blocking=True)
        return count

    def _fitting(self, qtype: str, itemsize: int) -> int:
        """Blocks whose bytes and values fit a lane."""
        kind = TYPES[qtype]
        return max(1, (self._lane_nbytes - _ALIGNMENT) // (kind.nbytes + kind.block * itemsize))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
