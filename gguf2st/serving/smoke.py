"""One completion and one chat: does the served model answer, with finite logprobs?"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gguf2st.errors import ServeError
from gguf2st.serving.http import Answer, request

PROMPT = "The capital of France is"
QUESTION = "What is the capital of France?"
MAX_TOKENS = 12
TIMEOUT_S = 300.0
"""A first answer may compile kernels: 16 s were measured on 2 cores, for a model of 135M parameters."""

_HINT = "gguf2st verify DIR --model --run says what is missing or damaged"


@dataclass(frozen=True)
class SmokeAnswer:
    """One answer of the model.

    Attributes:
        kind: "completion" or "chat".
        prompt, text: what was said.
        logprobs: of each answered token.
        seconds: until the answer was complete.
    """

    kind: str
    prompt: str
    text: str
    logprobs: tuple[float, ...]
    seconds: float


def smoke(url: str, model: str, *, chat: bool, key: str | None = None) -> tuple[SmokeAnswer, ...]:
    """Ask for a completion and, where `chat`, for a chat. Greedy, 12 tokens.

    Raises:
        ServeError: no answer, an empty one, or logprobs that are not finite.
    """
    common = {"model": model, "max_tokens": MAX_TOKENS, "temperature": 0}
    asks: list[tuple[str, str, str, dict[str, Any]]] = [
        ("completion", "/v1/completions", PROMPT, {"prompt": PROMPT, "logprobs": 1})
    ]
    if chat:
        messages = [{"role": "user", "content": QUESTION}]
        asks.append(("chat", "/v1/chat/completions", QUESTION, {"messages": messages, "logprobs": True}))
    answers = []
    for kind, path, prompt, body in asks:
        started = time.monotonic()
        answer = request(url + path, common | body, key=key, timeout_s=TIMEOUT_S)
        text, logprobs = _read(kind, answer)
        answers.append(SmokeAnswer(kind, prompt, text, logprobs, round(time.monotonic() - started, 3)))
    return tuple(answers)


def _read(kind: str, answer: Answer) -> tuple[str, tuple[float, ...]]:
    if answer.status != 200:
        if "Out of range float values" in answer.text:
            raise ServeError(f"the {kind}'s logprobs are not finite: {answer.text[:300]}", hint=_HINT)
        status = f"HTTP {answer.status}" if answer.status else "no answer"
        hint = "vLLM's own log, above or with --log FILE, says why"
        raise ServeError(f"the {kind} failed: {status}: {answer.text[:500]}", hint=hint)
    try:
        choice = answer.json()["choices"][0]
        text = choice["text"] if kind == "completion" else choice["message"]["content"]
        logprobs = tuple(_logprobs(choice["logprobs"]))
    except (ValueError, LookupError, TypeError) as err:
        where = "choices[0].text" if kind == "completion" else "choices[0].message.content"
        raise ServeError(
            f"the {kind} is not of the form that vLLM answers in, JSON with {where} and logprobs: {answer.text[:300]}",
            hint="does something else than vLLM answer at this port? --port 0 takes a free one",
        ) from err
    if not logprobs:
        raise ServeError(f"the {kind} is empty: not one token was generated", hint=_HINT)
    if bad := [x for x in logprobs if not math.isfinite(x)]:
        raise ServeError(f"the {kind} has {len(bad)} logprobs of {len(logprobs)} that are not finite", hint=_HINT)
    return text or "", logprobs


def _logprobs(block: dict[str, Any]) -> Iterator[float]:
    values = block["token_logprobs"] if "token_logprobs" in block else [t["logprob"] for t in block["content"]]
    return (math.nan if v is None else float(v) for v in values)
