"""Which schemes a ggml type may become, and which of them hold the same numbers."""

from gguf2st.errors import UsageError
from gguf2st.quants.layout import TYPES
from gguf2st.schemes.base import Scheme
from gguf2st.schemes.fp4 import Fp4, GptOss, Nvfp4
from gguf2st.schemes.integers import Integers
from gguf2st.schemes.lattice import LATTICES, WITH_MINIMUM

MODES = ("none", "exact", "near", "int4")
"""What `--repack` may be: only equal numbers, also numbers within a bound, also 4 bits at a loss."""

_INT4, _INT4_LONG, _INT8, _INT4_ASYM = Integers(4, 32), Integers(4, 128), Integers(8, 32), Integers(4, 32, False)

SCHEMES: dict[str, Scheme] = {
    s.name: s
    for s in (
        _INT4,
        _INT4_LONG,
        _INT8,
        _INT4_ASYM,
        Fp4("mxfp4", "MXFP4", 32),
        Nvfp4("nvfp4", "NVFP4", 16),
        GptOss("gpt_oss_mxfp4", "MXFP4", 32),
    )
}
"""Every scheme by its name."""


def targets(mode: str, qtype: str) -> tuple[str, ...]:
    """The schemes that weights of a type may become in a mode, the best first; none: they are dequantized.

    `gpt_oss_mxfp4` is no general target: only one model has that layout.

    Raises:
        UsageError: no such mode.
    """
    if mode not in MODES:
        raise UsageError(f"no mode {mode!r} of repacking; available: {', '.join(MODES)}")
    if mode == "none" or TYPES[qtype].block == 1:
        return ()
    exact = [s for s in SCHEMES if s != "gpt_oss_mxfp4" and is_exact(qtype, s)]
    names = sorted(exact, key=_EXACT_ORDER.index)
    if mode == "int4":
        if qtype in WITH_MINIMUM:
            names.append("int4_asym_g32")
    elif "int4_asym_g32" in names:  # costs zero points and gains nothing, but next to weights that need them
        names.remove("int4_asym_g32")
    if mode != "exact" and "int8_g32" not in names:
        names.append("int8_g32")
    return tuple(names)


_EXACT_ORDER = ("mxfp4", "nvfp4", "int4_g128", "int4_g32", "int4_asym_g32", "int8_g32")


def is_exact(qtype: str, scheme: str, dtype: str = "float16", scale: float = 1.0) -> bool:
    """Whether a scheme whose scales have `dtype` holds the numbers of every weight of a type without rounding.

    A product of scale and code is one float32 multiplication, as in ggml. False does not say that a certain weight
    loses something: `Packed.error` tells.

    Args:
        qtype, scheme, dtype: of the weight.
        scale: what the file multiplies the whole weight by, in a tensor of its own.

    Raises:
        KeyError: no such scheme.
    """
    target = SCHEMES[scheme]
    if isinstance(target, Fp4):
        return qtype == target.source and target.holds(scale)
    lattice = LATTICES.get(qtype)
    if lattice is None or dtype not in ("float16", "float32"):
        return False
    return isinstance(target, Integers) and target.holds(lattice)
