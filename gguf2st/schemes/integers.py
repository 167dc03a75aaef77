"""compressed-tensors' `pack-quantized`: integers of 4 or 8 bits, one scale per group of columns.

Tensors of a weight of (rows, columns), for b bits and groups of g columns:

    weight_packed      int32 (rows, columns * b / 32)   codes + 2^(b - 1), unsigned, lowest bits first along a row
    weight_scale       float (rows, columns / g)        of the model's dtype: loaders cast what they find to it
    weight_shape       int64 (2)                        rows, columns
    weight_zero_point  int32 (ceil(rows * b / 32), columns / g)   asymmetric only: lowest bits first down a column

    weight = scale * (code - zero point)                both unsigned; the zero point is 2^(b - 1) when symmetric
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gguf2st.schemes.base import Packed, Part, Scheme, not_a_target
from gguf2st.schemes.lattice import LATTICES, WITH_MINIMUM, Lattice

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Integers(Scheme):
    """A `pack-quantized` scheme. `bits` is 4 or 8, `group` a multiple of 32."""

    bits: int
    group: int
    symmetric: bool = True
    name: str = field(init=False)
    row_step: int = field(init=False)
    column_step: int = field(init=False)

    def __post_init__(self) -> None:
        name = f"int{self.bits}_{'' if self.symmetric else 'asym_'}g{self.group}"
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "row_step", 1 if self.symmetric else 32 // self.bits)
        object.__setattr__(self, "column_step", self.group)

    def holds(self, lattice: Lattice) -> bool:
        """Whether all codes of a type fit, and its scales can be repeated as often as the groups want."""
        half = 1 << self.bits - 1
        return lattice.group % self.group == 0 and -half <= lattice.low and lattice.high < half

    def lattice(self, qtype: str) -> Lattice | None:
        """The lattice of a type whose every code is kept, or None where codes are searched.

        Raises:
            SchemeError: the type cannot become this scheme.
        """
        lattice = LATTICES.get(qtype)
        if lattice is not None and self.holds(lattice):
            return lattice
        if self.group == 32 and (self.bits == 8 or (not self.symmetric and qtype in WITH_MINIMUM)):
            return None
        raise not_a_target(qtype, self.name)

    def parts(self, shape: tuple[int, ...], dtype: str) -> tuple[Part, ...]:
        """See `Scheme`."""
        n_rows, n_cols = self.matrix(shape)
        groups = n_cols // self.group
        parts = [
            Part("_packed", "int32", (n_rows, n_cols * self.bits // 32), 1),
            Part("_scale", dtype, (n_rows, groups), 1),
            Part("_shape", "int64", (2,), 0),
        ]
        if not self.symmetric:
            parts.append(Part("_zero_point", "int32", (-(-n_rows // self.row_step), groups), self.row_step))
        return tuple(parts)

    def pack(self, qtype: str, blocks: "NDArray[np.uint8]", n_rows: int, dtype: str) -> Packed:
        """See `Scheme`."""
        self.require_rows(qtype, blocks, n_rows)
        from gguf2st.kernels import cpu_pack

        return cpu_pack.integers(self, qtype, blocks, n_rows, dtype)

    def once(self, shape: tuple[int, ...], scale: float = 1.0) -> "Mapping[str, NDArray[np.uint8]]":
        """See `Scheme`. There is no place for a `scale` other than 1."""
        import numpy as np

        if scale != 1.0:
            raise ValueError(f"{self.name} has no tensor for a scale of the whole weight")
        return {"_shape": np.array(self.matrix(shape), "<i8").view(np.uint8)}

    def config(self) -> Mapping[str, Any]:
        """See `Scheme`."""
        weights = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": "group",
            "group_size": self.group,
            "dynamic": False,
        }
        return {
            "weights": weights,
            "input_activations": None,
            "output_activations": None,
            "format": "pack-quantized",
        }
