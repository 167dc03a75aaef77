"""Links in folders that may be a stranger's: one that leads elsewhere could name any file of this machine."""

from pathlib import Path


def leads_elsewhere(file: Path, folder: Path) -> bool:
    """Whether a file below a folder is really one outside of it. The Hub's cache keeps its files beside its folders:

    models--org--name/snapshots/COMMIT/config.json -> models--org--name/blobs/DIGEST
    """
    root, target = folder.resolve(), file.resolve()
    homes = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
    return not any(target.is_relative_to(home) for home in homes)
