"""The files of an embedding model: how the vectors of a text's tokens become one, for which config.json has no key.

sentence-transformers reads modules.json and the folders that it names, and so does vLLM (transformers_utils/config.py,
get_pooling_config), which also takes a model with them for one that embeds, whatever its class. Classes and keys have
the names of sentence-transformers' first releases: later ones have others, and read these.
"""

from collections.abc import Mapping
from typing import Any

from gguf2st.config.functions import FileScope
from gguf2st.errors import MapError

POOLING = ("NONE", "MEAN", "CLS", "LAST", "RANK")
"""enum llama_pooling_type of llama.h."""
_MODES = {"MEAN": "mean_tokens", "CLS": "cls_token", "LAST": "lasttoken"}
"""Pooling -> its pooling_mode_* key."""
_OTHER_MODES = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
_KIND = "sentence_transformers.models"
MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"


def embedding_files(scope: FileScope) -> dict[str, Any]:
    """JSON files by name; none where the file does not say how to pool, or ranks, which its classifier's class does.

    The last module scales a vector to length 1. Whether the original has it no file says: llama.cpp and vLLM do it
    unless told otherwise, and cosine similarity is the same without.

    Raises:
        MapError: a way to pool that llama.cpp does not know.
    """
    kind, width = scope.get("pooling_type"), scope.get("embedding_length")
    if kind is None:
        return {}
    if kind >= len(POOLING):
        raise MapError(f"pooling_type is {kind}; 0 to {len(POOLING) - 1} are known")
    mode = _MODES.get(POOLING[kind])
    if mode is None:
        scope.note(f"pooling_type is {POOLING[kind]}: no modules.json is written")
        return {}
    scope.note(
        f"vectors of tokens are pooled by {POOLING[kind]} ({POOLING_FILE}), as the file says, and scaled to length 1"
        f" ({MODULES_FILE}), which is assumed: llama.cpp does it unless told otherwise"
    )
    modes = {f"pooling_mode_{name}": name == mode for name in (*_MODES.values(), *_OTHER_MODES)}
    modules = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    return {
        POOLING_FILE: {"word_embedding_dimension": width, **modes, "include_prompt": True},
        MODULES_FILE: [
            {"idx": n, "name": str(n), "path": path, "type": f"{_KIND}.{name}"}
            for n, (path, name) in enumerate(modules)
        ],
    }


def modes_of(config: Mapping[str, Any]) -> set[str]:
    """The ways to pool that a config.json of a Pooling module names, in its old spelling or its new one."""
    mode = config.get("pooling_mode")
    named = [mode] if isinstance(mode, str) else mode if isinstance(mode, list) else []
    flags = [key.removeprefix("pooling_mode_") for key, on in config.items() if key.startswith("pooling_mode_") and on]
    return {str(name).removesuffix("_tokens").removesuffix("_token") for name in (*named, *flags)}
