"""Every reason not to convert a source: what `gguf2st check` lists."""

from pathlib import Path

from gguf2st import tokenizer as tokenizers
from gguf2st.errors import CoverageError, Gguf2stError
from gguf2st.header import Header
from gguf2st.output.small_files import plan_tokenizer, tokenizer_metadata
from gguf2st.plan.other_kinds import require_model
from gguf2st.plan.planning import make_plan, open_gguf
from gguf2st.source import Model


def problems(
    src: str | Path | Model | Header,
    *,
    arch_map: Path | None = None,
    tokenizer: bool = True,
    tokenizer_pre: str | None = None,
) -> list[tuple[int, str]]:
    """Every reason not to convert a source, as (exit code, line); empty when it can be converted.

    A source that cannot be opened is a problem like any other.

    Args:
        src: as for `open_gguf`, or an open header.
        arch_map: a map to use instead of choosing one.
        tokenizer: whether the tokenizer must be rebuilt from the file; not so with `convert --tokenizer-from`.
        tokenizer_pre: as for `convert`.
    """
    try:
        header = src if isinstance(src, Header) else open_gguf(src)
    except Gguf2stError as err:
        return problem_lines(err)
    found: list[tuple[int, str]] = []
    plan = None
    try:
        require_model(header)
    except Gguf2stError as err:
        return problem_lines(err)  # what it lacks of a model is no news then
    try:
        plan = make_plan(header, arch_map=arch_map)
        found += [(CoverageError.exit_code, line) for line in plan.all_problems]
    except Gguf2stError as err:
        found += problem_lines(err)
    if tokenizer:
        try:
            metadata = tokenizer_metadata(header, tokenizer_pre)
            tokenizers.plan_tokenizer(metadata) if plan is None else plan_tokenizer(plan, metadata)
        except Gguf2stError as err:
            found += problem_lines(err)
    return found


def problem_lines(err: Gguf2stError) -> list[tuple[int, str]]:
    """(exit code, line) of the one problem that an error is: its details and its hint are no problems of their own."""
    details = f": {'; '.join(err.problems)}" if err.problems else ""
    return [(err.exit_code, f"{err.message}{details}{f' ({err.hint})' if err.hint else ''}")]
