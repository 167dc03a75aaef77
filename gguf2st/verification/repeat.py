"""Packing the source once more: this version of gguf2st packs the same numbers into the same bytes, on any machine.

That finds a code or a scale that is wrong by so little that no bound tells. It shares the packing with what wrote the
checkpoint, so it comes on top of what unpacking shows, and counts only where this very version wrote it: a change of
the packing goes with a new version.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from gguf2st import __version__
from gguf2st.plan import Entry, Plan
from gguf2st.quants.layout import TYPES
from gguf2st.schemes import SCHEMES, Scheme, targets
from gguf2st.schemes.integers import Integers
from gguf2st.verification.checkpoint import FLOATS, Checkpoint, Packed
from gguf2st.verification.original import row_order, stored_rows
from gguf2st.verification.unpack import rows_of


@dataclass(frozen=True)
class Repeat:
    """Packs the sources of a plan.

    Attributes:
        schemes: names of those that the checkpoint was packed in.
        version: of gguf2st.
    """

    plan: Plan
    schemes: frozenset[str]
    version: str = __version__

    def scheme(self, entry: Entry, packed: Packed) -> Scheme | None:
        """The scheme that makes such a weight of the entry; None where it did not use one."""
        form = packed.format
        wanted = (form.bits, form.group, form.symmetric)
        integers = (s for s in SCHEMES.values() if isinstance(s, Integers) and s.name in self.schemes)
        found = next((s for s in integers if (s.bits, s.group, s.symmetric) == wanted), None)
        qtypes = {self.plan.header.sources[s].qtype for s in entry.sources}
        if found is None or form.layout != "int" or not entry.packed or (len(qtypes) > 1 and found.row_step > 1):
            return None
        return found if all(found.name in targets("int4", q) for q in qtypes) else None

    def rows_that_differ(self, scheme: Scheme, entry: Entry, packed: Packed, start: int, stop: int) -> Any:
        """Rows of [start, stop), counted from `start`, whose bytes are others; `start` is a multiple of 32."""
        order = row_order(entry, self.plan)[start:stop]
        dtype = FLOATS[packed.parts["weight_scale"].dtype]
        starts = np.cumsum([0] + [self.plan.header.sources[s].n_rows for s in entry.sources])
        owner = np.searchsorted(starts, order, "right") - 1
        types = np.array([self.plan.header.sources[s].qtype for s in entry.sources])
        differ = np.zeros(len(order), bool)
        for qtype in dict.fromkeys(types[owner].tolist()):
            mine = np.flatnonzero(types[owner] == qtype)
            blocks = np.empty((len(mine), self._row_nbytes(entry)[qtype]), np.uint8)
            for n, name in enumerate(entry.sources):
                here = np.flatnonzero(owner[mine] == n)
                if here.size:
                    blocks[here] = stored_rows(self.plan, name, order[mine[here]] - starts[n])
            made = scheme.pack(qtype, blocks.reshape(-1, TYPES[qtype].nbytes), len(mine), dtype)
            for part in scheme.parts(entry.shape, dtype):
                if part.span:
                    span = part.span
                    found = rows_of(packed.parts[f"weight{part.suffix}"], start // span, -(-stop // span))
                    found = np.ascontiguousarray(found).view(np.uint8).reshape(len(found), -1)
                    found = found[mine] if span == 1 else found
                    wrong = (made.parts[part.suffix].reshape(len(found), -1) != found).any(axis=1)
                    differ[mine] |= np.repeat(wrong, span)[: len(mine)]
        return np.flatnonzero(differ)

    def _row_nbytes(self, entry: Entry) -> dict[str, int]:
        """Bytes of a row of the entry by ggml type."""
        kinds = (TYPES[self.plan.header.sources[s].qtype] for s in entry.sources)
        return {kind.name: entry.shape[-1] // kind.block * kind.nbytes for kind in kinds}


def repeat_of(ckpt: Checkpoint, plan: Plan) -> Repeat | None:
    """How to pack again, where gguf2st.json says that this version packed the checkpoint: its rows say into what."""
    from gguf2st.hub.provenance import PROVENANCE_FILE  # which is about reports, and these about verifications

    try:
        stated = json.loads((ckpt.folder / PROVENANCE_FILE).read_text(encoding="utf-8"))
        if stated["version"] != __version__:
            return None
        return Repeat(plan, frozenset(str(row["scheme"]) for row in stated["types"]))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
