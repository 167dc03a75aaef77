"""How 32 float32 weights become integers where no exact way exists: the arithmetic that every path follows.

    symmetric    |scale| = |peak| * f + addend for (f, addend) of PEAK_TRIALS, where the peak is the weight furthest
                 from zero and gets a negative code
    asymmetric   scale = (high - low) * f + addend for (f, addend) of RANGE_TRIALS, where low <= 0 <= high;
                 the zero point shares what is clipped among both ends

A scale is rounded to its stored dtype before codes are taken, so that its rounding costs next to nothing. Codes are the
nearest ones. The scale with the smallest squared error wins, the first of equals; in the end the scale that suits the
winner's codes best (least squares) gets its chance.

Measured relative rmse: int8_g32 of Q4_1, Q4_K and Q6_K weights 0.35, 0.35 and 0.39 % (with one candidate, 0.53 %);
int4_asym_g32 of Q4_1 and Q4_K weights 7.0 and 6.9 %, within 1 % of that of an exhaustive search (with one, 8 %).
"""

_STEP = 2.0**-24
"""The smallest float16. Scales of its size round by as much as they are; one that rounds up clips nothing."""

PEAK_TRIALS = (*((1 / k, 0.0) for k in range(128, 112, -1)), (1 / 113, _STEP))
"""(f, addend). One over f is the code that the peak gets: a whole number, because the peak of weights on a lattice is
one as well."""

RANGE_TRIALS = (*(((76 + 2 * i) / 1500, 0.0) for i in range(17)), (108 / 1500, _STEP))
"""(f, addend). 76 % to 108 % of the range, in fifteenths: some clipping pays off at 4 bits."""

SMALLEST = 2.0**-126
"""A scale below the normal float32 numbers has no inverse; its codes are 0."""

KEPT = frozenset({"IQ1_S", "IQ2_XXS", "IQ3_XXS", "IQ3_S", "IQ4_XS", "MXFP4"})
"""Types without a minimum and with a scale per 32 weights: int8_g32 keeps their codes and rounds the scale."""

KEEP = 2.0**-20
"""Squared relative error of a group up to which that will do. Above it (scales that are subnormal float16 numbers, or
any bfloat16 ones) the search goes on."""
