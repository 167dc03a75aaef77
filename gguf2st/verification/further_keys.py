"""Keys that configurations have beyond what the source gives: do they change what is computed?

transformers' configuration class says so of the keys that it declares: built with them and without, it must come out
the same. Of other keys, and where transformers is not installed or does not know the model, a list of words decides.
"""

import copy
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gguf2st.verification.checkpoint import Checkpoint, read_json

QUANTIZATION = "quantization_config"
_NO_EFFECT = re.compile(
    r"_?name_or_path|_from_model_config|(torch_)?dtype|transformers_version|architectures|model_type|use_cache|initializer_(range|factor)"
    r"|init_(std|range|method|device)|\w*(dropout|pdrop|layerdrop|drop_path)\w*|output_(attentions|hidden_states|\w*logits)"
    r"|return_dict|torchscript|gradient_checkpointing|problem_type|id2label|label2id|finetuning_task|task_specific_params"
    r"|router_(aux|z)_loss_coef|\w*aux_loss\w*|\w*z_loss\w*|\w*jitter\w*|seq_aux|ep_size|pretraining_tp|training_\w+"
    r"|_?attn_implementation\w*|use_flash_attn|_flash_attn\w*|chunk_size_feed_forward|summary_\w+|rescale_prenorm_residual"
    r"|unsloth_\w+"
)
"""Names of what training alone reads, who wrote the file, and what callers and servers choose for themselves."""
_COMPUTES = re.compile(
    r"rope|rotary|theta|freq|yarn|alibi|position|window|chunk|sliding|pattern|scal|multiplier|factor|temperature|softcap"
    r"|cap$|limit|quant|compress|sparse|auto_map|configs?$|layer|block|attention|attn|head|norm|eps|act|bias|expert|moe"
    r"|router|gate|top_?k|mlp|ffn|ssm|mamba|conv|state|_ranks?$|_dims?$|_sizes?$|^num_|^n_|logit|residual|embed|tie_|lora"
    r"|index|encoder|decoder|base|causal"
)
"""Words in the names of keys by which transformers' or vLLM's models compute."""
_TOKEN = re.compile(r"\w*(token_ids?|tokenizer_class)")
"""Names of what says when a text begins and ends."""
_LENGTH = re.compile(r"max_position_embeddings|model_max_length|(max_)?seq(uence)?_len(gth)?")
"""Names of how long a text may be, where the model's class does not read them."""
_ONLY_WITH = {
    "max_window_layers": "use_sliding_window",
    "sliding_window": "use_sliding_window",
    "block_multiple_of": "block_auto_adjust_ff_dim",
    "block_ffn_dim_multiplier": "block_auto_adjust_ff_dim",
}
"""Key -> the switch that must be on for it to be read (Qwen2 and LFM2: published files have both, and false)."""
_NOTHING: tuple[Any, ...] = (None, False, {}, [])
"""Values that say the same as no key, but for `is_causal`, which vLLM takes for true."""


def compare_further(ckpt: Checkpoint, configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Further keys of config.json are problems where they change what is computed; the rest gives notes.

    `quantization_config` is left alone: its promises are compared with the weights.
    """
    notes: list[str] = []
    expected = configs.get("config.json", {})
    further = {k: v for k, v in ckpt.config.items() if expected and k not in expected and k != QUANTIZATION}
    further = {k: v for k, v in further.items() if v is not None and not _NO_EFFECT.fullmatch(k)}
    if "Classification" not in ckpt.hf_class:
        further = {k: v for k, v in further.items() if not k.startswith("classifier_")}
    if further:
        without = _build(expected)
        changing = _changing(expected, further, without)
        ckpt.problems += [
            f"config.json says {key} = {_shown(further[key])}, of which the source says nothing{why}"
            for key, why in changing.items()
        ]
        same = without.declared if without else ()
        if rest := [k for k, v in further.items() if k not in changing and k not in same and v not in _NOTHING]:
            notes.append(f"config.json says more than the source: {', '.join(rest)}")
    path = ckpt.folder / "generation_config.json"
    if (wanted := configs.get(path.name)) is not None and path.is_file():
        stated = {k: v for k, v in read_json(path, []).items() if k not in wanted and v is not None}
        more = [f"{k} = {_shown(v)}" for k, v in stated.items() if not _NO_EFFECT.fullmatch(k)]
        if more:
            notes.append(f"{path.name} says more than the source: {', '.join(more)}")
    return notes


def _changing(expected: Mapping[str, Any], further: Mapping[str, Any], without: "_Built | None") -> dict[str, str]:
    """Those of the further keys that change what is computed -> what transformers takes by them, if it says so.

    `without`: what it takes without any of them.
    """
    together = None if without is None else _build({**expected, **further})
    found: dict[str, str] = {}
    stated = {**expected, **further}
    for key, value in further.items():
        if without and without.takes(key, value) and (together is None or together.takes(key, value)):
            continue
        nested = key == "auto_map" or (isinstance(value, dict) and key.endswith(("_config", "_configs")))
        read_by_words = (without is None or key not in without.declared) and _COMPUTES.search(key)
        unread = (switch := _ONLY_WITH.get(key)) in stated and not stated[str(switch)]
        named = _TOKEN.fullmatch(key) or _LENGTH.fullmatch(key)
        says = value not in _NOTHING or key == "is_causal"
        if says and (nested or (read_by_words and not named and not unread)):
            found[key] = ""
    if without is None:
        return found
    changed = without.differences(together) if together else []
    for key, value in further.items() if changed or not together else ():
        alone = _build({**expected, key: value})
        if alone is None:
            found[key] = ": transformers refuses it"
        elif own := [k for k in without.differences(alone) if not together or k in changed]:
            found[key] = f": by it transformers takes {own[0]} = {_shown(alone.values.get(own[0]))}"
    if (changed or not together) and not found:
        found[next(iter(further))] = f": with {', '.join(further)} transformers takes another configuration"
    return found


@dataclass(frozen=True)
class _Built:
    """What transformers' configuration class makes of a config.json.

    Attributes:
        made: itself.
        values: of all its attributes, as in JSON.
        declared: names that the class reads, those that it takes for others included.
    """

    made: Any
    values: Mapping[str, Any]
    declared: frozenset[str]

    def takes(self, key: str, value: Any) -> bool:
        """Whether it has that value of an attribute anyway, such as one that it computes from others and writes too."""
        return bool(key in self.values and self.values[key] == value) or bool(getattr(self.made, key, None) == value)

    def differences(self, other: "_Built") -> list[str]:
        """Names of declared values that differ and are computed by."""
        unread = {k for k, switch in _ONLY_WITH.items() if k != "sliding_window" and not other.values.get(switch)}
        return [
            name
            for name in (*self.values, *other.values.keys() - self.values.keys())
            if name in self.declared
            and self.values.get(name) != other.values.get(name)
            and not (_NO_EFFECT.fullmatch(name) or _TOKEN.fullmatch(name) or name in unread)
        ]


def _build(config: Mapping[str, Any]) -> _Built | None:
    """None where transformers is not installed, does not know the model type, or refuses the configuration."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import CONFIG_MAPPING, utils

    logging: Any = utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        kind: Any = CONFIG_MAPPING[str(config.get("model_type"))]
        made = kind.from_dict(_numbers(copy.deepcopy(dict(config))))
        values = json.loads(json.dumps(made.to_dict(), default=str))
    except Exception:  # whatever its classes raise
        return None
    finally:
        logging.set_verbosity(level)
    names = {field.name for field in fields(kind)} | set(kind.attribute_map)
    names |= {"rope_scaling", "rope_theta"} if "rope_parameters" in names else set()
    return _Built(made, values, frozenset(names))


def _numbers(value: Any) -> Any:
    """JSON with the numbers that JSON lacks, which transformers writes as {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        return (
            float(value["__float__"]) if value.keys() == {"__float__"} else {k: _numbers(v) for k, v in value.items()}
        )
    return [_numbers(item) for item in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:80]}..."
