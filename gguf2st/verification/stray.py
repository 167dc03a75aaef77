"""Files beside a checkpoint that loaders take for it, or read with it."""

from collections.abc import Iterator

from gguf2st.output.shards import INDEX_FILE, UNFINISHED
from gguf2st.verification.checkpoint import FLOATS, Checkpoint

_OTHER_WEIGHTS = (".bin", ".gguf", ".pth", ".pt", ".pt2", ".ckpt")
_QUANTIZERS = ("quantize_config.json", "quant_config.json")
"""Ends of the names by which vLLM 0.32 (get_quant_config) finds what GPTQ, AWQ and ModelOpt keep beside config.json."""
MODELOPT = "hf_quant_config.json"
"""What vLLM takes for the quantization_config that config.json lacks (get_config; ModelOpt before 0.31)."""


def stray_files(ckpt: Checkpoint) -> Iterator[str]:
    """Files that make a loader read something else than the checkpoint, or show that a write was cut short."""
    names = sorted(p.name for p in ckpt.folder.iterdir())
    if consolidated := [n for n in names if n.startswith("consolidated") and n.endswith(".safetensors")]:
        yield f"{consolidated[0]} makes vLLM read that file instead (Mistral's own format): remove it"
    if unfinished := [n for n in names if n.endswith(UNFINISHED)]:
        yield f"unfinished files: {', '.join(unfinished)}"
    if others := [n for n in names if n.endswith(_OTHER_WEIGHTS)]:
        yield f"weights in another format lie beside: {', '.join(others[:5])}"
    if indices := [n for n in names if ".index." in n and n.endswith(".json") and n != INDEX_FILE]:
        yield f"an index of other weights lies beside: {', '.join(indices[:5])}"
    if "adapter_config.json" in names:
        yield "adapter_config.json makes transformers load an adapter, and the model that it names, instead: remove it"
    if quantized_elsewhere(ckpt):
        return
    for name in names:
        if name.endswith(_QUANTIZERS):
            yield f"{name} says how weights are quantized, and vLLM may read it; these are not so: remove it"


def quantized_elsewhere(ckpt: Checkpoint) -> bool:
    """Whether the checkpoint is one of those that keep their quantization in a file beside config.json."""
    if ckpt.config.get("quantization_config") is not None:
        return ckpt.rules is not None and ckpt.rules.method not in ("compressed-tensors", "mxfp4")
    return any(tensor.dtype not in {*FLOATS, "F64", "I64", "BOOL"} for tensor in ckpt.tensors.values())
