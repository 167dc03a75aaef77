"""llama.cpp's own HF -> GGUF converter, run from its source tree.

    python -m tests.oracle.converter < JOBS > FAILURES

JOBS is a JSON list of {"source": HF folder, "target": GGUF file, "flags": [converter switch, ...],
"hparams": {key: value} to find in config.json}; FAILURES is a JSON
object {case: traceback} of those that could not be converted, case being the target's stem.
"""

import importlib
import json
import logging
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LLAMA_CPP = Path(__file__).resolve().parents[2] / ".cache" / "llama.cpp-11434"
PRE_TOKENIZER = "gpt-2"
"""What the tiny byte-level BPE is: the regex of GPT-2. The converter knows published vocabularies only, by hash."""


def convert(source: Path, target: Path, flags: Iterable[str] = (), edits: Mapping[str, Any] | None = None) -> None:
    """Write the float32 GGUF of the HF folder `source` as `convert_hf_to_gguf.py --outtype f32` does.

    `edits` replace keys of config.json; None removes one.
    """
    gguf, conversion = _modules()
    base = conversion.ModelBase
    read = base.load_hparams

    def load_hparams(*arguments: Any, **options: Any) -> dict[str, Any]:
        found = {**read(*arguments, **options), **(edits or {})}
        return {key: value for key, value in found.items() if value is not None or key not in (edits or {})}

    base.load_hparams = staticmethod(load_hparams)
    try:
        _write(gguf, conversion, base.load_hparams(source, False), source, target, flags, edited=bool(edits))
    finally:
        base.load_hparams = staticmethod(read)


def _write(
    gguf: Any,
    conversion: Any,
    hparams: dict[str, Any],
    source: Path,
    target: Path,
    flags: Iterable[str],
    *,
    edited: bool,
) -> None:
    name = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    model_class = conversion.get_model_class(name, mmproj=False)
    torch = importlib.import_module("torch")
    switches = set(flags)
    no_mtp = "no_mtp" in switches and hasattr(model_class, "no_mtp")
    set_vocab, add_mask_token_id = model_class.set_vocab, gguf.GGUFWriter.add_mask_token_id
    if "gpt2_vocab" in switches:
        model_class.set_vocab = model_class._set_vocab_gpt2
    if "no_mask_token" in switches:
        gguf.GGUFWriter.add_mask_token_id = lambda _writer, _id: None
    if no_mtp:
        model_class.no_mtp = True
    try:
        with torch.inference_mode():
            options: dict[str, Any] = dict.fromkeys(switches - {"no_mtp", "gpt2_vocab", "no_mask_token"}, True)
            if edited and any(base.__module__ == "conversion.mamba" for base in model_class.__mro__):
                options["hparams"] = hparams  # these classes read config.json themselves
            model_class(source, gguf.LlamaFileType.ALL_F32, target, **options).write()
    finally:
        model_class.set_vocab, gguf.GGUFWriter.add_mask_token_id = set_vocab, add_mask_token_id
        if no_mtp:
            model_class.no_mtp = False


def _modules() -> tuple[Any, Any]:
    if not LLAMA_CPP.is_dir():
        raise FileNotFoundError(f"{LLAMA_CPP} is missing: python scripts/fetch_models.py llamacpp")
    for folder in (LLAMA_CPP, LLAMA_CPP / "gguf-py"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    gguf, conversion = importlib.import_module("gguf"), importlib.import_module("conversion")
    if not Path(str(gguf.__file__)).is_relative_to(LLAMA_CPP):
        raise ImportError(f"gguf comes from {gguf.__file__}, but the converter needs the one of its own tree")
    conversion.base.TextModel.get_vocab_base_pre = lambda _model, _tokenizer: PRE_TOKENIZER
    _mend_baichuan(conversion)
    _mend_names(gguf)
    return gguf, conversion


def _mend_names(gguf: Any) -> None:
    """Its names of Arctic's tensors replace those of all architectures after it, where one process converts several."""
    names = gguf.TensorNameMap
    build, common = names.__init__, dict(names.block_mappings_cfg)

    def with_names_of_its_own(self: Any, *arguments: Any) -> None:
        self.block_mappings_cfg = dict(common)
        build(self, *arguments)

    names.__init__ = with_names_of_its_own


def _mend_baichuan(conversion: Any) -> None:
    """Its method calls itself, without end, for all tensors but one, where its ancestor's is meant."""
    model_class = importlib.import_module("conversion.baichuan").BaichuanModel
    split = model_class.modify_tensors

    def modify_tensors(self: Any, tensor: Any, name: str, layer: int | None) -> Any:
        if name.endswith("W_pack.weight"):
            return split(self, tensor, name, layer)
        return conversion.base.TextModel.modify_tensors(self, tensor, name, layer)

    model_class.modify_tensors = modify_tensors


def main() -> None:
    logging.disable(logging.WARNING)
    _modules()
    failures = {}
    for job in json.load(sys.stdin):
        target = Path(job["target"])
        try:
            convert(Path(job["source"]), target, job["flags"], job["hparams"])
        except Exception:  # one class that cannot be converted must not hide the others
            failures[target.stem] = traceback.format_exc()
    json.dump(failures, sys.stdout)


if __name__ == "__main__":
    main()
