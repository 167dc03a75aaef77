"""Convert and upload without keeping the model: each written shard goes up, and leaves its place to the next.

What stays of a shard is its header with its small tensors, in a sparse file of the shard's size: enough to check the
whole checkpoint's structure before the commit makes it visible.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from gguf2st.errors import VerifyError
from gguf2st.hub.push import Pushed, PushOptions, Upload
from gguf2st.output.folder import OUTLINE
from gguf2st.output.shards import header_bytes, is_whole, output_error, shard_outputs
from gguf2st.plan import Output, Plan
from gguf2st.verification import Verification

SMALL_NBYTES = 1 << 16
"""Tensors up to this size stay: the structure of packed weights depends on the values of some."""


class ShardStream:
    """Takes shards away as they are written. `folder` then holds the outline of a checkpoint, `finish` commits it."""

    def __init__(
        self, options: PushOptions, plan: Plan, partial: Path, progress: Callable[[int], None] | None = None
    ) -> None:
        """Nothing happens yet.

        Args:
            options: where to.
            plan: laid out.
            partial: the folder that the conversion works in.
            progress: told about bytes that arrived.
        """
        self.folder = partial / OUTLINE
        self._plan = plan
        self._upload = Upload(options)
        self._progress = progress or (lambda nbytes: None)

    def __enter__(self) -> "ShardStream":
        """Make the repository if need be; start anew, for what an earlier run sent is at the Hub already.

        Raises:
            HubError: no token, or no access.
        """
        try:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        except OSError as err:
            raise output_error(err, self.folder) from err
        self._upload.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """What was sent is kept by the Hub for the next run; what is here is small."""

    def take(self, path: Path) -> None:
        """Upload a shard, and delete it here.

        Raises:
            VerifyError: it is not what the plan says.
            HubError: it did not arrive; it is still here.
        """
        index = next(i for i, shard in enumerate(self._plan.shards) if shard.file == path.name)
        outputs = shard_outputs(self._plan, index)
        if not is_whole(path, outputs):
            raise VerifyError(
                f"{path.name} does not have the size and header that were planned",
                hint="something else writes into the output folder: stop it, and run the same command again",
            )
        try:
            _outline(path, self.folder / path.name, outputs)
            self._upload.send({path.name: path})
            path.unlink()
        except OSError as err:
            raise output_error(err, path) from err
        self._progress(self._plan.shards[index].nbytes)

    def digests(self) -> dict[str, str]:
        """Shard -> sha256, of those that were taken."""
        return self._upload.digests

    def finish(self, verification: Verification) -> Pushed:
        """Upload the small files that were put into `folder`, and commit everything at once.

        Args:
            verification: of `folder`.

        Raises:
            HubError: as `Upload.finish`.
        """
        small = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and path.suffix != ".safetensors"]
        self._upload.send({path.relative_to(self.folder).as_posix(): path for path in small})
        self._upload.note("each shard was checked against the plan, uploaded and deleted; the Hub holds its sha256")
        return self._upload.finish(self.folder, verification)


def _outline(path: Path, target: Path, outputs: Sequence[Output]) -> None:
    """Copy a shard's header and small tensors to a sparse file of the same size."""
    header = header_bytes(outputs)
    with open(path, "rb") as source, open(target, "wb") as outline:
        os.truncate(outline.fileno(), path.stat().st_size)
        outline.write(header)
        for output in outputs:
            nbytes = output.stop - output.start
            if nbytes <= SMALL_NBYTES:
                for file in (source, outline):
                    file.seek(len(header) + output.start)
                outline.write(source.read(nbytes))
