"""Keys below `tokenizer.` that nothing here reads: what they say is not in the checkpoint, and somebody should know."""

from collections.abc import Iterator

from gguf2st.fold import few
from gguf2st.header.keys import brief
from gguf2st.tokenizer.special import ROLE_KEYS
from gguf2st.tokenizer.templates import TEMPLATE_KEY
from gguf2st.tokenizer.vocab import PREFIX, Metadata

_READ = frozenset(PREFIX + key for keys in ROLE_KEYS.values() for key in keys) | frozenset(
    PREFIX + key
    for key in (
        *("model", "pre", "tokens", "token_type", "scores", "merges", "precompiled_charsmap", "suppress_tokens"),
        *("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"),
        *("normalizer.lowercase", "normalizer.strip_accents"),
    )
)
_SAID_ELSEWHERE = frozenset((PREFIX + "token_type_count", f"{TEMPLATE_KEY}s"))
"""Lengths and names of what is read itself: rows of the tensor of token types, names of the chat templates."""


def unread_notes(metadata: Metadata) -> Iterator[str]:
    """A note that names them, when there are any."""
    unread = [
        f"{key} = {brief(value)}"
        for key, value in metadata.items()
        if key.startswith("tokenizer.")
        and key not in _READ
        and key not in _SAID_ELSEWHERE
        and key != TEMPLATE_KEY
        and not key.startswith(TEMPLATE_KEY + ".")
    ]
    if unread:
        yield f"tokenizer keys of the file that are not used: {few(unread)}"
