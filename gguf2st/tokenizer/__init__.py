"""The tokenizer files of a checkpoint, rebuilt from `tokenizer.ggml.*` so that token ids equal llama.cpp's.

    vocab.py          tokens, types, scores, merges: read and checked
    pretokenizers.py  the regexes behind each `tokenizer.ggml.pre`; a new name is a word in one row
    evidence.py       which of them a file means that does not say
    bytelevel.py      kind `gpt2`
    sentencepiece.py  kind `llama`
    rawtext.py        kinds `gemma4` and `whitespace`
    wordpiece.py      kind `bert`
    unigram.py        kind `t5`; a new kind is a module like these five and a row of `files.KINDS`
    special.py        roles of special tokens, end of text, tokens matched in the raw text
    templates.py      chat templates: read, and what transformers will refuse in them
    files.py          tokenizer.json, tokenizer_config.json, chat templates
    copied.py         the original tokenizer instead, compared with the vocabulary of the GGUF

Importing this package imports neither `tokenizers` nor transformers.
"""

from gguf2st.tokenizer.copied import TOKENIZER_PATTERNS, copy_tokenizer, require_own_files
from gguf2st.tokenizer.evidence import with_pretokenizer
from gguf2st.tokenizer.files import TokenizerFiles, TokenizerPlan, build_tokenizer, plan_tokenizer
from gguf2st.tokenizer.special import SpecialTokens, special_tokens
from gguf2st.tokenizer.templates import read_templates, refused

__all__ = [
    "TOKENIZER_PATTERNS",
    "SpecialTokens",
    "TokenizerFiles",
    "TokenizerPlan",
    "build_tokenizer",
    "copy_tokenizer",
    "plan_tokenizer",
    "read_templates",
    "refused",
    "require_own_files",
    "special_tokens",
    "with_pretokenizer",
]
