"""From a source to its plan: headers only."""

from pathlib import Path

from gguf2st.errors import UsageError
from gguf2st.header import Header, read_header
from gguf2st.plan import Plan, build, choice, lay_out
from gguf2st.source import Model, locate

DEFAULT_SHARD_NBYTES = 5_000_000_000
"""The Hub's own helper splits here too: parallel downloads, resumable uploads, no file near a hosting limit."""


def open_gguf(src: str | Path | Model) -> Header:
    """The header of a model; of one on the Hub, nothing else is fetched.

    Args:
        src: a GGUF file, any shard of a split, a folder (`folder:Q4_K_M` where it holds several), a model on the Hub
            (`org/repo:Q4_K_M`, `hf://org/repo/file.gguf@revision`, a web address), or one of ollama's
            (`ollama://model:tag`); or what `locate` made of it.

    Raises:
        SourceError: nothing, several models or no GGUF is there; a HeaderError when it is damaged.
        HubError: no such repository, no access, or the Hub does not answer.
    """
    return read_header(locate(src).files)


def make_plan(
    src: str | Path | Model | Header,
    *,
    dtype: str | None = None,
    repack: str = "none",
    max_shard_size: int = DEFAULT_SHARD_NBYTES,
    arch_map: Path | None = None,
) -> Plan:
    """Plan a conversion; reads headers only. The plan may have problems: see `Plan.require_complete`.

    Args:
        src: as for `open_gguf`, or an open header.
        dtype: of the output: bfloat16 (the default), float16 (the default with `repack`) or float32.
        repack: as for `convert`.
        max_shard_size: bytes; a shard is closed before it would exceed this.
        arch_map: a map to use instead of choosing one.

    Raises:
        SourceError, HeaderError: the source cannot be read.
        CoverageError: it is no model by itself.
        MapError: no arch map fits it.
        UsageError: an unknown dtype or mode, or a dtype that does not go with `repack`.
    """
    if type(max_shard_size) is not int or max_shard_size < 1:
        raise UsageError(f"max_shard_size is {max_shard_size!r}; it must be a positive number of bytes")
    header = src if isinstance(src, Header) else open_gguf(src)
    return lay_out(choice.choose(build.build(header, arch_map=arch_map), dtype, repack), max_shard_size)
