"""Does an embedding model's checkpoint pool as its source says?"""

import json
from collections.abc import Mapping
from typing import Any

from gguf2st.config.pooling import MODULES_FILE, POOLING_FILE, modes_of
from gguf2st.verification.checkpoint import Checkpoint, read_json

FILES = frozenset({MODULES_FILE, POOLING_FILE})
"""What is compared here, by meaning: sentence-transformers has spelled it in several ways."""


def compare_pooling(ckpt: Checkpoint, expected: Mapping[str, Any]) -> None:
    """The Pooling module that modules.json names against the source's; whether vectors are normalised no file says."""
    if POOLING_FILE not in expected:
        return
    try:
        modules = json.loads((ckpt.folder / MODULES_FILE).read_text(encoding="utf-8"))
        kinds = {str(row["type"]).rpartition(".")[2]: str(row["path"]) for row in modules}
    except FileNotFoundError:
        ckpt.problems.append(f"there is no {MODULES_FILE}, though the source says how vectors of tokens are pooled")
        return
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        ckpt.problems.append(f"{MODULES_FILE} is no list of modules in JSON, each with its type and path")
        return
    if "Pooling" not in kinds:
        ckpt.problems.append(f"{MODULES_FILE} has no Pooling module, though the source says how vectors are pooled")
        return
    n_problems = len(ckpt.problems)
    found = modes_of(read_json(ckpt.folder / kinds["Pooling"] / "config.json", ckpt.problems))
    wanted = modes_of(expected[POOLING_FILE])
    if len(ckpt.problems) == n_problems and found != wanted:
        ckpt.problems.append(
            f"{kinds['Pooling']}/config.json pools by {', '.join(sorted(found)) or 'nothing'}, the source by"
            f" {', '.join(sorted(wanted))}"
        )
