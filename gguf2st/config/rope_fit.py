"""llama3 rope scaling, found again in what a GGUF holds of it: one divisor per rotary frequency, `rope_freqs.weight`.

llama.cpp's converter computes, for the wavelength w = 2 pi theta^(2j/dims) of frequency j:

    1 where w < original / high;  factor where w > original / low;
    else 1 / ((1 - s) / factor + s) with s = (original / w - low) / (high - low)

Multiplying `original`, `low` and `high` by one number changes nothing, so that low = 1, the value of every published
model, is no restriction as long as `original` stays whole. Between the two ends 1/divisor is linear in 1/w:

    1/divisor = 1/factor - (1 - 1/factor) / (high - 1) + original (1 - 1/factor) / (high - 1) / w

Two divisors between the ends give `original` and `high`. With fewer of them, or without a frequency that is divided by
`factor` itself, several settings give the same frequencies; then high = 4 is taken, as every published model has it.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gguf2st.header import shortest_float32

USUAL_HIGH = 4.0
TOLERANCES = (2e-7, 1.5e-6)
"""Of 1/divisor, the tight one first. The converter computes wavelengths in float32, which leaves 4e-7 of them open,
and `original / w / (high - 1)` as much of 1/divisor. One more or less in a context of 100,000 changes it by 3e-6."""


@dataclass(frozen=True, slots=True)
class Llama3:
    """Settings of llama3 scaling with low_freq_factor = 1.

    Attributes:
        unique: whether no other settings give the same frequencies.
    """

    factor: float
    original: int
    high: float
    unique: bool


def fit_llama3(divisors: Sequence[float], theta: float, dims: int, context_length: int) -> Llama3 | None:
    """The settings that give the divisors of `dims // 2` frequencies, or None when none do.

    Args:
        divisors: (dims // 2,), as in `rope_freqs.weight`.
        theta: rope base.
        dims: rotary dimensions of a head.
        context_length: of the model; a guess for `original` where the divisors leave it open.
    """
    if not all(math.isfinite(d) for d in divisors) or any(a > b for a, b in pairwise((1.0, *divisors))):
        return None
    waves = [2 * math.pi * theta ** (2 * j / dims) for j in range(dims // 2)]
    lengths = [n for n in (8192, context_length, *(2**k for k in range(20, 4, -1))) if n]
    candidates: list[Llama3] = []
    for guess in (_with_factor, _without_factor):
        with contextlib.suppress(ArithmeticError, ValueError):  # a line through numbers that no scaling gives
            candidates += guess(waves, divisors, lengths)
    return next((c for t in TOLERANCES for c in candidates if _gives(c, waves, divisors, t)), None)


def _gives(settings: Llama3, waves: Sequence[float], divisors: Sequence[float], tolerance: float) -> bool:
    """Whether the settings are possible and give the divisors."""
    if settings.factor <= 1.0 or settings.high <= 1.0 or settings.original < 1:
        return False
    predicted = llama3_divisors(settings, waves)
    return all(abs(1 / d - 1 / p) <= tolerance for d, p in zip(divisors, predicted, strict=True))


def llama3_divisors(settings: Llama3, waves: Sequence[float]) -> list[float]:
    """What the converter writes for frequencies of these wavelengths."""
    out = []
    for wave in waves:
        if wave < settings.original / settings.high:
            out.append(1.0)
        elif wave > settings.original:
            out.append(settings.factor)
        else:
            smooth = (settings.original / wave - 1) / (settings.high - 1)
            out.append(1 / ((1 - smooth) / settings.factor + smooth))
    return out


def _with_factor(waves: Sequence[float], divisors: Sequence[float], lengths: Sequence[int]) -> Iterator[Llama3]:
    """Settings worth trying where the last frequencies are divided by the factor itself."""
    factor = shortest_float32(divisors[-1])
    ones = [w for w, d in zip(waves, divisors, strict=True) if d == 1.0]
    inner = [(1 / w, 1 / d) for w, d in zip(waves, divisors, strict=True) if 1.0 < d < divisors[-1]]
    whole = [w for w, d in zip(waves, divisors, strict=True) if d == divisors[-1]]
    if len(inner) >= 2:  # two points on the line beside the factor
        slope, intercept = _line(inner)
        gap = (1 - 1 / factor) / (1 / factor - intercept)  # high - 1
        high = round(1 + gap, 3)
        original = slope * (high - 1) / (1 - 1 / factor)
        yield Llama3(factor, round(original), high, unique=True)
    elif inner:  # one point: `original` for any `high` that leaves its neighbours at the two ends
        x, y = inner[0]
        smooth = (y - 1 / factor) / (1 - 1 / factor)
        limit = 1 + (x * whole[0] - 1) / smooth
        if ones and x * ones[-1] > smooth:
            limit = min(limit, (1 - smooth) / (x * ones[-1] - smooth))
        fitted = round((smooth * (_high_below(limit) - 1) + 1) / x)
        for n in (fitted, *lengths):
            high = 1 + (n * x - 1) / smooth
            yield from (Llama3(factor, n, h, unique=False) for h in (round(high, 3), high))
    elif ones:  # a jump from 1 to the factor, anywhere between two wavelengths
        longest = math.floor(whole[0])
        yield from (Llama3(factor, n, USUAL_HIGH, unique=False) for n in lengths)
        yield Llama3(factor, longest, _high_below(longest / ones[-1]), unique=False)


def _without_factor(waves: Sequence[float], divisors: Sequence[float], lengths: Sequence[int]) -> Iterator[Llama3]:
    """Settings worth trying where no frequency is: `original` exceeds every wavelength."""
    points = [(1 / w, 1 / d) for w, d in zip(waves, divisors, strict=True) if d > 1.0]
    if len(points) >= 2:
        slope, intercept = _line(points)
        factor = shortest_float32(round(USUAL_HIGH / (1 + intercept * (USUAL_HIGH - 1)), 3))
        original = slope * (USUAL_HIGH - 1) / (1 - 1 / factor)
        yield Llama3(factor, round(original), USUAL_HIGH, unique=False)
    elif points:
        ((x, y),) = points
        for n in lengths:
            smooth = (n * x - 1) / (USUAL_HIGH - 1)
            if smooth < y:
                yield Llama3(round((1 - smooth) / (y - smooth), 3), n, USUAL_HIGH, unique=False)


def _high_below(limit: float) -> float:
    """The usual high_freq_factor, or one halfway between 1 and a limit that excludes it."""
    return (1 + min(limit, 2 * USUAL_HIGH - 1)) / 2


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and intercept of the line through the first and the last point."""
    (x0, y0), (x1, y1) = points[0], points[-1]
    slope = (y0 - y1) / (x0 - x1)
    return slope, y0 - slope * x0
