"""gguf2st: convert GGUF models into complete, verified Hugging Face safetensors checkpoints.

    import gguf2st

    report = gguf2st.convert("model.Q4_K_M.gguf", "model")
    gguf2st.verify("model", against="model.Q4_K_M.gguf").require_ok()

Importing the package is cheap: numpy, numba, tokenizers and torch are loaded by the calls that need them.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gguf2st.api import Options, convert, convert_planned, finish, make_plan, open_gguf, push, verify, write_plan
    from gguf2st.errors import Gguf2stError
    from gguf2st.hub.push import PushOptions

__all__ = [
    "Gguf2stError",
    "Options",
    "PushOptions",
    "__version__",
    "convert",
    "convert_planned",
    "finish",
    "make_plan",
    "open_gguf",
    "push",
    "verify",
    "write_plan",
]


def __getattr__(name: str) -> Any:
    """Load the API on first use (PEP 562)."""
    if name == "Gguf2stError":
        from gguf2st.errors import Gguf2stError

        return Gguf2stError
    if name in __all__:
        from gguf2st import api

        return getattr(api, name)
    raise AttributeError(f"module 'gguf2st' has no attribute {name!r}")
