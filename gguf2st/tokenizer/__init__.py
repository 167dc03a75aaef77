"""The tokenizer files of a checkpoint, rebuilt from `tokenizer.ggml.*` so that token ids equal llama.cpp's.

    vocab.py          tokens, types, scores, merges: read and checked
    pretokenizers.py  the regexes behind each `tokenizer.ggml.pre`; a new name is a word in one row
    bytelevel.py      kind `gpt2`
    sentencepiece.py  kind `llama`
    gemma4.py         kind `gemma4`; a new kind is a module like these three and a row of `files.KINDS`
    special.py        roles of special tokens, end of text, tokens matched in the raw text
    files.py          tokenizer.json, tokenizer_config.json, chat templates
    copied.py         the original tokenizer instead, compared with the vocabulary of the GGUF

Importing this package imports neither `tokenizers` nor transformers.
"""

from gguf2st.tokenizer.copied import copy_tokenizer
from gguf2st.tokenizer.files import TokenizerFiles, build_tokenizer, check_tokenizer
from gguf2st.tokenizer.special import SpecialTokens, special_tokens

__all__ = [
    "SpecialTokens",
    "TokenizerFiles",
    "build_tokenizer",
    "check_tokenizer",
    "copy_tokenizer",
    "special_tokens",
]
