"""What an output format states: the tensors it writes for a weight, how rows become their bytes, what config.json says.

A scheme knows nothing of models: the plan decides which weight gets which scheme. What planning needs (names, parts,
config) imports neither torch nor numba; `pack` does.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gguf2st.errors import SchemeError
from gguf2st.quants.layout import TYPES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Part:
    """One physical tensor of a packed weight.

    Attributes:
        suffix: of the entry's name: `_packed`, so that `x.weight` becomes `x.weight_packed`.
        dtype: a key of `plan.DTYPE_NBYTES`.
        span: weight rows that one row of the part stands for; 0 for a part that does not depend on the weights' rows
            and is written once.
    """

    suffix: str
    dtype: str
    shape: tuple[int, ...]
    span: int

    def name(self, entry: str) -> str:
        """The tensor's name in the checkpoint: `model.layers.0.mlp.up_proj.weight_packed`."""
        return entry + self.suffix


@dataclass(frozen=True, slots=True)
class Packed:
    """Some rows of a weight as a scheme writes them.

    Attributes:
        parts: suffix -> bytes of those rows, C order, uint8, flat; one item per part with a span.
        error, power: sums over the rows of the squared difference from ggml's float32 values, and of their squares;
            the relative rmse of a weight is sqrt(sum of errors / sum of powers). Both are 0 where `is_exact` holds.
        bad: groups that cannot be written: their weights are NaN or infinite, or their scale is beyond the dtype of
            scales. The parts are then of no use.
    """

    parts: "Mapping[str, NDArray[np.uint8]]"
    error: float
    power: float
    bad: int


def not_a_target(qtype: str, scheme: str) -> SchemeError:
    """The error for a type that has no way into a scheme."""
    return SchemeError(
        f"weights of type {qtype} cannot become {scheme}", hint="`gguf2st plan` shows what each tensor can become"
    )


class Scheme(ABC):
    """An output format. A weight's shape is (rows, columns); more axes in front are stacked rows (experts).

    Attributes:
        name: `int4_g32`, as it is printed and named in config.json.
        row_step: rows are packed in runs that begin at multiples of it; a run ends at a multiple or with the weight.
        column_step: the number of columns must be a multiple of it.
    """

    name: str
    row_step: int
    column_step: int

    @abstractmethod
    def parts(self, shape: tuple[int, ...], dtype: str) -> tuple[Part, ...]:
        """The tensors that a weight of `shape` becomes, in the order of their names; `dtype` is that of scales.

        Raises:
            ValueError: the shape does not divide into the scheme's groups or words.
        """

    def matrix(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """(rows, columns) of a shape that the scheme can hold.

        Raises:
            ValueError: another number of axes, or columns that do not divide into groups.
        """
        if len(shape) != 2 or shape[1] % self.column_step or not shape[1]:
            raise ValueError(f"{self.name} holds (rows, a multiple of {self.column_step}), not {list(shape)}")
        return shape[0], shape[1]

    def require_rows(self, qtype: str, blocks: "NDArray[np.uint8]", n_rows: int) -> None:
        """Raise ValueError unless the blocks make `n_rows` rows of whole groups, and lie as kernels want them."""
        layout = TYPES[qtype]
        whole = blocks.ndim == 2 and blocks.shape[1] == layout.nbytes and blocks.flags.c_contiguous
        if not whole or blocks.dtype != "uint8" or n_rows < 1 or len(blocks) % n_rows:
            raise ValueError(
                f"blocks are {blocks.dtype} {blocks.shape}, expected C-contiguous uint8 "
                f"({n_rows} * blocks of a row, {layout.nbytes}) for {qtype}"
            )
        self.matrix((n_rows, len(blocks) * layout.block // n_rows))

    @abstractmethod
    def pack(self, qtype: str, blocks: "NDArray[np.uint8]", n_rows: int, dtype: str) -> Packed:
        """Whole rows of ggml blocks, (n_blocks, nbytes) uint8, row after row -> the bytes of the parts with a span.

        By numba kernels on the CPU (`kernels.device.Backend.pack`: on any device). Thread-safe; releases the GIL.
        `n_rows` is a multiple of `row_step`, or the rest of the weight.

        Raises:
            SchemeError: `qtype` cannot become this scheme (see `targets`).
            ValueError: the blocks do not make `n_rows` rows of the scheme's groups.
        """

    @abstractmethod
    def once(self, shape: tuple[int, ...], scale: float = 1.0) -> "Mapping[str, NDArray[np.uint8]]":
        """suffix -> bytes of the parts without a span, such as `_shape`.

        `scale`: what the file multiplies the whole weight by, in a tensor of its own (NVFP4).
        """

    @abstractmethod
    def config(self) -> Mapping[str, Any]:
        """The config group of compressed-tensors, without its targets; empty for a layout that knows no groups."""
