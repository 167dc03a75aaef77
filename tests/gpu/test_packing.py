"""Packing on a CUDA device (the torch reference) against the CPU kernels, byte for byte."""

import numpy as np
import pytest
import torch

from gguf2st.quants.layout import TYPES
from gguf2st.schemes import SCHEMES, targets
from tests.oracle import ggml
from tests.oracle.blocks import make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("qtype", "scheme"), [(q, s) for q in TYPES for s in targets("int4", q)])
def test_a_cuda_device_packs_the_same_bytes(qtype: str, scheme: str, dtype: str) -> None:
    blocks = make(qtype, "random")
    blocks = np.ascontiguousarray(blocks[np.isfinite(ggml.expected(qtype, TYPES[qtype].id, blocks)).all(1)])
    n_rows = len(blocks) // 4  # four of the smallest blocks make a group of 128
    blocks = blocks[: 4 * n_rows]
    on_cpu = SCHEMES[scheme].pack(qtype, blocks, n_rows, dtype)
    on_device = SCHEMES[scheme].pack(qtype, blocks, n_rows, dtype, device="cuda")
    assert on_cpu.bad == on_device.bad
    for suffix, part in on_cpu.parts.items():
        np.testing.assert_array_equal(on_device.parts[suffix], part, err_msg=suffix)
