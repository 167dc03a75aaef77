"""Run by vLLM's own interpreter, a build for CPUs: does the class of a configuration answer here?

    python cpu_probe.py < JOBS > RESULTS

JOBS is a JSON list of {"name", "config"}: config.json. RESULTS is a JSON object name -> "" for one that answered, or a
traceback. Weights are random, and each model has a process of its own: what a failed one leaves would stop the next.
"""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import modules_probe

IDS = list(range(5, 20))


def probe(config: dict[str, Any], folder: Path) -> str:
    """What goes wrong; empty for nothing."""
    from vllm import LLM, SamplingParams

    (folder / "config.json").write_text(json.dumps(config))
    try:
        llm = LLM(
            str(folder), load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, enforce_eager=True,
            max_model_len=64, max_num_seqs=2, distributed_executor_backend="uni",
        )  # fmt: skip
        sampling = SamplingParams(temperature=0, max_tokens=2, detokenize=False)
        llm.generate([{"prompt_token_ids": IDS}], sampling, use_tqdm=False)
    except Exception:
        return traceback.format_exc()
    return ""


def apart(config: dict[str, Any]) -> str:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        if (child := os.fork()) == 0:
            try:
                answer.write_text(probe(config, Path(folder)))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return answer.read_text() if answer.exists() else "it died"


def main() -> None:
    os.environ |= modules_probe.SETTINGS
    jobs = json.load(sys.stdin)
    stdout = os.dup(1)
    os.dup2(2, 1)  # vLLM writes to both
    modules_probe.stand_in_for_torchvision()
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda fn: fn()  # which would have no such stand-in
    results = {}
    for job in jobs:
        modules_probe.register(job["config"])
        results[job["name"]] = apart(job["config"])
    os.write(stdout, json.dumps(results).encode())


if __name__ == "__main__":
    main()
