"""Files that are no model by themselves, and what to give instead: asked before a map is chosen."""

from gguf2st.errors import CoverageError
from gguf2st.header import Header
from gguf2st.header.keys import brief

MODEL = "model"
_MMPROJ = (
    "the encoder of a model's images or sound (mmproj)",
    "give the GGUF of the language model, which lies beside it: its text part becomes a checkpoint",
)
_KINDS = {
    "mmproj": _MMPROJ,
    "adapter": (
        "an adapter (LoRA)",
        "give the GGUF of the model that it adapts, or what `llama-export-lora -m MODEL --lora ADAPTER -o MERGED` "
        "makes of both",
    ),
    "imatrix": (
        "an importance matrix, by which a quantizer weighs its errors",
        "give the GGUF that was quantized with it, or one of the same model",
    ),
}
"""general.type -> (what it is, what to do). The types are gguf-py's (`GGUFType`)."""


def require_model(header: Header) -> None:
    """Raise CoverageError unless the file is a model, whatever its architecture.

    Files of before `general.type` are models, but for the architecture of llama.cpp's encoders of images.
    """
    file = header.files[0]
    kind = header.metadata.get("general.type", MODEL)
    if kind != MODEL:
        what, hint = _KINDS.get(str(kind), ("of a kind that is not known", "give the GGUF of the model itself"))
        raise CoverageError(f"{file}: general.type is {brief(kind)}: this is {what}, not a model by itself", hint=hint)
    if header.metadata.get("general.architecture") == "clip":
        what, hint = _MMPROJ
        raise CoverageError(f"{file}: general.architecture is 'clip': this is {what}, not a model by itself", hint=hint)
    if not header.sources and not header.beside:
        what = "a vocabulary only" if "tokenizer.ggml.tokens" in header.metadata else "metadata only"
        raise CoverageError(f"{file} has no tensors, {what}", hint="give the GGUF that has the weights")
