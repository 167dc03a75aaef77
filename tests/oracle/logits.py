"""llama.cpp's logits, each in a fork of a process that has loaded llama.cpp alone.

llama.cpp may end its process. A fork of pytest would do too, as `in_child` has it, but with torch and transformers in
it takes longer to make than the logits.
"""

import functools
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.oracle.fork_server import Server, orders
from tests.oracle.llamacpp import ChildDiedError, LlamaCpp

What: TypeAlias = Literal["logits", "embeddings", "scores"]
"""Methods of `LlamaCpp`."""


def compute(path: Path, ids: Sequence[int], what: What = "logits") -> npt.NDArray[np.float32]:
    """Logits after every token, what an encoder makes of it, or the scores of a text.

    (n,) -> (n, n_tokens), (n, hidden) or (1, outputs)

    Raises ChildDiedError with the exit code or signal when llama.cpp ends the process, and its own errors otherwise.
    """
    reading, writing = os.pipe()
    server = _server()
    started = server.start({"path": str(path), "ids": list(ids), "what": what}, [writing])
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read() if started else b""
    if not started:
        raise RuntimeError("one at a time: the tests of a process are")
    if code := server.wait():
        raise ChildDiedError(f"llama.cpp ended with {code} on {path}")
    value: Any = pickle.loads(answer)
    if isinstance(value, Exception):
        raise value
    found: npt.NDArray[np.float32] = value
    return found


@functools.cache
def _server() -> Server:
    return Server("tests.oracle.logits")


def _answer(order: dict[str, Any]) -> Any:
    try:
        with LlamaCpp(Path(order["path"]), n_ctx=64, n_threads=1, ranks=order["what"] == "scores") as model:
            return getattr(model, order["what"])(order["ids"])
    except Exception as error:
        return error


def main() -> None:
    os.environ["GGML_NO_BACKTRACE"] = "1"  # otherwise an assert starts gdb
    order, (writing,) = orders()
    with open(writing, "wb") as pipe:
        pipe.write(pickle.dumps(_answer(order)))
    os._exit(0)


if __name__ == "__main__":
    main()
