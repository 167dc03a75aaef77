"""How each arch map is proven: what llama.cpp's own converter made of a model came back as that model.

`proofs.json`, beside the maps, is written from the table of round-trip tests (`python -m tests.oracle.proofs`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf2st.archmap.mapfile import maps_folder

PROOFS_FILE = "proofs.json"
LEVELS: Mapping[str, str] = {
    "logits": "weights and configuration come back equal; transformers and llama.cpp compute the same logits",
    "model": "weights and configuration come back equal; transformers computes the same, llama.cpp cannot be compared",
    "weights": "weights and configuration come back equal; transformers has no class that could run them",
    "none": "no round trip",
}
"""Kinds of proof, the strongest first, and what each says: of a tiny model, through llama.cpp's converter and back."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How a map is proven.

    Attributes:
        level: one of LEVELS, the strongest that a model of the map has.
        models: how many tiny models of the map make the round trip.
    """

    level: str
    models: int


NO_PROOF = Proof("none", 0)


def read_proofs(folder: Path | None = None) -> dict[str, Proof]:
    """Name of each proven map -> its proof; a map that is not there has none.

    Args:
        folder: where the maps are; `maps_folder()` by default.
    """
    path = (folder or maps_folder()) / PROOFS_FILE
    if not path.is_file():
        return {}
    return {name: Proof(**row) for name, row in json.loads(path.read_text(encoding="utf-8")).items()}
