"""Types whose weights are integers of one byte times one float16 per block: they can be repacked without a loss."""

from dataclasses import dataclass

from gguf2st.quants.layout import TYPES


@dataclass(frozen=True, slots=True)
class Lattice:
    """`w = d * unit * q`, where `d` is the only scale of a block (its field `d`, a float16).

    Attributes:
        group: consecutive weights that share one `d`: the block.
        low, high: smallest and largest q.
        unit: 1 or -1; the sign for which every q is an int8.
    """

    group: int
    low: int
    high: int
    unit: int = 1


def scale_offset(qtype: str) -> int:
    """Where the field `d` of a block begins, in bytes."""
    at = 0
    for field in TYPES[qtype].fields:
        if field.name == "d":
            return at
        at += field.nbytes
    raise KeyError(qtype)


LATTICES = {
    "Q4_0": Lattice(32, -8, 7),
    "Q5_0": Lattice(32, -16, 15),
    "Q8_0": Lattice(32, -128, 127),
    "Q8_1": Lattice(32, -128, 127),
    "Q3_K": Lattice(256, -128, 124, unit=-1),  # q = -(s - 32) * (c - 4), 6 bits of s and 3 of c
    "IQ4_NL": Lattice(32, -127, 113),
    "TQ1_0": Lattice(256, -1, 1),
    "TQ2_0": Lattice(256, -1, 2),
    "Q1_0": Lattice(128, -1, 1),
    "Q2_0": Lattice(64, -1, 2),
}
"""ggml type -> its lattice. q is what the type's decoder gives for `d = unit` (a test compares)."""

WITH_MINIMUM = frozenset({"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"})
"""Types of unsigned codes and a minimum per group, whose integers suit `int4_asym_g32`."""
