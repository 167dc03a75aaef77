"""Encoders that embed text: padded positions, outputs of what classifies or ranks, ModernBERT's alternating windows."""

from typing import Any

from gguf2st.config.attention import layer_types
from gguf2st.config.functions import FileScope, assumed, function, given
from gguf2st.config.rope import by_kind, require_whole_heads, scaling_of, theta_of
from gguf2st.errors import MapError


@function("attention.causal")
def encoder(scope: FileScope) -> dict[str, Any]:
    """Nothing for config.json.

    Raises:
        MapError: the file's attention is causal: no encoder.
    """
    if scope.get("attention.causal") is not False:
        raise MapError("attention.causal is not false, so that the file holds no encoder")
    return {}


@function("tokenizer.ggml.padding_token_id")
def padded_positions(scope: FileScope) -> int:
    """How many position embeddings llama.cpp's converter cut off: those up to the padding token's id.

    RoBERTa numbers its positions from the padding token's id + 1 on; no position uses the rows before.

    Raises:
        MapError: the file does not say which token pads.
    """
    pad = scope.get("tokenizer.ggml.padding_token_id")
    if pad is None:
        raise MapError("the file has no tokenizer.ggml.padding_token_id, from which RoBERTa numbers its positions")
    return int(pad) + 1


@function("rope.", "attention.sliding_window", "attention.sliding_window_pattern")
def modern_bert_attention(scope: FileScope, layers: int, head_dim: int) -> dict[str, Any]:
    """ModernBERT: every third layer sees everything, the first one included, the others a window with their own base.

    A pattern n in the file makes layers 0, n, 2n, ... full (llama.cpp: load_swa_pattern with `dense_first`); 3 is its
    default. transformers 4.x and vLLM read the pattern as global_attn_every_n_layers, the bases as *_rope_theta.
    """
    window = scope.get("attention.sliding_window")
    if not window:
        raise MapError("attention.sliding_window is missing, which ModernBERT's class needs")
    require_whole_heads(scope, head_dim)
    if scaling_of(scope):
        raise MapError("rope scaling, which no ModernBERT has")
    pattern = given(scope, "attention.sliding_window_pattern", 3)
    types = layer_types(scope, layers, default_pattern=3, dense_first=True)
    theta = theta_of(scope, "rope.freq_base")
    local = theta_of(scope, "rope.freq_base_swa") if scope.get("rope.freq_base_swa") else theta
    out: dict[str, Any] = {
        "local_attention": window,
        "layer_types": types,
        "global_rope_theta": theta,
        "local_rope_theta": local,
        "rope_parameters": by_kind(theta, local, {}),
    }
    return out | ({"global_attn_every_n_layers": pattern} if isinstance(pattern, int) else {})


CLASSIFIER_POOLING = {1: "mean", 2: "cls"}
"""llama.cpp's numbers for the two (llama_pooling_type in llama.h) that ModernBERT's class has."""


@function("classifier.pooling_type")
def classifier_pooling(scope: FileScope) -> str:
    """What a classifier judges by: the first token, or the mean of all, which ModernBERT was published with.

    Raises:
        MapError: something else.
    """
    kind = scope.get("classifier.pooling_type")
    if kind is None:
        return str(assumed(scope, "mean", "classifier_pooling", "the file does not say; ModernBERT was published so"))
    if kind not in CLASSIFIER_POOLING:
        raise MapError(f"classifier.pooling_type is {kind}; 1, the mean, or 2, the first token, was expected")
    return CLASSIFIER_POOLING[kind]


@function("classifier.output_labels")
def labels(scope: FileScope, n: int) -> dict[str, Any]:
    """Names of a classifier's `n` outputs, as transformers has them: both ways, and numbered where the file has none.

    Raises:
        MapError: names of another number of outputs.
    """
    names = given(scope, "classifier.output_labels", [f"LABEL_{i}" for i in range(n)])
    if len(names) != n:
        raise MapError(f"classifier.output_labels has {len(names)} names for {n} outputs")
    return {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {x: i for i, x in enumerate(names)}}


@function("classifier.output_labels")
def yes_or_no(scope: FileScope) -> dict[str, Any]:
    """The one output of a language model that ranks: how much likelier "yes" is than "no" as the next token.

    llama.cpp's file has the rows of both tokens, in this order, and takes the softmax of the two; the classes of
    transformers and vLLM have their difference, and vLLM and sentence-transformers take the sigmoid of one output.

    Raises:
        MapError: the two rows are of other tokens, or the file does not say of which.
    """
    names = scope.get("classifier.output_labels")
    if names != ["yes", "no"]:
        found = f"is {names}" if names else "is missing"
        raise MapError(f"classifier.output_labels {found}; the head of a reranker has the rows of 'yes' and 'no'")
    scope.note(
        'score.weight is the row of "yes" less that of "no": a sigmoid of its output is llama.cpp\'s score, and what '
        "vLLM gives for /score and /rerank"
    )
    return {"id2label": {"0": "yes"}, "label2id": {"yes": 0}}


@function()
def without_expert_bias(scope: FileScope) -> dict[str, Any]:
    """Nothing for config.json: says that a vector of the original is not in the file."""
    scope.note("llama.cpp drops the bias of the experts (mlp.experts.bias): zeros are written, as it computes")
    return {}
