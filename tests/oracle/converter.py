"""llama.cpp's own HF -> GGUF converter, run from its source tree.

    python -m tests.oracle.converter < JOBS > FAILURES

JOBS is a JSON list of {"source": HF folder, "target": GGUF file, "flags": [converter switch, ...]}; FAILURES is a JSON
object {case: traceback} of those that could not be converted, case being the target's stem.
"""

import importlib
import json
import logging
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LLAMA_CPP = Path(__file__).resolve().parents[2] / ".cache" / "llama.cpp-11434"
PRE_TOKENIZER = "gpt-2"
"""What the tiny byte-level BPE is: the regex of GPT-2. The converter knows published vocabularies only, by hash."""


def convert(source: Path, target: Path, flags: Iterable[str] = ()) -> None:
    """Write the float32 GGUF of the HF folder `source` as `convert_hf_to_gguf.py --outtype f32` does."""
    gguf, conversion = _modules()
    base = conversion.ModelBase
    hparams = base.load_hparams(source, False)
    name = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    model_class = conversion.get_model_class(name, mmproj=False)
    torch = importlib.import_module("torch")
    with torch.inference_mode():
        model_class(source, gguf.LlamaFileType.ALL_F32, target, **dict.fromkeys(flags, True)).write()


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
    return gguf, conversion


def main() -> None:
    logging.disable(logging.WARNING)
    _modules()
    failures = {}
    for job in json.load(sys.stdin):
        target = Path(job["target"])
        try:
            convert(Path(job["source"]), target, job["flags"])
        except Exception:  # one class that cannot be converted must not hide the others
            failures[target.stem] = traceback.format_exc()
    json.dump(failures, sys.stdout)


if __name__ == "__main__":
    main()
