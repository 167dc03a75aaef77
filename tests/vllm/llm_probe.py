"""Run by vLLM's own interpreter: what vLLM makes of texts, for many checkpoints in one process.

    python llm_probe.py < JOBS > RESULTS

JOBS is a JSON list of {"name", "folder", "ids", "dtype"} for the logprobs of a sequence from its second id on, and of
{"name", "folder", "pairs", "template", "dtype"} for the scores of pairs of texts, by the template in a file. RESULTS is
a JSON object name -> these numbers, or a traceback.
"""

import contextlib
import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def logprobs(folder: str, ids: list[int], dtype: str) -> list[float]:
    from vllm import SamplingParams

    llm = load(folder, dtype, max_model_len=128, skip_tokenizer_init=True)
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    (output,) = llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
    rows = output.prompt_logprobs
    return [rows[i][ids[i]].logprob for i in range(1, len(ids))]


def scores(folder: str, pairs: list[tuple[str, str]], template: str, dtype: str) -> list[float]:
    queries, documents = zip(*pairs, strict=True)
    text = Path(template).read_text(encoding="utf-8")
    llm = load(folder, dtype, max_model_len=1024)
    found = llm.score(list(queries), list(documents), chat_template=text, use_tqdm=False)
    return [one.outputs.score for one in found]


def load(folder: str, dtype: str, **options: Any) -> Any:
    from vllm import LLM

    return LLM(
        folder,
        dtype=dtype,
        enforce_eager=True,
        max_num_seqs=2,
        distributed_executor_backend="uni",
        disable_log_stats=True,
        **options,
    )


def main() -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    jobs = json.load(sys.stdin)
    results: dict[str, object] = {}
    stdout = os.dup(1)
    os.dup2(2, 1)  # vLLM writes to both
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    for job in jobs:
        name = job.pop("name")
        try:
            results[name] = scores(**job) if "pairs" in job else logprobs(**job)
        except Exception:  # one model that vLLM refuses must not hide the others
            results[name] = traceback.format_exc()
        gc.collect()
        with contextlib.suppress(Exception):
            cleanup_dist_env_and_memory()
    os.write(stdout, json.dumps(results).encode())


if __name__ == "__main__":
    main()
