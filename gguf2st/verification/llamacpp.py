"""llama.cpp's own logprobs of a GGUF, through the public interface of xllamacpp, in a process of its own.

    python -m gguf2st.verification.llamacpp < JOB > LOGPROBS

JOB is {"model": first file, "ids": [token id, ...], "lengths": [prefix length, ...], "top": n}; LOGPROBS holds for each
prefix of the ids a list of n [token id, logprob of it coming next], most likely first. A process of its own, because an
assertion of llama.cpp ends the process it is in.
"""

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 600


def logprobs(model: Path, ids: Sequence[int], lengths: Sequence[int], top: int) -> list[dict[int, float]]:
    """For each prefix of `ids`, all shorter than `ids`, the `top` most likely next tokens and their logprobs.

    Raises:
        RuntimeError: llama.cpp cannot load or run the model; with its last words.
    """
    job = json.dumps({"model": str(model), "ids": list(ids), "lengths": list(lengths), "top": top})
    command = [sys.executable, "-m", "gguf2st.verification.llamacpp"]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line or "ASSERT" in line] or lines or ["no message"]
        raise RuntimeError(f"llama.cpp ended with code {done.returncode}: {errors[-1].strip()}")
    return [{int(token): float(value) for token, value in row} for row in json.loads(done.stdout.splitlines()[-1])]


def _main() -> None:
    xllamacpp: Any = importlib.import_module("xllamacpp")  # it comes without types
    job = json.load(sys.stdin)
    params: Any = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_ctx = params.n_batch = params.n_ubatch = max(64, 8 + len(job["ids"]))
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.no_extra_bufts = True  # repacked weights would change the order of additions
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    rows = []
    for length in job["lengths"]:
        # The token that is sampled must not end the text, nor be half a character: then no logprobs are returned. A
        # bias chooses it; the logprobs are those of the model without it.
        ask = {"prompt": job["ids"][:length], "n_predict": 1, "n_probs": job["top"], "cache_prompt": False}
        ask |= {"logit_bias": [[job["ids"][length], 1e6]], "temperature": 0}
        answer = server.handle_completions(ask)
        if isinstance(answer, str):
            answer = json.loads(answer)
        best = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        rows.append([[entry["id"], entry["logprob"]] for entry in best])
    print(json.dumps(rows), flush=True)  # llama.cpp itself writes to stderr


if __name__ == "__main__":
    _main()
