"""Do two tokenizer.json give the same ids, and the same text back? The `tokenizers` library answers, not the files."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

TEXTS = (
    "Hello, World! It's a test: don't panic, we'll see.",
    " leading and  double   spaces, trailing ",
    "\n\nnew\r\nlines\t\ttabs\n \n  mixed",
    "3.14159 1,234,567 0x1F4A9 2026-11-30 12345678901",
    "def f(x):\n    return {'a': x ** 2, \"b\": [1, 2]}  # done",
    "CamelCaseHTTPServer snake_case_name kebab-case e.g. i.e.",
    "naïve café Straße ÉCOLE ﬁne ½ Å e\u0301",
    "Привет, мир! Ελλάδα עברית العربية हिन्दी ภาษาไทย",
    "東京都は日本の首都です。 你好，世界！ 안녕하세요",
    "👩‍👩‍👧 emoji 🚀🔥 \u200b zero width \ufeff bom",
    "https://example.org/a?b=c&d=%20#e user@example.org",
    "$%^&*()_+-=[]{}|;:',.<>/?`~ <b>bold</b> <|x|> [UNK] ▁▁x",
    "",
)
"""Words, spaces, numbers, code, and scripts that normalizers and regexes treat differently."""
_CHUNK = 5_000
_CONTEXT = 8
"""Neighbouring tokens that are also read in one text, so that merges meet."""
_AROUND = ("{}", "a {} b", "a{}b")
"""How a special token stands in a text: spaces around it may be the token's or the text's."""
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def parts_that_differ(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Names of what two tokenizer.json say differently; merges may be pairs or texts, and tokens stand in any order."""
    found = [name for name in _PARTS if ours.get(name) != theirs.get(name)]
    one, other = (tokenizer.get("model") or {} for tokenizer in (ours, theirs))
    found += [f"model.{k}" for k in {**one, **other} if k != "merges" and one.get(k) != other.get(k)]
    if _merges(one) != _merges(other):
        found.append("model.merges")
    added = [{row.get("id"): row for row in tokenizer.get("added_tokens") or ()} for tokenizer in (ours, theirs)]
    return [*found, "added_tokens"] if added[0] != added[1] else found


def _merges(model: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = model.get("merges") or ()
    return [tuple(row.split(" ", 1)) if isinstance(row, str) else tuple(row) for row in rows]


def differences(ours: dict[str, Any], theirs: dict[str, Any], *, adding: bool = True) -> Iterator[str]:
    """What they make of the same texts, where that is not the same: one line for each kind of text.

    Tokens that only `ours` has fill up a vocabulary, and are left out.

    Args:
        ours, theirs: contents of tokenizer.json.
        adding: whether what is added to each text counts, such as BOS.

    Raises:
        ValueError: the library refuses one of them.
    """
    one, other = _loaded(ours), _loaded(theirs)
    special = {row["id"]: row["content"] for row in ours.get("added_tokens") or ()}
    plain = [i for i in range(one.get_vocab_size()) if i not in special and other.id_to_token(i) is not None]
    words = one.decode_batch([[i] for i in plain], skip_special_tokens=False)
    runs = [plain[i : i + _CONTEXT] for i in range(0, len(plain), _CONTEXT)]
    kinds: tuple[tuple[str, Sequence[str], bool], ...] = (
        ("text", TEXTS, False),
        *([("text with what is added to each", TEXTS, True)] if adding else []),
        ("the text of a token", words, False),
        ("the text of neighbouring tokens", one.decode_batch(runs, skip_special_tokens=False), False),
        ("a special token", [form.format(t) for t in special.values() for form in _AROUND], False),
    )
    for kind, texts, add in kinds:
        for start in range(0, len(texts), _CHUNK):
            batch = list(texts[start : start + _CHUNK])
            ids = [[e.ids for e in tokenizer.encode_batch(batch, add_special_tokens=add)] for tokenizer in (one, other)]
            if wrong := [i for i in range(len(batch)) if ids[0][i] != ids[1][i]]:
                i = wrong[0]
                yield f"{kind}, {batch[i][:40]!r}: ids {_few(ids[1][i])}, by the source {_few(ids[0][i])}"
                break
    ids = [e.ids for e in one.encode_batch(list(TEXTS))] + runs
    back = [tokenizer.decode_batch(ids, skip_special_tokens=False) for tokenizer in (one, other)]
    for i, (text, found) in enumerate(zip(*back, strict=True)):
        if "".join(text.split()) != "".join(found.split()):
            yield f"ids {_few(ids[i])} read back: {found[:40]!r}, by the source {text[:40]!r}"
            break


def _loaded(content: dict[str, Any]) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(json.dumps(content | {"truncation": None, "padding": None}))
    except BaseException as error:  # the library raises nothing narrower, and its panics are no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ValueError(str(error)) from error
    return tokenizer


def _few(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:8]))}{', ...' if len(ids) > 8 else ''}]"
