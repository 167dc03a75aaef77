"""Batches through a CUDA device: host memory -> device -> kernel -> host memory, several batches at once.

The executor's threads read files, call `decode` or `pack`, and write files. A call holds one of a few lanes: a stream
and device memory of its own. While one lane copies in, another computes or copies out, and the threads beside them read
and write: the disk or the PCIe link is the limit. Device memory stays within `DEVICE_NBYTES`, however large a batch.

    thread 1   read | to device, kernel, to host | write
    thread 2          read | to device, kernel, to host | write
    thread 3                 read | to device, kernel, to host | write

The first batch of each kernel is computed on the CPU as well, and must come out with the same bits: drivers, compilers
and devices are many, and a wrong weight looks like any other.

Nothing here knows of tensors or files; given the device "cpu", it runs under TRITON_INTERPRET=1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gguf2st.errors import DeviceError
from gguf2st.kernels import cpu, cpu_pack, gpu, gpu_pack
from gguf2st.kernels.device import slices
from gguf2st.kernels.gpu_pack import Buffers, Memory
from gguf2st.quants.layout import TYPES
from gguf2st.schemes.base import Packed, Scheme

T = TypeVar("T")
HostRows: TypeAlias = dict[str, NDArray[np.uint8]]
"""Name -> (n_blocks, bytes per block) in host memory."""

DEVICE_NBYTES = 512 << 20
"""Device memory for batches. (CUDA itself and the kernels take a few hundred MB more.)"""
LANES = 4
"""One that copies in, one that decodes, one that copies out, and one that changes hands."""
BATCH_NBYTES = 16 << 20
"""Output bytes per launch: about half a millisecond of PCIe, far above the cost of launching."""

_ALIGNMENT = 256
_LAUNCHING = Lock()
"""A first launch compiles, and the compiler has options and caches of the whole process."""


@dataclass(frozen=True, slots=True)
class _Lane:
    stream: Any
    """torch.cuda.Stream, or None on the CPU."""
    memory: torch.Tensor
    """uint8; the blocks of a batch, then whatever becomes of them."""

    def current(self) -> AbstractContextManager[object]:
        """Makes its stream the current one, and the stream's device the current device, as Triton needs it."""
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

    def wait(self) -> None:
        """Until nothing that was started in it is under way."""
        if self.stream is not None:
            self.stream.synchronize()


class Lanes:
    """A `kernels.device.Backend` that decodes and packs on a torch device."""

    def __init__(self, device: str, *, device_nbytes: int = DEVICE_NBYTES, batch_nbytes: int = BATCH_NBYTES) -> None:
        """Reserve the device memory.

        Args:
            device: "cuda", "cuda:1", ...; "cpu" where Triton interprets.
            device_nbytes: for all lanes together.
            batch_nbytes: output bytes to collect for a launch.

        Raises:
            DeviceError: the device does not have that much memory free, or does not work.
        """
        self._device = device
        self.chunk_nbytes = self.batch_nbytes = batch_nbytes
        self._on_cuda = device != "cpu"
        self._lane_nbytes = device_nbytes // LANES
        self._lanes: SimpleQueue[_Lane] = SimpleQueue()
        self._checked: set[tuple[str, ...]] = set()
        """Kernels whose results were compared with the CPU's."""
        try:
            for _ in range(LANES):
                memory = torch.empty(self._lane_nbytes, dtype=torch.uint8, device=device)
                stream: Any = None
                if self._on_cuda:
                    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                    # The memory may have been another's, whose last work is not done yet.
                    stream.wait_stream(torch.cuda.current_stream(device))
                self._lanes.put(_Lane(stream, memory))
        except torch.OutOfMemoryError as err:
            raise DeviceError(
                f"device {device}: {device_nbytes:,} bytes of its memory are needed, and not free",
                hint="wait until others leave it some, or use --device cpu",
            ) from err
        except gpu.FAILURES as err:
            raise self._failed(err) from err

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory that the device reads and writes by itself, at full speed (page-locked), if there is any."""
        try:
            memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._on_cuda)
        except gpu.FAILURES:  # the system locks no more; any other memory is as good, and slower
            memory = torch.empty(nbytes, dtype=torch.uint8)
        array: NDArray[np.uint8] = memory.numpy()
        return array

    def decode(self, qtype: str, dtype: str, blocks: NDArray[np.uint8], out: NDArray[Any]) -> int:
        """Decode `blocks` into `out`; returns how many values are NaN or infinite. See `kernels.gpu.dequantize`.

        Any number of blocks: more than a lane holds go through it in parts. Any host memory; best from `empty`.

        Raises:
            SchemeError: no kernel for `qtype`.
            DeviceError: the device fails, or decodes otherwise than the CPU.
        """

        def launch(buffers: Buffers) -> torch.Tensor:
            gpu.dequantize(qtype, dtype, buffers["blocks"], buffers["values"])
            return gpu.count_nonfinite(dtype, buffers["values"])

        element = torch.float32 if dtype == "float32" else torch.int16
        memory = _blocks(qtype) | {"values": (element, TYPES[qtype].block)}
        results = {"values": out.view(np.uint8).reshape(len(out), out.itemsize * TYPES[qtype].block)}
        with self._lane() as lane:
            counts = self._through(lane, memory, {"blocks": blocks}, results, launch)
            # Reading the number waits for everything on the stream, the copies to `out` included.
            n_nonfinite = int(torch.cat(counts).sum()) if counts else 0
        # Where there are NaNs, whose bits may differ, the caller complains of them, or another batch comes.
        if not n_nonfinite and len(blocks) and (kernel := (qtype, dtype)) not in self._checked:
            wanted = np.empty_like(out)
            cpu.dequantize(qtype, dtype, blocks, wanted)
            self._check(kernel, np.array_equal(out.view(np.uint8), wanted.view(np.uint8)))
        return n_nonfinite

    def pack(
        self, scheme: Scheme, qtype: str, dtype: str, blocks: NDArray[np.uint8], runs: Sequence[tuple[int, int]]
    ) -> list[Packed]:
        """Pack rows of several weights, whose blocks lie one after the other. See `kernels.device.Backend`.

        Any number of blocks, from any host memory, as for `decode`.

        Raises:
            SchemeError, ValueError: as `schemes.Scheme.pack`.
            DeviceError: the device fails, or packs otherwise than the CPU.
        """
        packer = gpu_pack.packer(scheme, qtype, dtype)
        parts = slices(runs)
        for part, (_, n_rows) in zip(parts, runs, strict=True):
            scheme.require_rows(qtype, blocks[part], n_rows)
        given = {"blocks": blocks}
        if "known" in packer.memory:
            given["known"] = self._rows(len(blocks), packer.nbytes("known"))
            cpu_pack.known_scales(qtype, blocks, given["known"].reshape(-1).view(np.float32))
        results = {name: self._rows(len(blocks), packer.nbytes(name)) for name in packer.results}
        with self._lane() as lane:
            self._through(lane, _blocks(qtype) | packer.memory, given, results, packer.launch)
        packs = [
            packer.packed({name: result[part] for name, result in results.items()}, n_rows)
            for part, (_, n_rows) in zip(parts, runs, strict=True)
        ]
        if packs and not packs[0].bad and (kernel := (qtype, scheme.name, dtype)) not in self._checked:
            self._check(kernel, _same(packs[0], scheme.pack(qtype, blocks[parts[0]], runs[0][1], dtype)))
        return packs

    def _check(self, kernel: tuple[str, ...], same: bool) -> None:
        if not same:
            raise DeviceError(
                f"device {self._device}: {' -> '.join(kernel)} comes out otherwise than on the CPU",
                hint="use --device cpu; and please report it, with the device and the versions of torch and Triton",
            )
        self._checked.add(kernel)

    def _failed(self, err: Exception) -> DeviceError:
        hint = "the same command goes on from here; with --device cpu it needs no device"
        return DeviceError(f"device {self._device}: {gpu.failure(err)}", hint=hint)

    @contextmanager
    def _lane(self) -> Iterator[_Lane]:
        """A lane to oneself, whose stream is the current one. In the end, all that was started in it is done.

        Raises:
            DeviceError: the device fails.
        """
        lane = self._lanes.get()
        try:
            with lane.current():
                try:
                    yield lane
                finally:
                    lane.wait()  # whatever happened: others get the lane, and the host memory, next
        except gpu.FAILURES as err:
            raise self._failed(err) from err
        finally:
            self._lanes.put(lane)

    def _through(
        self, lane: _Lane, memory: Memory, given: HostRows, results: HostRows, launch: Callable[[Buffers], T]
    ) -> list[T]:
        """Copy what is `given` to the device, `launch` there, and copy the results back, as much as a lane holds at a
        time; what each launch returned. Does not wait.

        Args:
            memory: what a launch takes.
            given, results: some of it, (n_blocks, bytes).
        """
        n_blocks = len(given["blocks"])
        per_block = sum(dtype.itemsize * elements for dtype, elements in memory.values())
        step = max(1, (self._lane_nbytes - _ALIGNMENT * (len(memory) - 1)) // per_block)
        answers = []
        for start in range(0, n_blocks, step):
            part = slice(start, start + step)
            buffers = _carved(lane.memory, memory, min(step, n_blocks - start))
            for name, rows in given.items():
                buffers[name].view(torch.uint8).copy_(torch.from_numpy(rows[part]), non_blocking=True)
            with _LAUNCHING:
                answers.append(launch(buffers))
            for name, rows in results.items():
                torch.from_numpy(rows[part]).copy_(buffers[name].view(torch.uint8), non_blocking=True)
        return answers

    def _rows(self, n_blocks: int, nbytes: int) -> NDArray[np.uint8]:
        return self.empty(n_blocks * nbytes).reshape(n_blocks, nbytes)


def _same(found: Packed, wanted: Packed) -> bool:
    return (found.error, found.power, found.bad) == (wanted.error, wanted.power, wanted.bad) and all(
        np.array_equal(found.parts[suffix], part) for suffix, part in wanted.parts.items()
    )


def _blocks(qtype: str) -> Memory:
    return {"blocks": (torch.uint8, TYPES[qtype].nbytes)}


def _carved(memory: torch.Tensor, wanted: Memory, n_blocks: int) -> Buffers:
    """Buffers (n_blocks, elements), one after the other."""
    found, at = {}, 0
    for name, (dtype, elements) in wanted.items():
        stop = at + n_blocks * elements * dtype.itemsize
        found[name] = memory[at:stop].view(dtype).view(n_blocks, elements)
        at = -(-stop // _ALIGNMENT) * _ALIGNMENT
    return found
