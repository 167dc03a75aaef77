"""Serve packed checkpoints with vLLM on this machine's GPU and compare them with the dense conversion.

    gguf2st convert model.Q8_0.gguf -o dense --dtype float16
    gguf2st convert model.Q8_0.gguf -o exact --repack exact
    ~/vllm/bin/python scripts/check_vllm_gpu.py dense exact [more folders of the same model]

Runs under the interpreter that has vLLM and needs nothing else. Each folder is loaded in a process of its own, with the
dtype that its config.json says, and gives its logprobs of a text; the table says how far they are from those of the
first folder, and which kernels served them. A format that holds the file's numbers differs by rounding alone (0.02 on
average at most), 8 bits a little more, 4 bits with loss by 0.1 to 0.5; wrong weights or kernels by 1 and more.

Exit codes: 0 all within --limit, 1 one is not, or does not load, 2 usage, or no vLLM here.
"""

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

TEXT = (
    "The capital of France is Paris, and the capital of Italy is Rome. Water boils at one hundred degrees Celsius and "
    "freezes at zero. In the year 1969 two people walked on the Moon for the first time. One, two, three, four, five, "
    "six, seven. def add(a, b): return a + b. Once upon a time there was a king who had three daughters."
)
MARK = "RESULT "
"""Begins the line of a probe's output that is its result; vLLM writes to both streams."""
TIMEOUT_S = 1800


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog="See the beginning of this file for what the figures mean."
    )
    parser.add_argument("dense", type=Path, help="the dense conversion, which the others are compared with")
    parser.add_argument("packed", type=Path, nargs="+", help="conversions of the same GGUF with --repack")
    parser.add_argument("--limit", type=float, default=0.5, help="greatest mean difference of logprobs (%(default)s)")
    parser.add_argument("--dtype", default="auto", help="compute in this dtype instead of each folder's own")
    parser.add_argument("--max-tokens", type=int, default=128, help="of the text (%(default)s)")
    parser.add_argument("--gpu-memory", type=float, default=0.8, help="share for vLLM (%(default)s)")
    parser.add_argument("--output", type=Path, help="write the table to this file as well")
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not math.isfinite(options.limit) or options.limit <= 0:
        parser.error("--limit must be a positive number")
    for folder in [options.dense, *([] if options.probe else options.packed)]:
        if not (folder / "config.json").is_file():
            parser.error(f"{folder} is no checkpoint folder: it has no config.json")
    return options


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if options.probe:
        return probe(options)
    if importlib.util.find_spec("vllm") is None:
        print(f"{sys.executable} has no vLLM: run this with the interpreter that has it", file=sys.stderr)
        return 2
    found = [run(folder, options) for folder in (options.dense, *options.packed)]
    text = table(found, options)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    return int(any(row["verdict"] not in ("reference", "ok") for row in found))


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What a probe of one folder says, or why it says nothing."""
    command = [sys.executable, __file__, str(folder), str(folder), "--probe", "--dtype", options.dtype]
    command += ["--max-tokens", str(options.max_tokens), "--gpu-memory", str(options.gpu_memory)]
    more = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    print(f"loading {folder} ...", file=sys.stderr, flush=True)
    row: dict[str, Any] = {"folder": folder.name, "formats": formats(folder)}
    try:
        done = subprocess.run(
            command, env={**more, **os.environ}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return row | {"error": f"nothing after {TIMEOUT_S} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if lines:
        return row | json.loads(lines[-1].removeprefix(MARK))
    errors = [line.strip() for line in done.stderr.splitlines() if "Error" in line]
    return row | {"error": errors[-1] if errors else f"exit code {done.returncode}"}


def formats(folder: Path) -> str:
    """The config groups of a folder."""
    stated = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("quantization_config") or {}
    return ", ".join(stated.get("config_groups") or [stated.get("quant_method", "dense")])


def table(found: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """Markdown; each row gets its verdict."""
    reference = found[0]
    head = [reference.get("device", "no device"), f"vLLM {reference.get('vllm', '?')}"]
    lines = [
        f"{', '.join(head)}; {len(reference.get('logprobs', ()))} logprobs of {reference['folder']}",
        "",
        "| folder | formats | dtype | kernels | mean difference | greatest | seconds to load | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        mean, greatest = difference(row, reference)
        if "error" in row:
            row["verdict"] = row["error"].replace("|", "/")[:200]
        elif row is reference:
            row["verdict"] = "reference"
        elif row["ids"] != reference.get("ids"):
            row["verdict"] = "another tokenizer"
        else:
            row["verdict"] = "ok" if mean <= options.limit else f"WRONG: more than {options.limit}"
        cells = [row["folder"], row["formats"], row.get("dtype", ""), row.get("kernels", "")]
        cells += [f"{mean:.4f}", f"{greatest:.4f}", f"{row['seconds']:.0f}"] if "error" not in row else [""] * 3
        cells.append(row["verdict"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def difference(row: dict[str, Any], reference: dict[str, Any]) -> tuple[float, float]:
    """(mean, greatest) difference of logprobs; NaN where there are none, and where one is NaN."""
    pairs = list(zip(row.get("logprobs", ()), reference.get("logprobs", ()), strict=False))
    if not pairs:
        return math.nan, math.nan
    gaps = [abs(a - b) if a is not None and b is not None else math.nan for a, b in pairs]
    return sum(gaps) / len(gaps), math.nan if any(map(math.isnan, gaps)) else max(gaps)


def probe(options: argparse.Namespace) -> int:
    """Load one folder and print its logprobs."""
    import torch
    import vllm

    started = time.monotonic()
    llm = vllm.LLM(
        str(options.dense),
        dtype=options.dtype,
        enforce_eager=True,
        max_model_len=max(256, 2 * options.max_tokens),
        max_num_seqs=2,
        gpu_memory_utilization=options.gpu_memory,
        disable_log_stats=True,
    )
    seconds = time.monotonic() - started
    ids = llm.get_tokenizer()(TEXT)["input_ids"][: options.max_tokens]
    sampling = vllm.SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    (output,) = llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
    rows = output.prompt_logprobs
    logprobs = [rows[i][ids[i]].logprob for i in range(1, len(ids))]
    result = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU, on the CPU",
        "vllm": vllm.__version__,
        "dtype": str(llm.llm_engine.model_config.dtype).removeprefix("torch."),
        "kernels": kernels(llm),
        "seconds": seconds,
        "ids": ids,
        "logprobs": [x if math.isfinite(x) else None for x in logprobs],
    }
    print(f"\n{MARK}{json.dumps(result)}", flush=True)
    return 0


def kernels(llm: Any) -> str:
    """Names of the kernels of the model's layers, the most frequent first; what one keeps them under differs."""

    def names(model: Any) -> list[str]:
        found: Counter[str] = Counter()
        for module in model.modules():
            for owner in (getattr(module, "scheme", None), getattr(module, "quant_method", None)):
                kernel = getattr(owner, "kernel", None) or getattr(owner, "wna16_backend", None)
                if kernel is not None:
                    found[getattr(kernel, "value", None) or type(kernel).__name__] += 1
        return [name for name, _ in found.most_common()]

    try:
        return ", ".join(llm.apply_model(names)[0]) or "none of its own"
    except Exception as err:  # the figures count, the names are a help
        return f"not told ({type(err).__name__})"


if __name__ == "__main__":
    sys.exit(main())
