"""What is called with hostile input, by name.

An input that is refused (Gguf2stError) has done its duty. One that is accepted is held to a promise: what was read lies
inside the file, a plan can be written and read back, a tokenizer loads and encodes, a conversion equals its source.
"""

from tests.fuzz.commands import CommandTarget
from tests.fuzz.converting import CheckpointTarget, ConvertTarget, DryRunTarget, ResumeTarget
from tests.fuzz.harness import Target
from tests.fuzz.planning import (
    ArchitecturesTarget,
    ExpressionTarget,
    MapTarget,
    PlanFileTarget,
    PlanTarget,
    TokenizerTarget,
)
from tests.fuzz.reading import FolderTarget, HeaderTarget, PeerTarget, RealTarget, SplitTarget

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *(HeaderTarget(), PeerTarget(), SplitTarget(), FolderTarget(), RealTarget()),
        *(PlanTarget(), ArchitecturesTarget(), TokenizerTarget(), ExpressionTarget(), MapTarget(), PlanFileTarget()),
        *(ConvertTarget(), DryRunTarget(), ResumeTarget(), CheckpointTarget(), CommandTarget()),
    )
}
