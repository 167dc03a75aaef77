"""What a served model does, by its checkpoint, and a small request of that kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf2st.config.pooling import MODULES_FILE
from gguf2st.serving.preflight import CLASSIFIER
from gguf2st.tokenizer.templates import RERANK, template_path
from gguf2st.verification.checkpoint import read_json

PROMPT = "The capital of France is"
QUESTION = "What is the capital of France?"
DOCUMENTS = ("The capital of France is Paris.", "Water boils at one hundred degrees.")
MAX_TOKENS = 12

GENERATE, SCORE, CLASSIFY, EMBED = "generate", "score", "classify", "embed"
_ENCODERS = ("Model", "ForMaskedLM")
"""How the names of classes end that have no head of their own."""


def task_of(folder: Path) -> str:
    """GENERATE, SCORE (a classifier with one output), CLASSIFY or EMBED.

    vLLM 0.32 takes whatever has a modules.json of sentence-transformers for a model that embeds, and chooses by the
    name of the class otherwise (config/model.py, _get_default_convert_type and get_pooling_config).
    """
    config = read_json(folder / "config.json", [])
    classes = config.get("architectures")
    name = str(classes[0]) if isinstance(classes, list) and classes else ""
    if name.endswith(CLASSIFIER):
        labels = config.get("id2label")
        count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)  # as transformers has it
        return SCORE if count == 1 else CLASSIFY
    return EMBED if name.endswith(_ENCODERS) or (folder / MODULES_FILE).is_file() else GENERATE


def prompt_template(folder: Path) -> Path | None:
    """The prompt of a reranker, which vLLM wants as --chat-template: without it it scores bare texts, in silence.

    None where the model is no reranker, or has no prompt.
    """
    template = folder / template_path(RERANK)
    return template if template.is_file() and task_of(folder) == SCORE else None


def request_of(task: str, model: str, *, chat: bool = False) -> tuple[str, Mapping[str, Any]]:
    """(path below the server's address, body) of a request that a model of a task answers; greedy where it generates.

    Args:
        task: of `task_of`.
        model: its served name.
        chat: of a model that generates, for a chat instead of a completion.
    """
    if task == SCORE:
        return "/score", {"model": model, "queries": QUESTION, "documents": list(DOCUMENTS)}
    if task == CLASSIFY:
        return "/classify", {"model": model, "input": PROMPT}
    if task == EMBED:
        return "/v1/embeddings", {"model": model, "input": PROMPT}
    body = {"model": model, "max_tokens": MAX_TOKENS, "temperature": 0}
    if chat:
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": QUESTION}]}
    return "/v1/completions", body | {"prompt": PROMPT}
