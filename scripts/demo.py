"""Convert a real model end to end: GGUF -> checkpoint -> verification -> a sentence from transformers."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = ROOT / "demo/SmolLM2-135M-Instruct"
PROMPT = "The capital of France is"


def gguf2st(*arguments: str | Path) -> None:
    """Show and run one command, from the repository's folder so that paths stay short."""
    shown = [str(a.relative_to(ROOT)) if isinstance(a, Path) else a for a in arguments]
    print(f"\n$ gguf2st {' '.join(shown)}", flush=True)
    subprocess.run([sys.executable, "-m", "gguf2st", *shown], cwd=ROOT, check=True)


def generate() -> str:
    """A greedy continuation by transformers, which must find every parameter in the checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(OUT)
    model, info = AutoModelForCausalLM.from_pretrained(OUT, dtype=torch.bfloat16, output_loading_info=True)
    if problems := {kind: names for kind, names in info.items() if names}:
        sys.exit(f"transformers found problems while loading: {problems}")
    ids = tokenizer(PROMPT, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=12, do_sample=False)
    return str(tokenizer.decode(out[0], skip_special_tokens=True))


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    gguf2st("check", MODEL)
    gguf2st("convert", MODEL, "-o", OUT)
    gguf2st("verify", OUT, "--against", MODEL, "--model")
    print(f"\n{OUT.relative_to(ROOT)}/")
    for path in sorted(OUT.iterdir()):
        print(f"  {path.stat().st_size:>11,}  {path.name}")
    sentence = generate()
    print(f"\ntransformers: {sentence!r}")
    if not sentence.startswith(f"{PROMPT} Paris"):
        sys.exit("the model should have continued with ' Paris'")
    print(f"\nServe it:\n  vllm serve {OUT.relative_to(ROOT)} --served-model-name smollm2")


if __name__ == "__main__":
    main()
