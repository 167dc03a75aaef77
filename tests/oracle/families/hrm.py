"""HRM-Text, whose layers are two stacks that run in turns."""

from collections.abc import Mapping
from typing import Any

from tests.oracle.case import TIED, Case, rope, with_bf16


def hrm(**options: Any) -> Case:
    """The stacks' number of layers is given as published ones have it, and becomes that of all runs."""
    given: Mapping[str, Any] = {"num_key_value_heads": None, "H_cycles": 2, "L_cycles": 3, "embedding_scale": 12.5}
    return Case("HrmTextConfig", {**given, "prefix_lm": False, **options})


_PLAIN: dict[str, Case] = {
    "hrm_text": hrm(),
    "hrm_text_3_layers": hrm(num_hidden_layers=3, H_cycles=1, L_cycles=2, head_dim=32, prefix_lm=True),
    "hrm_text_linear_tied": hrm(num_hidden_layers=1, **TIED, **rope("linear", 4.0)),
}
CASES = with_bf16(_PLAIN, "hrm_text")
