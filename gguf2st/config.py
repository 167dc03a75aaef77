"""config.json and generation_config.json: what a map's [config] table cannot say with arithmetic alone.

The functions in `FUNCTIONS` are called from maps (`"*rope" = "rope(head_dim)"`), get the file's scope first, and
return the config.json keys they are responsible for. Old and new spellings are written together, so that
transformers 4.5x (rope_theta, rope_scaling, torch_dtype), 5.x (rope_parameters, dtype) and vLLM read the same model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gguf2st.errors import MapError
from gguf2st.rope_fit import fit_llama3

if TYPE_CHECKING:
    from gguf2st.tokenizer import SpecialTokens


class FileScope(Protocol):
    """What a config function sees of the file; every read is recorded, so that nothing is dropped unread."""

    def get(self, key: str) -> Any:
        """Metadata value below the architecture, or None."""
        ...

    def tensor(self, name: str, why: str) -> list[float] | None:
        """Values of a small float32 tensor that becomes configuration (`why`), or None when the file lacks it."""
        ...

    def note(self, text: str) -> None:
        """Say something about the result in the report."""
        ...


@dataclass(frozen=True, slots=True)
class Function:
    """A function that maps may call.

    Attributes:
        fn: (scope, *arguments) -> config.json keys.
        reads: metadata keys that are its business; one that ends in a dot stands for all that begin so.
    """

    fn: Callable[..., Any]
    reads: tuple[str, ...]


FUNCTIONS: dict[str, Function] = {}

_Fn = TypeVar("_Fn", bound=Callable[..., Any])


def _function(*reads: str) -> Callable[[_Fn], _Fn]:
    def register(fn: _Fn) -> _Fn:
        FUNCTIONS[fn.__name__] = Function(fn, reads)
        return fn

    return register


@_function("rope.")
def rope(scope: FileScope, head_dim: int) -> dict[str, Any]:
    """Rotary embedding over whole heads: theta, and linear, yarn or llama3 scaling.

    Raises:
        MapError: partial rotary embedding, or scaling that has no known form.
    """
    theta = _theta(scope, "rope.freq_base")
    _require_whole_heads(scope, head_dim)
    scaling = _scaling(scope) or _llama3_scaling(scope, theta, head_dim)
    out = {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta} | scaling}
    return out | ({"rope_scaling": scaling} if scaling else {})


@_function("rope.", "attention.sliding_window", "attention.sliding_window_pattern")
def gemma3_attention(scope: FileScope, layers: int, heads: int, head_dim: int, hidden: int) -> dict[str, Any]:
    """Gemma 3: five sliding-window layers with their own rope base, then a full one; scaling on full layers only.

    query_pre_attn_scalar is in no metadata key. llama.cpp decides it by the number of layers (62: the 27B model,
    which uses hidden / heads), and so do we; every other published size uses head_dim.
    """
    window = scope.get("attention.sliding_window") or 0
    types = _layer_types(scope, layers, default_pattern=6) if window else ["full_attention"] * layers
    theta, local = _theta(scope, "rope.freq_base"), _theta(scope, "rope.freq_base_swa")
    _require_whole_heads(scope, head_dim)
    scaling = _scaling(scope)
    out: dict[str, Any] = {
        "sliding_window": window or None,
        "layer_types": types,
        "query_pre_attn_scalar": hidden // heads if layers == 62 else head_dim,
        "rope_theta": theta,
        "rope_local_base_freq": local,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": theta} | scaling,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }
    if "full_attention" in types:
        out["sliding_window_pattern"] = types.index("full_attention") + 1
    return out | ({"rope_scaling": scaling} if scaling else {})


def _require_whole_heads(scope: FileScope, head_dim: int) -> None:
    """Raise MapError when the rotary embedding covers another number of dimensions than a head has."""
    dims = scope.get("rope.dimension_count") or head_dim
    if dims != head_dim:
        raise MapError(f"rope.dimension_count is {dims}, but a head has {head_dim} dimensions")


def _theta(scope: FileScope, key: str) -> float:
    """Rope base; llama.cpp's default where the key is absent (hparams.rope_freq_base_train = 10000)."""
    return float(scope.get(key) or 10000.0)


def _layer_types(scope: FileScope, layers: int, default_pattern: int) -> list[str]:
    """One attention type per layer: a pattern n makes every n-th layer full; an array says it per layer."""
    pattern = scope.get("attention.sliding_window_pattern") or default_pattern
    if isinstance(pattern, int):
        sliding = [pattern == 0 or i % pattern < pattern - 1 for i in range(layers)]
    else:
        sliding = [bool(x) for x in pattern]
        if len(sliding) != layers:
            raise MapError(f"attention.sliding_window_pattern has {len(sliding)} items for {layers} layers")
    return ["sliding_attention" if s else "full_attention" for s in sliding]


def _scaling(scope: FileScope) -> dict[str, Any]:
    """Rope scaling from metadata, in Hugging Face's words; {} when there is none.

    Files from before `rope.scaling.type` hold only a factor, which llama.cpp takes as linear.
    """
    factor = scope.get("rope.scaling.factor") or scope.get("rope.scale_linear") or 0.0
    kind = scope.get("rope.scaling.type") or ("linear" if factor else "none")
    original = scope.get("rope.scaling.original_context_length")
    scope.get("rope.scaling.finetuned")  # says how the model was trained; changes no computation
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise MapError(f"rope.scaling.type is {kind!r}; this architecture's map knows none, linear and yarn")
    if not factor or not original:
        raise MapError("rope.scaling.type is 'yarn' without rope.scaling.factor and original_context_length")
    out = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    for key, ours in (
        ("yarn_ext_factor", "extrapolation_factor"),
        ("yarn_attn_factor", "attention_factor"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        if (value := scope.get(f"rope.scaling.{key}")) is not None:
            out[ours] = value
    return out


def _llama3_scaling(scope: FileScope, theta: float, dims: int) -> dict[str, Any]:
    """llama3 scaling, which a GGUF holds only as `rope_freqs.weight`; {} without that tensor, or when it is all ones.

    Raises:
        MapError: the tensor follows no such rule.
    """
    divisors = scope.tensor("rope_freqs.weight", "became rope parameters of type llama3")
    if divisors is None or all(d == 1.0 for d in divisors):
        return {}
    if len(divisors) != dims // 2:
        raise MapError(f"rope_freqs.weight has {len(divisors)} values for {dims} rotary dimensions")
    found = fit_llama3(divisors, theta, dims, scope.get("context_length") or 0)
    if found is None:
        raise MapError(
            "rope_freqs.weight follows no known scaling rule (llama3 with low_freq_factor 1 was tried)",
            hint="such a model cannot be expressed in config.json; please report it with the tensor's values",
        )
    if not found.unique:
        scope.note("rope_freqs.weight fits several llama3 settings; the ones written give the same frequencies")
    return {
        "rope_type": "llama3",
        "factor": found.factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": found.high,
        "original_max_position_embeddings": found.original,
    }


def with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """config.json with its dtype under the name of transformers 5 (`dtype`) and of 4.x and vLLM (`torch_dtype`)."""
    return {**config, "dtype": dtype, "torch_dtype": dtype}


def token_ids(tokens: "SpecialTokens") -> dict[str, Any]:
    """The token ids that config.json and generation_config.json share."""
    ids = {"bos_token_id": tokens.bos, "eos_token_id": _one_or_list(tokens.end_ids), "pad_token_id": tokens.pad}
    return {key: value for key, value in ids.items() if value is not None}


def generation_config(tokens: "SpecialTokens", metadata: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json: every token that ends a turn, and sampling settings where the file recommends some.

    llama.cpp stores recommendations as general.sampling.*; names below are transformers'.
    """
    sampling = {
        ours: value
        for theirs, ours in (
            ("temp", "temperature"),
            ("top_k", "top_k"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("penalty_repeat", "repetition_penalty"),
        )
        if _is_number(value := metadata.get(f"general.sampling.{theirs}"))
    }
    return token_ids(tokens) | ({"do_sample": True} | sampling if sampling else {})


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _one_or_list(ids: Sequence[int]) -> int | list[int] | None:
    if not ids:
        return None
    return ids[0] if len(ids) == 1 else list(ids)
