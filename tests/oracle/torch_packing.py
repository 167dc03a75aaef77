"""Packing in torch: the arithmetic of `gguf2st.schemes.search` written down once more, without a kernel.

Groups are rows here: codes and weights are (n_groups, group). Sums over the 32 weights of a group add halves (16 + 16,
then 8 + 8, ...), so that they round alike in every path.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gguf2st.quants.base import unpack
from gguf2st.quants.reference import AffineQuant, quant
from gguf2st.schemes import Packed, Scheme
from gguf2st.schemes.fp4 import Fp4
from gguf2st.schemes.integers import Integers
from gguf2st.schemes.lattice import Lattice, scale_offset
from gguf2st.schemes.search import KEEP, KEPT, PEAK_TRIALS, RANGE_TRIALS, SMALLEST

_GROUP = 32


class _Groups(NamedTuple):
    """What a packed weight holds: `scale * codes`, the zero point already taken off the codes."""

    codes: Tensor
    """(n_groups, group) float32 whole numbers"""
    scale: Tensor
    """(n_groups) float32 that the stored dtype represents"""
    zero: Tensor
    """(n_groups) float32 whole numbers"""
    error: Tensor
    """(n_groups) float32 or float64"""
    power: Tensor


def pack(scheme: Scheme, qtype: str, blocks: NDArray[np.uint8], n_rows: int, dtype: str) -> Packed:
    """What `scheme.pack` must give; `error` and `power` are sums in another order."""
    data = torch.from_numpy(blocks.copy())
    if isinstance(scheme, Integers):
        return _integers(scheme, qtype, data, n_rows, dtype)
    assert isinstance(scheme, Fp4)
    return _fp4(scheme, qtype, data)


def _integers(scheme: Integers, qtype: str, data: Tensor, n_rows: int, dtype: str) -> Packed:
    stored: torch.dtype = getattr(torch, dtype)
    lattice = scheme.lattice(qtype)
    if lattice is not None:
        groups = _exact(scheme, qtype, lattice, data, stored)
    else:
        groups = _searched(scheme, qtype, data, stored)
    half = 1 << scheme.bits - 1
    codes = groups.codes + (half if scheme.symmetric else groups.zero.unsqueeze(1))
    parts = {
        "_packed": _words(codes.reshape(n_rows, -1), scheme.bits),
        "_scale": groups.scale.to(stored),
    }
    if not scheme.symmetric:
        down = groups.zero.reshape(n_rows, -1).T
        parts["_zero_point"] = _whole(_words(down, scheme.bits)).view(torch.int32).T
    bad = ~(groups.error.isfinite() & groups.scale.isfinite())
    return Packed(
        {suffix: _bytes(part) for suffix, part in parts.items()},
        float(groups.error.double().sum()),
        float(groups.power.double().sum()),
        int(bad.sum()),
    )


def _fp4(scheme: Fp4, qtype: str, data: Tensor) -> Packed:
    kind = quant(qtype)
    fields = kind.split(data)
    if qtype == "MXFP4":
        codes = unpack(fields["qs"], 4, 16).reshape(-1, scheme.group)
        stored = fields["e"].reshape(-1)
        beyond = stored == 255
    else:
        codes = unpack(fields["qs"], 4, 8).reshape(-1, scheme.group)
        stored = fields["d"].reshape(-1)
        beyond = stored == 255
        stored = torch.where(stored & 127 == 127, 0, stored & 127)
    stored = torch.where(stored == 255, 0, stored)
    zeros = (codes & 7 == 0).all(1)
    finite = kind.dequantize(data).reshape(codes.shape).isfinite().all(1)
    parts = {scheme.codes: _words(codes, 4), scheme.scales: stored}
    bad = beyond & ~zeros | ~finite
    return Packed({suffix: _bytes(part) for suffix, part in parts.items()}, 0.0, 0.0, int(bad.sum()))


def _exact(scheme: Integers, qtype: str, lattice: Lattice, data: Tensor, stored: torch.dtype) -> _Groups:
    """Codes are what the decoder gives for `d = unit`; d becomes the scale."""
    at = scale_offset(qtype)
    d = data[:, at : at + 2].contiguous().view(torch.float16).squeeze(1).float() * lattice.unit
    data = data.clone()
    one = torch.tensor([lattice.unit], dtype=torch.float16)
    data[:, at : at + 2] = one.view(torch.uint8)
    codes = quant(qtype).dequantize(data).reshape(-1, scheme.group)
    wanted = d.repeat_interleave(lattice.group // scheme.group)
    scale = wanted.to(stored).float()
    squares = (codes.double() ** 2).sum(1)
    error = (wanted.double() - scale.double()) ** 2 * squares
    power = wanted.double() ** 2 * squares
    if stored != torch.bfloat16:
        power = torch.zeros_like(power)
    return _Groups(codes, scale, torch.full_like(scale, 1 << scheme.bits - 1), error, power)


def _searched(scheme: Integers, qtype: str, data: Tensor, stored: torch.dtype) -> _Groups:
    """The best codes and scales that the trials of `search` give."""
    kind = quant(qtype)
    w = kind.dequantize(data).reshape(-1, _GROUP)
    power = _sum(w * w)
    best = _Best(w, stored)
    search = torch.ones_like(power, dtype=torch.bool)
    top = torch.full_like(power, (1 << scheme.bits) - 1)
    low, high = w.amin(1), w.amax(1)
    if scheme.symmetric:
        zero = torch.full_like(power, 1 << scheme.bits - 1)
        if qtype in KEPT and issubclass(kind, AffineQuant):
            known = kind.decode(data).scale.reshape(-1)
            best.offer(known.to(stored).float(), _inverse(known), zero, top, search)
            search = ~(best.error <= power * KEEP)
        size, sign = torch.where(high > -low, high, -low), torch.where(high > -low, -1.0, 1.0)
        for trial in PEAK_TRIALS:
            scale = sign * _trial(size, trial, stored)
            best.offer(scale, _inverse(scale), zero, top, search)
    else:
        low, high = low.clamp(max=0), high.clamp(min=0)
        for trial in RANGE_TRIALS:
            scale = _trial(high - low, trial, stored)
            inverse = _inverse(scale)
            zero = torch.minimum((top / 2 - (high + low) * inverse * 0.5).round().clamp(min=0), top)
            best.offer(scale, inverse, zero, top, search)
    best.refine(top, search)
    return _Groups(best.codes(top), best.scale + 0.0, best.zero, best.error, power)


def _trial(size: Tensor, trial: tuple[float, float], stored: torch.dtype) -> Tensor:
    factor, addend = (torch.tensor(x, dtype=torch.float32) for x in trial)
    scale: Tensor = size * factor + addend
    return scale.to(stored).float()


class _Best:
    """The best candidate so far of every group. Codes go from `-zero` to `top - zero`."""

    def __init__(self, w: Tensor, stored: torch.dtype) -> None:
        self.w, self.stored = w, stored
        self.error = w.new_full((len(w),), torch.inf)
        self.scale, self.inverse, self.zero = (w.new_zeros(len(w)) for _ in range(3))

    def offer(self, scale: Tensor, inverse: Tensor, zero: Tensor, top: Tensor, where: Tensor) -> None:
        """Take a candidate in the groups of `where` in which its squared error is smaller."""
        left = self.w - scale.unsqueeze(1) * _codes(self.w, inverse, zero, top)
        error = _sum(left * left)
        better = where & (error < self.error)
        self.error = torch.where(better, error, self.error)
        self.scale = torch.where(better, scale, self.scale)
        self.inverse = torch.where(better, inverse, self.inverse)
        self.zero = torch.where(better, zero, self.zero)

    def codes(self, top: Tensor) -> Tensor:
        """(n_groups, 32) of the best."""
        return _codes(self.w, self.inverse, self.zero, top)

    def refine(self, top: Tensor, where: Tensor) -> None:
        """Offer the scale that suits the codes best, where there are any."""
        codes = self.codes(top)
        squares = _sum(codes * codes)
        fitted = torch.where(squares > 0, _sum(self.w * codes) / squares, 0).to(self.stored).float()
        self.offer(fitted, _inverse(fitted), self.zero, top, where & self.error.isfinite())


def _codes(w: Tensor, inverse: Tensor, zero: Tensor, top: Tensor) -> Tensor:
    codes = (w * inverse.unsqueeze(1)).round()
    return torch.minimum(torch.maximum(codes, -zero.unsqueeze(1)), (top - zero).unsqueeze(1))


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale.abs() >= SMALLEST, 1 / scale, 0)


def _sum(x: Tensor) -> Tensor:
    """(n_groups, 32) -> (n_groups)."""
    for n in (16, 8, 4, 2, 1):
        x = x[:, :n] + x[:, n:]
    return x.squeeze(1)


def _words(codes: Tensor, bits: int) -> Tensor:
    """(rows, n) unsigned whole numbers -> (rows, bytes) uint8 of 32-bit words, the first code in the lowest bits."""
    u8 = codes.to(torch.uint8)
    u8 = torch.nn.functional.pad(u8, (0, -u8.shape[1] % (32 // bits)))
    return u8 if bits == 8 else u8[:, 0::2] | u8[:, 1::2] << 4


def _bytes(part: Tensor) -> NDArray[np.uint8]:
    return _whole(part).reshape(-1).view(torch.uint8).numpy()


def _whole(part: Tensor) -> Tensor:
    """A copy whose strides are those of a new tensor, even along axes of one."""
    return part.clone(memory_format=torch.contiguous_format)
