"""Which pre-tokenizer a file means: what it says, or what its vocabulary shows when it says nothing.

Files of before 2024 have no `tokenizer.ggml.pre`, and converters that did not know a tokenizer wrote `default`.
llama.cpp then splits by a rule that fits no model ("generation quality will be degraded"). A few tokens at their places
identify the vocabularies that most models share; the first signature that fits decides, and a note says so.
"""

from dataclasses import dataclass

from gguf2st.errors import TokenizerError
from gguf2st.header.keys import brief
from gguf2st.tokenizer.pretokenizers import BY_NAME, SUPPORTED, PreTokenizer
from gguf2st.tokenizer.vocab import PREFIX, Metadata, read_text

CHOOSE_HINT = "name it with --tokenizer-pre NAME, or take the original tokenizer with --tokenizer-from DIR_OR_REPO"


@dataclass(frozen=True)
class Signature:
    """A vocabulary and its pre-tokenizer.

    Attributes:
        pre: the name llama.cpp has for it.
        vocabulary: its name for people.
        tokens: texts that stand at these ids.
        archs: GGUF architectures that it is limited to, where others share the vocabulary; empty is any.
    """

    pre: str
    vocabulary: str
    tokens: dict[int, str]
    archs: tuple[str, ...] = ()


_DEEPSEEK_BOS, _DEEPSEEK_EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SIGNATURES = (
    Signature("llama-bpe", "Llama 3", {128000: "<|begin_of_text|>", 128009: "<|eot_id|>"}),
    Signature("qwen35", "Qwen", {151643: "<|endoftext|>", 151644: "<|im_start|>"}, ("qwen35", "qwen35moe")),
    Signature("qwen35", "Qwen 3.5", {0: "!", 248044: "<|endoftext|>", 248046: "<|im_end|>"}),
    Signature("qwen2", "Qwen", {0: "!", 151643: "<|endoftext|>", 151644: "<|im_start|>"}),
    Signature("gpt-4o", "o200k", {0: "!", 199999: "<|endoftext|>", 200018: "<|endofprompt|>"}),
    Signature("gpt-4o", "o200k (harmony)", {0: "!", 199998: "<|startoftext|>", 200006: "<|start|>"}),
    Signature("stablelm2", "cl100k", {0: "!", 100257: "<|endoftext|>"}, ("stablelm",)),
    Signature("dbrx", "cl100k", {0: "!", 100257: "<|endoftext|>"}, ("dbrx", "phi3", "olmo2")),
    Signature(
        "deepseek-v3",
        "DeepSeek V3",
        {0: "<｜begin▁of▁sentence｜>", 1: "<｜end▁of▁sentence｜>", 128798: "<｜fim▁hole｜>"},
    ),
    Signature("deepseek-llm", "DeepSeek LLM", {100000: _DEEPSEEK_BOS, 100001: _DEEPSEEK_EOS}),
    Signature("deepseek-coder", "DeepSeek Coder", {32013: _DEEPSEEK_BOS, 32014: _DEEPSEEK_EOS}),
    Signature("falcon", "Falcon", {0: ">>TITLE<<", 11: "<|endoftext|>"}),
    Signature("command-r", "Command R", {5: "<BOS_TOKEN>", 255001: "<|END_OF_TURN_TOKEN|>"}),
    Signature("smollm", "SmolLM", {0: "<|endoftext|>", 1: "<|im_start|>", 4: "<reponame>", 16: "<empty_output>"}),
    Signature("starcoder", "StarCoder", {0: "<|endoftext|>", 1: "<fim_prefix>", 4: "<fim_pad>"}),
    Signature("gpt-2", "GPT-2", {0: "!", 256: "Ġt", 50256: "<|endoftext|>"}),
    Signature("gpt-2", "GPT-NeoX", {0: "<|endoftext|>", 1: "<|padding|>", 50254: " " * 24}),
    Signature("gpt-2", "Aquila", {0: "<|endoftext|>", 100002: "<|LDWANG|>"}),
    Signature("tekken", "Tekken", {0: "<unk>", 1: "<s>", 3: "[INST]", 4: "[/INST]"}),
    Signature("bloom", "BLOOM", {0: "<unk>", 1: "<s>", 3: "<pad>"}, ("bloom",)),
)


def resolve(metadata: Metadata) -> tuple[Metadata, list[str]]:
    """The metadata with the `tokenizer.ggml.pre` that its vocabulary shows, where it says nothing; and notes on it."""
    key = PREFIX + "pre"
    said = read_text(metadata, key)
    if read_text(metadata, PREFIX + "model") != "gpt2" or said not in (None, "", "default"):
        return metadata, []
    found = next((s for s in SIGNATURES if _fits(s, metadata)), None)
    if found is None:
        return metadata, []
    note = f"{key} is {said!r}; the vocabulary is that of {found.vocabulary}, so words are split as {found.pre!r} says"
    return {**metadata, key: found.pre}, [note]


def with_pretokenizer(metadata: Metadata, name: str) -> Metadata:
    """The metadata with another `tokenizer.ggml.pre`, whatever the file says: the user knows better.

    Raises TokenizerError for a name that is not in the table, and for files of a kind that has no pre-tokenizer.
    """
    kind = read_text(metadata, PREFIX + "model")
    if kind != "gpt2":
        raise TokenizerError(
            f"only {PREFIX}model 'gpt2' has a pre-tokenizer to choose, not {brief(kind)}",
            hint="leave --tokenizer-pre out",
        )
    if name not in SUPPORTED:
        raise TokenizerError(
            f"--tokenizer-pre {brief(name)} is not supported", problems=[_available()], hint=CHOOSE_HINT
        )
    return {**metadata, PREFIX + "pre": name}


def read_pretokenizer(metadata: Metadata) -> PreTokenizer:
    """The row that `tokenizer.ggml.pre` names.

    Raises TokenizerError when it is absent, `default` or not in the table: a wrong regex would give wrong token ids
    without any sign of it.
    """
    name = read_text(metadata, PREFIX + "pre")
    if name in BY_NAME:
        return BY_NAME[name]
    if not name:
        message = (
            f"the file has no {PREFIX}pre, and its vocabulary is none that is known: nothing says how words are split"
        )
    elif name == "default":
        message = (
            f"{PREFIX}pre is 'default', which only says that the converter did not know how words are split, and the "
            "vocabulary is none that is known"
        )
    else:
        message = f"{PREFIX}pre {brief(name)} is not supported"
    raise TokenizerError(message, hint=CHOOSE_HINT, problems=[_available()])


def _fits(signature: Signature, metadata: Metadata) -> bool:
    tokens = metadata.get(PREFIX + "tokens")
    if not isinstance(tokens, list):
        return False
    if signature.archs and metadata.get("general.architecture") not in signature.archs:
        return False
    return all(i < len(tokens) and tokens[i] == text for i, text in signature.tokens.items())


def _available() -> str:
    return f"available: {', '.join(sorted(SUPPORTED))}"
