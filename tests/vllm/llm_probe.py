"""Run by vLLM's own interpreter: the logprobs that vLLM gives a sequence, for many checkpoints in one process.

    python llm_probe.py < JOBS > RESULTS

JOBS is a JSON list of {"name", "folder", "ids", "dtype"}; RESULTS a JSON object name -> logprobs from the second id on,
or a traceback.
"""

import contextlib
import gc
import json
import os
import sys
import traceback


def probe(folder: str, ids: list[int], dtype: str) -> list[float]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        folder,
        dtype=dtype,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=2,
        distributed_executor_backend="uni",
        disable_log_stats=True,
    )
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    (output,) = llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
    rows = output.prompt_logprobs
    return [rows[i][ids[i]].logprob for i in range(1, len(ids))]


def main() -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    jobs = json.load(sys.stdin)
    results: dict[str, object] = {}
    stdout = os.dup(1)
    os.dup2(2, 1)  # vLLM writes to both
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    for job in jobs:
        try:
            results[job["name"]] = probe(job["folder"], job["ids"], job["dtype"])
        except Exception:  # one model that vLLM refuses must not hide the others
            results[job["name"]] = traceback.format_exc()
        gc.collect()
        with contextlib.suppress(Exception):
            cleanup_dist_env_and_memory()
    os.write(stdout, json.dumps(results).encode())


if __name__ == "__main__":
    main()
