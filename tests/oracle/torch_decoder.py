"""The torch reference decoders behind the signature of the CPU kernels."""

from typing import Any

import numpy as np
import torch

from gguf2st.quants.reference import QUANTS


def decode(qtype: str, dtype: str, blocks: np.ndarray, out: np.ndarray[Any, Any]) -> None:
    """A `kernels.device.Decoder`."""
    cast = QUANTS[qtype].dequantize(torch.from_numpy(blocks)).to(getattr(torch, dtype))
    bits = cast if dtype == "float32" else cast.view(torch.uint16)
    np.copyto(out, bits.numpy().reshape(out.shape))
