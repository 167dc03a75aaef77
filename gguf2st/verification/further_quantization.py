"""What quantization_config says beyond how weights are packed: rounding of activations and of the KV cache, rotations.

vLLM 0.32 reads all of it (compressed_tensors.py there, and QuantizationArgs of compressed-tensors), and computes
something else by it than the weights say.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gguf2st.verification.checkpoint import Checkpoint
from gguf2st.verification.stray import MODELOPT, quantized_elsewhere

_TOP = frozenset({"quant_method", "format", "quantization_status", "config_groups", "ignore", "sparsity_config"})
_GROUP = frozenset({"targets", "weights", "format"})
_WEIGHTS = frozenset(
    {
        *("num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder"),
        *("scale_dtype", "zp_dtype", "observer", "observer_kwargs"),
    }
)
"""Keys that are read elsewhere, or that say how the numbers were found."""
_BOOKKEEPING = frozenset({"version", "global_compression_ratio", "run_compressed", "compression_ratio"})
_MIXED = "mixed-precision"
"""What compressed-tensors calls a checkpoint of several formats."""


def compare_quantization(ckpt: Checkpoint, *, against: bool) -> list[str]:
    """What is not weights in quantization_config: a note that it was not verified, and a problem where there is a
    source, which says nothing of the kind, or where gguf2st wrote the folder.

    Returns: the notes.
    """
    from gguf2st.hub.provenance import PROVENANCE_FILE  # which is about reports, and these about verifications

    stated = ckpt.config.get("quantization_config")
    if stated is None and (ckpt.folder / MODELOPT).exists() and quantized_elsewhere(ckpt):
        return [f"quantized as {MODELOPT} says, of which only names are checked"]
    if not isinstance(stated, dict) or ckpt.rules is None:
        return []
    method = ckpt.rules.method
    foreign = not against and not (ckpt.folder / PROVENANCE_FILE).exists()
    if method == "compressed-tensors":
        ckpt.problems += _refused(stated)
        further = list(_further(stated))
    elif method == "mxfp4":
        further = [k for k, v in stated.items() if k not in ("quant_method", "modules_to_not_convert") and v]
    else:
        further = [] if foreign else [f"quant_method {method or 'unknown'}"]
    if foreign:
        return [f"not verified, of quantization_config: {', '.join(further)}"] if further else []
    ckpt.problems += [f"quantization_config says {what}, which the source does not" for what in further]
    return []


def _further(stated: Mapping[str, Any]) -> Iterator[str]:
    """What changes values beside the packed weights."""
    yield from _unknown(stated, _TOP | _BOOKKEEPING, "")
    groups = stated.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if not isinstance(group, dict):
            continue  # said already
        yield from _unknown(group, _GROUP, f"config_groups.{name}.")
        weights = group.get("weights")
        yield from _unknown(weights if isinstance(weights, dict) else {}, _WEIGHTS, f"config_groups.{name}.weights.")


def _unknown(stated: Mapping[str, Any], known: frozenset[str], where: str) -> Iterator[str]:
    for key, value in stated.items():
        if key not in known and value not in (None, {}, [], False):
            text = str(value)
            yield f"{where}{key} = {text if len(text) <= 80 else f'{text[:80]}...'}"


def _refused(stated: Mapping[str, Any]) -> Iterator[str]:
    """What no server reads as meant, whoever wrote it."""
    sparse = stated.get("sparsity_config")
    if sparse and not (isinstance(sparse, dict) and sparse.get("format") == "dense" and not sparse.get("targets")):
        yield "quantization_config has a sparsity_config, which vLLM no longer reads: its weights would be misread"
    common, groups = stated.get("format"), stated.get("config_groups")
    rows = [g for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []
    formats = sorted({str(form) for g in rows if (form := g.get("format") or common) is not None})
    if common is not None and formats and common != _MIXED and formats != [common]:
        yield f"quantization_config says the format {common!r}, its groups {', '.join(formats)}"
