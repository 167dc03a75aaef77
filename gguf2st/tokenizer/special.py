"""Special tokens: what each id is for, which tokens end a text, and which are matched in a text before it is split.

The rules are llama.cpp's (b11434, src/llama-vocab.cpp, `llama_vocab::impl::load`), which trusts the spelling of some
tokens more than their type. Four of its rules are left out on purpose:
* a default id for a role the file does not name is taken only where that token is a special one;
* an id outside the vocabulary is an error, not a warning;
* infill tokens (`<|fim_pad|>`, `<|repo_name|>`, `<|file_sep|>` ...) are no end of text: they end an infill;
* `</s>` is no end of text by its spelling alone: where it is not a control token it is HTML (Qwen, Gemma).
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from gguf2st.errors import TokenizerError
from gguf2st.header.keys import brief
from gguf2st.tokenizer.evidence import resolve
from gguf2st.tokenizer.pretokenizers import BY_NAME
from gguf2st.tokenizer.vocab import (
    CONTROL,
    COPY_HINT,
    PREFIX,
    UNKNOWN,
    USER_DEFINED,
    Metadata,
    Vocabulary,
    read_flag,
    read_numbers,
    read_text,
    read_tokens,
)

ROLE_KEYS = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id",),  # spelled so in the format
    "pad": ("padding_token_id",),
    "cls": ("cls_token_id",),
    "mask": ("mask_token_id",),
    "fim_prefix": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suffix": ("fim_suf_token_id", "suffix_token_id"),
    "fim_middle": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_repo": ("fim_rep_token_id",),
    "fim_file": ("fim_sep_token_id",),
}
"""Role -> keys below `tokenizer.ggml.`; a later one is the deprecated spelling."""

_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"bos": 101, "sep": 102, "unk": 100, "pad": 0, "mask": 103},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}
_DEFAULT_ADDS = {"llama": (True, False), "bert": (True, False), "t5": (False, True)}
"""Kind -> whether BOS, EOS are added when the file does not say."""

_BOS_WHATEVER_THE_FILE_SAYS = ("gemma4", "granite-embed-multi-311m")
"""Pre-tokenizers of kind `gpt2` that llama.cpp adds BOS for, because some files say false by mistake."""

_END_TEXTS = frozenset(
    (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    )
)
"""Tokens that end a text by their spelling; they are control tokens whatever their type says."""

_FIM_TEXTS = {
    "fim_prefix": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suffix": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_middle": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": (
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
    ),
    "fim_repo": (
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
    ),
    "fim_file": ("<|file_sep|>",),
}
"""Infill tokens by their spelling, for roles the file does not name: control tokens whatever their type says."""

_HARMONY_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""Tokens of gpt-oss that are user-defined whatever their type says."""

_LSTRIP_MASK_PRES = ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")
_LSTRIP_MASK_ARCHS = ("nomic-bert-moe", "jina-bert-v3")


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids by role, None where there is none, and what is put around a text.

    Attributes:
        fim_prefix, fim_suffix, fim_middle, fim_pad, fim_repo, fim_file: infill ("fill in the middle") tokens.
        add_bos, add_eos: BOS before and EOS after each text.
        sep_after: SEP after each text, in the place of EOS.
        add_sep: one more SEP between two texts.
        bos_again: BOS before the second of two texts too.
        ends_by_text: tokens that llama.cpp stops at for their spelling, in id order.
        not_ends: tokens that llama.cpp takes off its list again, see `special_tokens`.
        suppressed: tokens that must never be generated.
    """

    bos: int | None
    eos: int | None
    eot: int | None
    eom: int | None
    unk: int | None
    sep: int | None
    pad: int | None
    cls: int | None
    mask: int | None
    fim_prefix: int | None
    fim_suffix: int | None
    fim_middle: int | None
    fim_pad: int | None
    fim_repo: int | None
    fim_file: int | None
    add_bos: bool
    add_eos: bool
    sep_after: bool
    add_sep: bool
    bos_again: bool
    ends_by_text: tuple[int, ...]
    not_ends: tuple[int, ...]
    suppressed: tuple[int, ...]

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a text: EOS, EOT, EOM, then those known by their spelling; each once."""
        named = (i for i in (self.eos, self.eot, self.eom) if i is not None)
        return tuple(i for i in dict.fromkeys((*named, *self.ends_by_text)) if i not in self.not_ends)


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched in the raw text, before it is split into words.

    Attributes:
        special: control and unknown tokens: left out when decoding with `skip_special_tokens`.
        lstrip, rstrip: white space before or after it is swallowed.
    """

    special: bool
    lstrip: bool = False
    rstrip: bool = False


def special_tokens(metadata: Metadata) -> SpecialTokens:
    """Roles and end-of-text tokens of a file, for every kind of tokenizer.

    Followed from llama.cpp's `special_eog_ids`: EOS, EOT and EOM by their keys, then tokens by their spelling such as
    `<|im_end|>`. As there, `<|end|>` is no end where `<|return|>` and `<|call|>` exist (harmony) or `<|flush|>` and
    `<|calls|>` (solar-open), and `</s>` is none beside `<|tool_response>` (gemma 4) or `<|plamo:eos|>`.

    What is put around a text depends on the kind, as in llama.cpp's `tokenize`:

        gpt2, llama, gemma4, t5, whitespace    add_bos_token and add_eos_token say it
        bert                                   BOS and SEP, whatever the file says

    Raises TokenizerError for an id outside the vocabulary or of another type.
    """
    metadata, _ = resolve(metadata)
    tokens = read_tokens(metadata)
    kind = read_text(metadata, PREFIX + "model") or ""
    types = read_numbers(metadata, "token_type", len(tokens)) if PREFIX + "token_type" in metadata else ()
    ids = {role: _read_id(metadata, role, len(tokens)) for role in ROLE_KEYS}
    for role, default in _DEFAULT_IDS.get(kind, {}).items():
        if ids[role] is None and default < len(types) and types[default] in (CONTROL, UNKNOWN):
            ids[role] = default
    if kind == "bert" and ids["bos"] is None:
        ids["bos"] = ids["cls"]
    add_bos, add_eos = _DEFAULT_ADDS.get(kind, (False, False))
    name = read_text(metadata, PREFIX + "pre") or ""
    pre = BY_NAME.get(name) if kind == "gpt2" else None  # other kinds have none, but the converter may write one
    if pre is not None:
        add_bos = pre.add_bos
    always_bos = kind in ("gemma4", "bert") or (kind == "gpt2" and name in _BOS_WHATEVER_THE_FILE_SAYS)
    spelled = {token: i for i, token in enumerate(tokens) if token in _END_TEXTS}
    html = spelled.get("</s>")
    ends = set(spelled.values()) - ({html} if html is not None and list(types[html : html + 1]) != [CONTROL] else set())
    add_bos = read_flag(metadata, "add_bos_token", add_bos) or always_bos
    add_eos = read_flag(metadata, "add_eos_token", add_eos)
    one = add_eos and ids["sep"] is not None and ids["sep"] == ids["eos"]
    xlm_r = kind == "t5" and add_bos and one  # `<s> A </s></s> B </s>`, in files older than the key
    says_sep = PREFIX + "add_sep_token" in metadata
    add_sep = read_flag(metadata, "add_sep_token", xlm_r or (pre is not None and pre.add_sep))
    # `[CLS] A [SEP] B [SEP]` is false to gguf-py; `<s> A </s> <s> B </s>` is too, but such a vocabulary names no SEP
    ends_both = says_sep and not add_sep and one
    return SpecialTokens(
        **ids,
        add_bos=add_bos,
        add_eos=add_eos and kind != "bert",
        sep_after=kind == "bert",
        add_sep=add_sep and (add_eos or kind != "bert"),  # without EOS, the one SEP after the first text is meant
        bos_again=add_bos and kind != "bert" and not add_sep and not ends_both,
        ends_by_text=tuple(sorted(ends)),
        not_ends=tuple(_not_ends(spelled, "" if ids["eos"] is None else tokens[ids["eos"]])),
        suppressed=_suppressed(metadata, len(tokens)),
    )


def added_tokens(metadata: Metadata, vocabulary: Vocabulary, special: SpecialTokens) -> dict[int, AddedToken]:
    """Tokens that are matched in the raw text, by id, in id order.

    These are llama.cpp's `cache_special_tokens` with `parse_special`: control, unknown and user-defined tokens, after
    the types that are overridden by spelling, with the white space rules it derives from the names of models.
    """
    tokens = vocabulary.tokens
    added = {i: t != USER_DEFINED for i, t in enumerate(vocabulary.types) if t in (CONTROL, UNKNOWN, USER_DEFINED)}
    added.update((vocabulary.ids[text], True) for text in _END_TEXTS if text in vocabulary.ids)
    for role, texts in _FIM_TEXTS.items():
        named = [vocabulary.ids[text] for text in texts if text in vocabulary.ids]
        if named and getattr(special, role) is None:
            added[min(named)] = True
    added.update((vocabulary.ids[text], False) for text in _HARMONY_TEXTS if text in vocabulary.ids)
    for i in special.not_ends:
        if tokens[i] == "</s>":
            added.pop(i)  # llama.cpp makes it a normal token
        else:
            added[i] = False
    lstrip, rstrip = _stripping(metadata, vocabulary, added)
    return {i: AddedToken(added[i], lstrip=i in lstrip, rstrip=i in rstrip) for i in sorted(added)}


def _stripping(metadata: Metadata, vocabulary: Vocabulary, added: Iterable[int]) -> tuple[set[int], set[int]]:
    """Ids that swallow white space on their left, on their right."""
    name = (read_text(metadata, "general.name") or "").lower()
    pre = read_text(metadata, PREFIX + "pre") or ""
    arch = read_text(metadata, "general.architecture") or ""
    if any(part in pre for part in _LSTRIP_MASK_PRES) or any(part in arch for part in _LSTRIP_MASK_ARCHS):
        return {vocabulary.ids[text] for text in ("<mask>",) if text in vocabulary.ids}, set()
    if "phi-3" in name or "phi3" in name:
        return set(), {i for i in added if vocabulary.tokens[i] not in ("<unk>", "<s>", "<|endoftext|>")}
    if "modern-bert" in name:
        return {vocabulary.ids[text] for text in ("[MASK]",) if text in vocabulary.ids}, set()
    return set(), set()


def _read_id(metadata: Metadata, role: str, n_tokens: int) -> int | None:
    for key in ROLE_KEYS[role]:
        value = metadata.get(PREFIX + key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < n_tokens:
            raise TokenizerError(
                f"{PREFIX}{key} is {brief(value)}, but the ids go from 0 to {n_tokens - 1}", hint=COPY_HINT
            )
        return value
    return None


def _suppressed(metadata: Metadata, n_tokens: int) -> tuple[int, ...]:
    """`tokenizer.ggml.suppress_tokens`; ids outside the vocabulary are left out, as llama.cpp does."""
    values = metadata.get(PREFIX + "suppress_tokens", ())
    if not isinstance(values, array | list | tuple) or not all(type(value) is int for value in values):
        raise TokenizerError(f"{PREFIX}suppress_tokens is {brief(values)}, not an array of ids", hint=COPY_HINT)
    return tuple(i for i in values if 0 <= i < n_tokens)


def _not_ends(ends: dict[str, int], eos: str) -> list[int]:
    harmony = "<|return|>" in ends and ("<|call|>" in ends or "<|calls|>" in ends)
    solar = "<|flush|>" in ends and ("<|call|>" in ends or "<|calls|>" in ends)
    not_ends = [ends["<|end|>"]] if "<|end|>" in ends and (harmony or solar) else []
    if "</s>" in ends and ("<|tool_response>" in ends or eos == "<|plamo:eos|>"):
        not_ends.append(ends["</s>"])
    return not_ends
