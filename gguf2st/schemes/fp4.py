"""Formats of FP4 (E2M1) numbers: what MXFP4 and NVFP4 blocks become, with the same numbers in another order.

Two neighbouring weights share a byte, the first in the low nibble; in a ggml block the halves of a group share bytes.
Tensors of a weight of (rows, columns):

    compressed-tensors mxfp4-pack       weight_packed        uint8 (rows, columns / 2)
                                        weight_scale         uint8 (rows, columns / 32), E8M0: 2^(byte - 127)
    compressed-tensors nvfp4-pack       weight_global_scale  float32 (1), a divisor
                                        weight_packed        uint8 (rows, columns / 2)
                                        weight_scale         float8 E4M3 (rows, columns / 16)
    gpt-oss, whose rows are stacked     _blocks              uint8 (experts, rows, columns / 32, 16)
                                        _scales              uint8 (experts, rows, columns / 32), E8M0
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from gguf2st.errors import SchemeError
from gguf2st.schemes.base import Packed, Part, Scheme, not_a_target

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Fp4(Scheme):
    """An FP4 format.

    Attributes:
        source: the ggml type that holds the same numbers.
        group: weights that share a scale.
        codes, scales: suffixes of the two tensors.
    """

    name: str
    source: str
    group: int
    codes: str = "_packed"
    scales: str = "_scale"
    row_step: int = field(default=1, init=False)
    column_step: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "column_step", self.group)

    def parts(self, shape: tuple[int, ...], dtype: str) -> tuple[Part, ...]:
        """See `Scheme`; `dtype` does not matter."""
        n_rows, n_cols = self.matrix(shape)
        return (
            Part(self.codes, "uint8", (n_rows, n_cols // 2), 1),
            Part(self.scales, "uint8", (n_rows, n_cols // self.group), 1),
        )

    def pack(self, qtype: str, blocks: "NDArray[np.uint8]", n_rows: int, dtype: str) -> Packed:
        """See `Scheme`."""
        if qtype != self.source:
            raise not_a_target(qtype, self.name)
        self.require_rows(qtype, blocks, n_rows)
        from gguf2st.kernels import cpu_pack

        return cpu_pack.fp4(self, qtype, blocks, n_rows)

    def holds(self, scale: float) -> bool:
        """Whether a weight that is multiplied by `scale` as a whole keeps the numbers that ggml's float32 gives."""
        return scale == 1.0

    def once(self, shape: tuple[int, ...], scale: float = 1.0) -> "Mapping[str, NDArray[np.uint8]]":
        """See `Scheme`. There is no place for a `scale` other than 1."""
        if scale != 1.0:
            raise ValueError(f"{self.name} has no tensor for a scale of the whole weight")
        return {}

    def config(self) -> Mapping[str, Any]:
        """See `Scheme`."""
        return self._config("mxfp4-pack-quantized", "group", "torch.uint8")

    def _config(self, format: str, strategy: str, scale_dtype: str) -> Mapping[str, Any]:
        weights = {
            "num_bits": 4,
            "type": "float",
            "symmetric": True,
            "strategy": strategy,
            "group_size": self.group,
            "dynamic": False,
            "scale_dtype": scale_dtype,
        }
        return {"weights": weights, "input_activations": None, "output_activations": None, "format": format}


@cache
def _same_products(scale: float) -> bool:
    """Whether ggml's (code * group scale) * scale and a reader's code * (group scale / divisor) are always equal.

    ggml multiplies in float32, and so do compressed-tensors and vLLM's emulation; all codes and E4M3 scales are tried.
    """
    import numpy as np

    exponent, mantissa = np.divmod(np.arange(127), 8)
    groups = np.where(exponent, 2.0 ** (exponent - 7.0) * (1 + mantissa / 8), 2.0**-6 * mantissa / 8).astype(np.float32)
    codes = np.array([0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[:, None]
    with np.errstate(all="ignore"):
        divisor = (np.float64(1) / np.float64(scale)).astype(np.float32)
        return bool(np.array_equal((codes * groups) * np.float32(scale), codes * (groups / divisor)))


@dataclass(frozen=True)
class Nvfp4(Fp4):
    """E4M3 scales, and a divisor of all scales of the weight.

    vLLM takes the largest divisor of a fused module (`qkv_proj`) for all of its members: they must be equal.
    """

    def parts(self, shape: tuple[int, ...], dtype: str) -> tuple[Part, ...]:
        """See `Scheme`."""
        n_rows, n_cols = self.matrix(shape)
        return (
            Part("_global_scale", "float32", (1,), 0),
            Part(self.codes, "uint8", (n_rows, n_cols // 2), 1),
            Part(self.scales, "float8_e4m3", (n_rows, n_cols // self.group), 1),
        )

    def holds(self, scale: float) -> bool:
        """See `Fp4`. Powers of two do; of other numbers, those for which no product of code and scale rounds apart."""
        return scale > 0 and (math.frexp(scale)[0] == 0.5 or _same_products(scale))

    def once(self, shape: tuple[int, ...], scale: float = 1.0) -> "Mapping[str, NDArray[np.uint8]]":
        """See `Scheme`. The divisor 1 / `scale` is rounded to float32: exact for powers of two.

        Raises:
            SchemeError: `scale` is not a positive number whose inverse is a normal float32.
        """
        import numpy as np

        with np.errstate(over="ignore", divide="ignore"):
            divisor = (np.float64(1) / np.float64(scale)).astype(np.float32)
        if not (np.isfinite(divisor) and divisor >= np.finfo(np.float32).tiny):
            raise SchemeError(
                f"{self.name} divides by the inverse of a weight's scale, and that of {scale} is no float32",
                hint="convert with --repack none, which multiplies it out",
            )
        return {"_global_scale": np.array([divisor], "<f4").view(np.uint8)}

    def config(self) -> Mapping[str, Any]:
        """See `Scheme`."""
        return self._config("nvfp4-pack-quantized", "tensor_group", "torch.float8_e4m3fn")


@dataclass(frozen=True)
class GptOss(Fp4):
    """The experts of gpt-oss checkpoints, of shape (experts, rows, columns): `gate_up_proj_blocks` and `_scales`."""

    codes: str = "_blocks"
    scales: str = "_scales"

    def parts(self, shape: tuple[int, ...], dtype: str) -> tuple[Part, ...]:
        """See `Scheme`; any number of axes in front."""
        self.matrix(shape[-2:])
        groups = shape[-1] // self.group
        return (
            Part(self.codes, "uint8", (*shape[:-1], groups, self.group // 2), 1),
            Part(self.scales, "uint8", (*shape[:-1], groups), 1),
        )

    def config(self) -> Mapping[str, Any]:
        """See `Scheme`: config.json says `{"quant_method": "mxfp4"}` for the whole model."""
        return {}
