"""Which arch maps the round trips prove, and how: the table of cases, asked which map each file gets.

python -m tests.oracle.proofs    # writes arch_maps/proofs.json, which `gguf2st archs` and the docs show
"""

import functools
import json
from collections import defaultdict

from gguf2st.archmap.mapfile import maps_folder, select_map
from gguf2st.archmap.proofs import LEVELS, PROOFS_FILE, Proof
from gguf2st.archmap.scope import MapScope
from gguf2st.header import read_header
from gguf2st.plan.build import read_small
from tests.oracle.case import Case
from tests.oracle.cases import CASES
from tests.oracle.tiny import oracle_gguf, prepare


def map_of(case: str) -> str:
    """Name of the one map that fits the GGUF of a case."""
    header = read_header([oracle_gguf(case)])
    read = read_small(header)
    return select_map(header.arch, lambda m: bool(MapScope(header, m, read).evaluate(m.when))).name


def level(case: Case) -> str:
    """What the round trip of a case compares: a key of LEVELS."""
    if case.weights:
        return "weights"
    return "logits" if case.tolerance is not None else "model"


@functools.cache
def proofs() -> dict[str, Proof]:
    """Map -> proof, from the whole table; a case that cannot be made proves nothing. Minutes with an empty cache."""
    failed = prepare(CASES)
    found: dict[str, list[str]] = defaultdict(list)
    for name, case in CASES.items():
        if name not in failed:
            found[map_of(name)].append(level(case))
    return {name: Proof(min(rows, key=list(LEVELS).index), len(rows)) for name, rows in sorted(found.items())}


def main() -> None:
    rows = {name: {"level": proof.level, "models": proof.models} for name, proof in proofs().items()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    (maps_folder() / PROOFS_FILE).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
