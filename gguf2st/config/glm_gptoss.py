"""GLM's converter that forgets, and gpt-oss' windows and yarn."""

from typing import Any

from gguf2st.config.attention import layer_types, window_of
from gguf2st.config.functions import FileScope, function, given
from gguf2st.config.rope import rope
from gguf2st.errors import MapError

FORGOTTEN_EPSILON = 1e-5
"""What conversion/chatglm.py writes for GlmForCausalLM, whose rms_norm_eps it does not read."""
GLM_5_2_CONTEXT = 1 << 20


@function("attention.layer_norm_rms_epsilon", "context_length")
def glm_unsure(scope: FileScope, hidden: int) -> dict[str, Any]:
    """rms_norm_eps and max_position_embeddings of arch chatglm, with a note where the converter did not know them.

    It reads the names of the ChatGLM classes only: for GlmForCausalLM it writes 1e-5 and the hidden size.
    """
    epsilon, context = scope.get("attention.layer_norm_rms_epsilon"), scope.get("context_length")
    if context == hidden:
        scope.note(
            f"max_position_embeddings = {context} is what the file says, but llama.cpp's converter writes the hidden"
            " size where it does not find the context length, nor then the rope base: compare them with the model card"
        )
    if epsilon == FORGOTTEN_EPSILON:
        scope.note(
            f"rms_norm_eps = {epsilon} is what the file says, but llama.cpp's converter writes it where it does not"
            " find the value: GLM-4-9B has 1.5625e-07"
        )
    return {"rms_norm_eps": epsilon, "max_position_embeddings": context}


@function("attention.sliding_window", "attention.sliding_window_pattern")
def gpt_oss_attention(scope: FileScope, layers: int) -> dict[str, Any]:
    """A window in every other layer, the first one included."""
    return {
        "sliding_window": window_of(scope),
        "layer_types": layer_types(scope, layers, default_pattern=2),
    }


@function("rope.")
def gpt_oss_rope(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """`rope` with the `truncate = false` of every published gpt-oss, which no metadata key holds."""
    out = rope(scope, head_dim)
    if out["rope_parameters"]["rope_type"] == "yarn":
        scope.note("truncate = false is assumed in the yarn parameters: the file does not say; every gpt-oss has it")
        out["rope_parameters"] = out["rope_parameters"] | {"truncate": False}
        out["rope_scaling"] = out["rope_scaling"] | {"truncate": False}
    return out


@function("attention.indexer.types", "context_length")
def glm_indexers(scope: FileScope, layers: int) -> dict[str, list[str]]:
    """Which layers of GLM-5 run an indexer of their own, the others using the choice of the one before.

    Where the file does not say, llama.cpp (src/models/glm-dsa.cpp) tells GLM-5.2 by its context length: layers 0 and 1,
    then every fourth from 2 on. GLM-5 and 5.1 have one in every layer.
    """
    types = scope.get("attention.indexer.types")
    if types is None:
        every = given(scope, "context_length", 0) < GLM_5_2_CONTEXT
        types = [every or i < 2 or i % 4 == 2 for i in range(layers)]
    if len(types) < layers:
        raise MapError(f"attention.indexer.types has {len(types)} items for {layers} layers")
    return {"indexer_types": ["full" if own else "shared" for own in types[:layers]]}
