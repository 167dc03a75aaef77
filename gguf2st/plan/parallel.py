"""Whether packed weights can be divided among GPUs: each rank of vLLM's tensor parallelism needs whole groups.

vLLM divides most weights by rows (`column parallel`) and those that follow them by columns (`row parallel`). Scales
belong to groups of columns, packed zero points to words of rows: neither may be cut.
"""

from collections import defaultdict
from collections.abc import Iterable

from gguf2st.fold import listing
from gguf2st.plan import DENSE, Entry, Plan
from gguf2st.plan.vllm_modules import layerless
from gguf2st.schemes import SCHEMES

SIZES = (1, 2, 4, 8)

BY_COLUMNS = frozenset(
    {"attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp", "ssm_out", "shortconv.out_proj", "laurel_r"}
)
"""GGUF tensors (without the layer) that vLLM's classes divide by columns; see tests/vllm/test_modules.py."""
UNDIVIDED = frozenset({"attn_q_a", "attn_kv_a_mqa", "inp_gate", "proj", "output", "ple_key", "ple_value"})
"""Those that every rank has as a whole, and the head, whose rows are padded."""


def notes(plan: Plan) -> Iterable[str]:
    """For the report on a plan with packed weights: which sizes of tensor parallelism cut through groups or words."""
    failing: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    packed = [e for e in plan.entries if e.scheme != DENSE]
    for e in packed:
        what, sizes = _cut(e, plan)
        if sizes:
            failing[what, sizes].append(e.module)
    good = [n for n in SIZES if not any(n in sizes for _, sizes in failing)]
    if packed and good:
        yield f"tensor parallel {_joined(good)}: every rank gets whole groups of the packed weights"
    for (what, sizes), modules in failing.items():
        yield f"not tensor parallel {_joined(sizes)}: {what} of {listing(modules)}"


def _cut(entry: Entry, plan: Plan) -> tuple[str, tuple[int, ...]]:
    """(what is divided, the sizes at which a rank would get a part of a group or word)."""
    names, scheme = {layerless(s) for s in entry.sources}, SCHEMES[entry.scheme]
    if names & UNDIVIDED:
        return "", ()
    if names & BY_COLUMNS:
        n, step, most = entry.shape[-1], scheme.column_step, max(SIZES)
        what = f"{n} columns in groups of {step}"
    else:
        n, step, most = entry.shape[-2], scheme.row_step, max(SIZES)
        what = f"{n} rows in words of {step}" if step > 1 else f"{n} rows"
        heads = plan.config.get("num_key_value_heads")
        if names & {"attn_k", "attn_v"} and isinstance(heads, int) and heads:
            most = heads  # ranks beyond that repeat heads
    return what, tuple(size for size in SIZES if n % (min(size, most) * step))


def _joined(sizes: Iterable[int]) -> str:
    *first, last = map(str, sizes)
    return f"{', '.join(first)} and {last}" if first else last
