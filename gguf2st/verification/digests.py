"""The files of a checkpoint against the sha256 that gguf2st.json keeps of them, if there is one."""

from pathlib import PurePosixPath
from typing import Any

from gguf2st.errors import OutputError
from gguf2st.output.digests import sha256_of
from gguf2st.verification.checkpoint import Checkpoint, read_json


def compare_digests(ckpt: Checkpoint) -> tuple[int, list[str]]:
    """A shard of another digest is a problem; other files may be edited on purpose, which is worth a note.

    A gguf2st.json without digests, or one that cannot be read, is a problem: nobody may edit a shard and that.

    Returns: number of shards that were compared, notes.
    """
    from gguf2st.hub.provenance import PROVENANCE_FILE  # which is about reports, and these about verifications

    notes: list[str] = []
    shards = 0
    file = ckpt.folder / PROVENANCE_FILE
    if not (file.exists() or file.is_symlink()):
        return 0, []
    n_problems = len(ckpt.problems)
    recorded: Any = read_json(file, ckpt.problems).get("digests")
    if len(ckpt.problems) == n_problems and not (isinstance(recorded, dict) and "config.json" in recorded):
        ckpt.problems.append(f"{PROVENANCE_FILE} has not the digests that gguf2st writes into it")
    for name, digest in recorded.items() if isinstance(recorded, dict) else ():
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts:
            continue  # a stranger's
        is_shard = place.suffix == ".safetensors"
        path = ckpt.folder / name
        if not path.is_file():
            problem = f"{name} is not here, which {PROVENANCE_FILE} knows"
        else:
            shards += is_shard
            try:
                if sha256_of(path) == digest:
                    continue
                problem = f"{name} has changed since it was written: its sha256 is not that in {PROVENANCE_FILE}"
            except OutputError as err:
                problem = err.message
        (ckpt.problems if is_shard else notes).append(problem)
    return shards, notes
