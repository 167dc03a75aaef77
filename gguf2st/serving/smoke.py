"""A few requests of the kind that a model is for: does it answer, with finite numbers?"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gguf2st.errors import ServeError
from gguf2st.serving.http import Answer, request
from gguf2st.serving.tasks import CLASSIFY, DOCUMENTS, EMBED, GENERATE, PROMPT, QUESTION, SCORE, request_of

TIMEOUT_S = 300.0
"""A first answer may compile kernels: 16 s were measured on 2 cores, for a model of 135M parameters."""

_HINT = "gguf2st verify DIR --model --run says what is missing or damaged"
_NUMBERS = {
    "completion": "choices[0].text and logprobs",
    "chat": "choices[0].message.content and logprobs",
    SCORE: "data[].score",
    CLASSIFY: "data[0].probs",
    EMBED: "data[0].embedding",
}
"""Kind -> what its answer must have."""


@dataclass(frozen=True)
class SmokeAnswer:
    """One answer of the model.

    Attributes:
        kind: "completion" or "chat"; of a model that does not generate "score", "classify" or "embed".
        prompt, text: what was said; no text comes of a model that does not generate.
        logprobs: of each answered token.
        seconds: until the answer was complete.
        values: scores of documents, probabilities of labels, or a vector.
    """

    kind: str
    prompt: str
    text: str
    logprobs: tuple[float, ...]
    seconds: float
    values: tuple[float, ...] = ()

    @property
    def summary(self) -> str:
        """The answer in a line."""
        said = f"{self.kind} in {self.seconds:.1f} s: {self.prompt!r} -> "
        if self.logprobs:
            mean = sum(self.logprobs) / len(self.logprobs)
            return f"{said}{self.text!r} ({len(self.logprobs)} tokens, all logprobs finite, mean {mean:.2f})"
        if self.kind == SCORE:
            scores = (f"{score:.4f} for {text!r}" for score, text in zip(self.values, DOCUMENTS, strict=False))
            return said + ", ".join(scores)
        if self.kind == CLASSIFY:
            best = max(range(len(self.values)), key=self.values.__getitem__)
            return f"{said}label {best} of {len(self.values)}, with {self.values[best]:.4f}"
        return f"{said}a vector of {len(self.values)} finite numbers"


def smoke(url: str, model: str, *, chat: bool, key: str | None = None, task: str = GENERATE) -> tuple[SmokeAnswer, ...]:
    """Ask for a completion and, where `chat`, for a chat; a model that does not generate for what it does.

    Raises:
        ServeError: no answer, an empty one, or numbers that are not finite.
    """
    kinds = ("completion", "chat")[: 1 + chat] if task == GENERATE else (task,)
    answers = []
    for kind in kinds:
        path, body = request_of(task, model, chat=kind == "chat")
        if task == GENERATE:
            body = {**body, "logprobs": True if kind == "chat" else 1}
        started = time.monotonic()
        answer = request(url + path, body, key=key, timeout_s=TIMEOUT_S)
        text, numbers = _read(kind, answer)
        prompt = QUESTION if kind in ("chat", SCORE) else PROMPT
        logprobs, values = (numbers, ()) if task == GENERATE else ((), numbers)
        answers.append(SmokeAnswer(kind, prompt, text, logprobs, round(time.monotonic() - started, 3), values))
    return tuple(answers)


def _read(kind: str, answer: Answer) -> tuple[str, tuple[float, ...]]:
    numbers_are = "logprobs" if kind in ("completion", "chat") else "numbers"
    if answer.status != 200:
        if "Out of range float values" in answer.text:
            raise ServeError(f"the {kind}'s {numbers_are} are not finite: {answer.text[:300]}", hint=_HINT)
        status = f"HTTP {answer.status}" if answer.status else "no answer"
        hint = "vLLM's own log, above or with --log FILE, says why"
        raise ServeError(f"the {kind} failed: {status}: {answer.text[:500]}", hint=hint)
    try:
        text, found = _parts(kind, answer.json())
        numbers = tuple(found)
    except (ValueError, LookupError, TypeError) as err:
        raise ServeError(
            f"the {kind} is not of the form that vLLM answers in, JSON with {_NUMBERS[kind]}: {answer.text[:300]}",
            hint="does something else than vLLM answer at this port? --port 0 takes a free one",
        ) from err
    if not numbers:
        none = "not one token was generated" if numbers_are == "logprobs" else "it has no number"
        raise ServeError(f"the {kind} is empty: {none}", hint=_HINT)
    if bad := [x for x in numbers if not math.isfinite(x)]:
        what = f"{len(bad)} {numbers_are} of {len(numbers)}"
        raise ServeError(f"the {kind} has {what} that are not finite", hint=_HINT)
    return text or "", numbers


def _parts(kind: str, found: Any) -> tuple[str, Iterator[float]]:
    """Text and numbers of an answer."""
    if kind == SCORE:
        return "", _floats(row["score"] for row in found["data"])
    if kind in (CLASSIFY, EMBED):
        return "", _floats(found["data"][0]["probs" if kind == CLASSIFY else "embedding"])
    choice = found["choices"][0]
    text = choice["text"] if kind == "completion" else choice["message"]["content"]
    block = choice["logprobs"]
    values = block["token_logprobs"] if "token_logprobs" in block else [token["logprob"] for token in block["content"]]
    return text, _floats(values)


def _floats(values: Any) -> Iterator[float]:
    return (math.nan if v is None else float(v) for v in values)
