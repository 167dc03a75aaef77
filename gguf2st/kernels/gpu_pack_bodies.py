"""What Triton compiles for packing, a kernel per step: the bits of `cpu_pack_bodies`, which names the arithmetic.

Nothing here knows a ggml type. A type's own kernel decodes blocks into device memory first, to float32 weights for a
search, or to codes in bfloat16 where `take_scales` has put a 1 in the place of each block's scale. That costs each
weight at most 8 bytes of device memory traffic, little beside its byte or two on PCIe, and saves a kernel per type and
scheme.

A thread of `searched` has a group of 32 weights to itself, in registers, shaped [8, G, 4]: word, group, weight of the
word, so that its loads and stores are 16 bytes each and no sum leaves the thread. Sums add halves (16 + 16, then
8 + 8, ...), as everywhere else. Kernels must be launched with `enable_fp_fusion=False`.
"""

from typing import Any

import triton.language as tl

from gguf2st.kernels.gpu_access import bf16_bits, block_pointers, jit, store, u8

TINY = tl.constexpr(2.0**-126)
"""`schemes.search.SMALLEST`."""
ROUND = tl.constexpr(float(3 << 22))
"""Added and taken off again, it leaves the nearest whole number of anything below 2^22, and of anything above it a
number that is too large for a code as well."""


@jit
def halves(x: tl.tensor) -> tl.tensor:
    """[2 * N, ...] -> the sum of the first and the second half, [N, ...]."""
    pair = tl.reshape(x, [2, x.shape[0] // 2, x.shape[1], x.shape[2]])
    first, second = tl.split(tl.permute(pair, (1, 2, 3, 0)))
    return first + second


@jit
def total(x: tl.tensor) -> tl.tensor:
    """The sum over the 32 weights of a group: [8, G, 4] -> [G]."""
    x = halves(halves(halves(x)))  # [1, G, 4]: weights j, j + 4, ..., j + 28
    pair = tl.reshape(x, [x.shape[1], 2, 2])
    first, second = tl.split(tl.permute(pair, (0, 2, 1)))
    first, second = tl.split(first + second)
    return first + second


@jit
def rounded(p_scales: tl.tensor, x: tl.tensor) -> tl.tensor:
    """float32 -> what `store` leaves of it at `p_scales`, as float32."""
    if p_scales.dtype.element_ty == tl.int16:
        return (bf16_bits(x).to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(p_scales.dtype.element_ty).to(tl.float32)


@jit
def inverse_of(scale: tl.tensor) -> tl.tensor:
    """1 / scale, or 0 where that is no normal float32."""
    return tl.where(tl.abs(scale) >= TINY, tl.div_rn(1.0, scale), 0.0)


@jit
def codes_of(w: tl.tensor, inverse: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """The nearest codes of [low, high] -> [8, G, 4]; the others [G]."""
    code = w * inverse[None, :, None] + ROUND - ROUND
    return tl.minimum(tl.maximum(code, low[None, :, None]), high[None, :, None])


@jit
def residual(w: tl.tensor, scale: tl.tensor, inverse: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Sum of the squares of `weight - scale * code` -> [G]."""
    left = w - scale[None, :, None] * codes_of(w, inverse, low, high)
    return total(left * left)


@jit
def offered(
    w: tl.tensor,
    candidate: tl.tuple,
    low: tl.tensor,
    high: tl.tensor,
    where: tl.tensor,
    best: tl.tuple,
) -> Any:
    """Take a candidate (scale, inverse) in the groups of `where` in which its error is below the best one's.

    -> (where it is taken, the best (error, scale, inverse) now).
    """
    scale, inverse = candidate
    error = residual(w, scale, inverse, low, high)
    better = where & (error < best[0])
    now = tl.where(better, error, best[0]), tl.where(better, scale, best[1]), tl.where(better, inverse, best[2])
    return better, now


@jit
def words_of(codes: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Unsigned codes [8, G, 4] as int32 -> words, the first code in the lowest bits: [BITS / 4, G, 4]."""
    part = tl.sum(codes << BITS * tl.arange(0, 4)[None, None, :], axis=2)  # [8, G]: four codes
    if BITS == 4:
        part = tl.reshape(part, [4, 2, part.shape[1]])
        part = tl.sum(part << 16 * tl.arange(0, 2)[None, :, None], axis=1)  # [4, G]
    return tl.permute(tl.reshape(part, [BITS // 4, 4, part.shape[1]]), (0, 2, 1))


@jit
def searched(
    p_values: tl.tensor,
    p_known: tl.tensor,
    p_trials: tl.tensor,
    p_packed: tl.tensor,
    p_scales: tl.tensor,
    p_zeros: tl.tensor,
    p_errors: tl.tensor,
    p_powers: tl.tensor,
    p_bad: tl.tensor,
    n: tl.tensor,
    N_TRIALS: tl.constexpr,
    KEEP: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    BITS: tl.constexpr,
    GROUPS: tl.constexpr,
) -> None:
    """The best scale, and zero point, of each of `n` groups of float32 weights: `symmetric8` and `asymmetric4`.

    Args:
        p_known: a float32 scale per group that is tried before the search and ends it where the squared relative
            error is at most KEEP; not read for a KEEP of 0.
        p_trials: N_TRIALS factors, then as many addends, float32.
        p_packed: int32 words. p_zeros: a byte per group, if not SYMMETRIC.
        p_errors, p_powers: float32 per group. p_bad: a byte per group, 1 where there is no finite candidate.
    """
    first = tl.program_id(0).to(tl.int64) * GROUPS
    i_g = tl.arange(0, GROUPS)
    o_g = first + tl.minimum(i_g, (n - first - 1).to(tl.int32))  # past the end it is the last group again
    o_w = 4 * tl.arange(0, 8)[:, None, None] + tl.arange(0, 4)[None, None, :]
    w = tl.load(p_values + 32 * o_g[None, :, None] + o_w)  # [8, G, 4]
    least, most = tl.min(tl.min(w, axis=2), axis=0), tl.max(tl.max(w, axis=2), axis=0)
    power = total(w * w)
    none = tl.zeros([GROUPS], tl.float32)
    best = none + float("inf"), none, none  # error, scale, inverse
    search = none == 0
    if SYMMETRIC:
        zero = none + (1 << BITS - 1)
        if KEEP > 0:
            known = tl.load(p_known + o_g)
            candidate = rounded(p_scales, known), inverse_of(known)
            _, best = offered(w, candidate, -zero, zero - 1, search, best)
            search = ~(best[0] <= power * KEEP)
        size, sign = tl.where(most > -least, most, -least), tl.where(most > -least, -1.0, 1.0)
    else:
        zero = none
        least, most = tl.minimum(least, 0.0), tl.maximum(most, 0.0)
        size, sign = most - least, none + 1
    top = (1 << BITS) - 1.0
    for c in range(N_TRIALS):
        scale = sign * rounded(p_scales, size * tl.load(p_trials + c) + tl.load(p_trials + N_TRIALS + c))
        candidate = scale, inverse_of(scale)
        z = zero
        if not SYMMETRIC:
            middle = top * 0.5 - (most + least) * candidate[1] * 0.5
            z = tl.minimum(tl.maximum(middle + ROUND - ROUND, 0.0), top)
        better, best = offered(w, candidate, -z, top - z, search, best)
        zero = tl.where(better, z, zero)
    codes = codes_of(w, best[2], -zero, top - zero)
    squares = total(codes * codes)
    scale = rounded(p_scales, tl.where(squares > 0, tl.div_rn(total(w * codes), squares), 0.0))
    search &= best[0] < float("inf")
    _, best = offered(w, (scale, inverse_of(scale)), -zero, top - zero, search, best)
    error, scale, inverse = best
    unsigned = (codes_of(w, inverse, -zero, top - zero) + zero[None, :, None]).to(tl.int32)
    m_g = i_g < n - first
    o_g = first + i_g
    o_p = 4 * tl.arange(0, BITS // 4)[:, None, None] + tl.arange(0, 4)[None, None, :]
    tl.store(p_packed + BITS * o_g[None, :, None] + o_p, words_of(unsigned, BITS), mask=m_g[None, :, None])
    store(p_scales + o_g, scale + 0.0, m_g)  # never -0
    if not SYMMETRIC:
        tl.store(p_zeros + o_g, zero.to(tl.uint8), mask=m_g)
    tl.store(p_errors + o_g, error, mask=m_g)
    tl.store(p_powers + o_g, power, mask=m_g)
    tl.store(p_bad + o_g, (~(error < float("inf"))).to(tl.uint8), mask=m_g)


@jit
def take_scales(
    p_blocks: tl.tensor,
    p_scales: tl.tensor,
    p_exact: tl.tensor,
    p_bad: tl.tensor,
    n_blocks: tl.tensor,
    NBYTES: tl.constexpr,
    AT: tl.constexpr,
    UNIT: tl.constexpr,
    REPEATS: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Move the float16 at byte AT of every block to its REPEATS scales, and UNIT (1 or -1) into its place.

    Args:
        p_exact: the scale as float32, one per block.
        p_bad: a byte per scale, 1 where it is NaN or infinite.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    i_b = tl.arange(0, BLOCKS)
    m_b = i_b < n_blocks - first
    p_d = (p_blocks + NBYTES * (first + i_b) + AT).to(tl.pointer_type(tl.float16))
    d = tl.load(p_d, mask=m_b).to(tl.float32) * UNIT
    tl.store(p_d, tl.full([BLOCKS], UNIT, tl.float16), mask=m_b)
    tl.store(p_exact + first + i_b, d, mask=m_b)
    o_s = REPEATS * (first + i_b)[:, None] + tl.arange(0, REPEATS)[None, :]
    repeated = tl.broadcast_to(d[:, None], [BLOCKS, REPEATS])
    store(p_scales + o_s, repeated, m_b[:, None])
    tl.store(p_bad + o_s, (~(tl.abs(repeated) < float("inf"))).to(tl.uint8), mask=m_b[:, None])


@jit
def code_words(p_values: tl.tensor, p_packed: tl.tensor, n: tl.tensor, BITS: tl.constexpr, RUNS: tl.constexpr) -> None:
    """`n` runs of 8 whole numbers as bfloat16 bits, 2^(BITS - 1) added -> BITS / 4 words each."""
    first = tl.program_id(0).to(tl.int64) * RUNS
    i_r = tl.arange(0, RUNS)
    o_r = first + tl.minimum(i_r, (n - first - 1).to(tl.int32))
    codes = codes_at(p_values + 8 * o_r[:, None] + tl.arange(0, 8)[None, :]) + (1 << BITS - 1)  # [R, 8]
    codes = tl.reshape(codes, [RUNS, BITS // 4, 32 // BITS])
    words = tl.sum(codes << BITS * tl.arange(0, 32 // BITS)[None, None, :], axis=2)
    o_p = BITS // 4 * (first + i_r)[:, None] + tl.arange(0, BITS // 4)[None, :]
    tl.store(p_packed + o_p, words, mask=(i_r < n - first)[:, None])


@jit
def codes_at(p_values: tl.tensor) -> tl.tensor:
    """Whole numbers stored as bfloat16 bits, as int32."""
    return (tl.load(p_values).to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True).to(tl.int32)


@jit
def scale_errors(
    p_values: tl.tensor,
    p_exact: tl.tensor,
    p_scales: tl.tensor,
    p_errors: tl.tensor,
    p_powers: tl.tensor,
    n_blocks: tl.tensor,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """What rounding the scale of a block costs, and the squares of its weights, as float64."""
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    i_b = tl.arange(0, BLOCKS)
    o_b = first + tl.minimum(i_b, (n_blocks - first - 1).to(tl.int32))
    codes = codes_at(p_values + BLOCK * o_b[:, None] + tl.arange(0, BLOCK)[None, :])
    squares = tl.sum(codes * codes, axis=1).to(tl.float64)
    exact = tl.load(p_exact + o_b)
    left = exact.to(tl.float64) - rounded(p_scales, exact).to(tl.float64)
    exact64 = exact.to(tl.float64)
    m_b = i_b < n_blocks - first
    tl.store(p_errors + first + i_b, left * left * squares, mask=m_b)
    tl.store(p_powers + first + i_b, exact64 * exact64 * squares, mask=m_b)


@jit
def fp4(
    p_blocks: tl.tensor,
    p_packed: tl.tensor,
    p_scales: tl.tensor,
    p_bad: tl.tensor,
    n_blocks: tl.tensor,
    NBYTES: tl.constexpr,
    GROUPS: tl.constexpr,
    HALF: tl.constexpr,
    E8M0: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Blocks of GROUPS scale bytes and as many times HALF code bytes -> nibbles in order, scales, and bad groups.

    A code byte holds a weight of the first half of its group and one of the second. See `cpu_pack_bodies` for which
    scales are written otherwise, and which make a group bad.
    """
    p_b = block_pointers(p_blocks, n_blocks, NBYTES, BLOCKS)
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    i_b = tl.arange(0, BLOCKS)
    m_b = (i_b < n_blocks - first)[:, None]
    i_o = tl.arange(0, GROUPS * HALF)[None, :]
    p_q = p_b[:, None] + GROUPS + i_o // HALF * HALF + 2 * (i_o % (HALF // 2))  # two neighbours
    shift = 4 * (i_o % HALF // (HALF // 2))
    pair = u8(p_q) >> shift & 15 | (u8(p_q + 1) >> shift & 15) << 4
    tl.store(p_packed + GROUPS * HALF * (first + i_b)[:, None] + i_o, pair.to(tl.uint8), mask=m_b)
    i_g = tl.arange(0, GROUPS)[None, :]
    scale = u8(p_b[:, None] + i_g)  # [B, GROUPS]
    both = u8(p_b[:, None, None] + GROUPS + HALF * i_g[:, :, None] + tl.arange(0, HALF)[None, None, :])
    most = tl.max(tl.maximum(both & 7, both >> 4 & 7), axis=2)  # the largest magnitude
    if E8M0:
        bad = (scale >= 253) & (most >= tl.where(scale == 253, 6, tl.where(scale == 254, 4, 1)))
        scale = tl.where(scale == 255, 0, scale)
    else:
        bad = (scale == 255) & (most > 0)
        scale = tl.where(scale & 127 == 127, 0, scale & 127)
    o_s = GROUPS * (first + i_b)[:, None] + i_g
    tl.store(p_scales + o_s, scale.to(tl.uint8), mask=m_b)
    tl.store(p_bad + o_s, bad.to(tl.uint8), mask=m_b)
