"""`gguf2st serve` with a real vLLM: a smoke test, and an engine killed in the middle of an answer."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.vllm.conftest import ROOT

ENGINE = ["--enforce-eager", "--max-model-len", "1024"]
PROMPT = {"model": "SmolLM2-135M-Instruct.Q4_1", "prompt": "Once upon a time"}


def serve(python: Path, source: Path, cache: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "gguf2st", "serve", str(source), "--cache", str(cache), "--port", "0", "--json"]
    return [*command, "--vllm-python", str(python), *options, "--", *ENGINE]


def session_of(pid: int) -> dict[int, str]:
    """pid -> command line of the living processes in the session that `pid` leads."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == pid and fields[0] not in "ZX":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def test_smoke_of_a_gguf(vllm_python: Path, smollm2: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    run = subprocess.run(
        serve(vllm_python, smollm2, tmp_path, "--smoke"),
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    phases = [row["phase"] for row in rows if row["event"] == "phase"]
    assert phases[:4] == ["starting", "resolving", "engine", "loading"]
    answers = {row["kind"]: row for row in rows if row["event"] == "smoke"}
    assert answers["completion"]["text"].startswith(" Paris")
    assert "Paris" in answers["chat"]["text"]
    assert session_of(rows[2]["pid"]) == {}


def test_an_engine_killed_in_the_middle_of_an_answer(
    vllm_python: Path, smollm2: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    command = serve(vllm_python, smollm2, tmp_path, "--proxy", "--restart", "1")
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rows = map(json.loads, process.stdout)
        seen = until(rows, "ready")
        url, pid = seen[-1]["url"], next(row["pid"] for row in seen if row["event"] == "phase")
        workers = [p for p, command in session_of(pid).items() if "VLLM::Worker" in command]
        assert workers
        lines = []
        body = PROMPT | {"max_tokens": 900, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60, trust_env=False) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if len(lines) == 10:
                    os.kill(workers[0], signal.SIGKILL)
        assert '"error"' in "".join(lines[10:]), "the request that lost its engine ends with an error"

        died = until(rows, "restart")
        assert "Worker proc VllmWorker-0 died unexpectedly" in next(r for r in died if r["event"] == "died")["cause"]
        assert session_of(pid) == {}
        refused = httpx.post(f"{url}/v1/completions", json=PROMPT, timeout=60, trust_env=False)
        assert refused.status_code == 503
        assert "Worker proc VllmWorker-0 died" in refused.json()["error"]["message"]

        again = until(rows, "ready")
        answer = httpx.post(f"{url}/v1/completions", json=PROMPT | {"max_tokens": 4}, timeout=60, trust_env=False)
        assert answer.json()["choices"][0]["text"]
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert process.wait(60) == 0
        assert time.monotonic() - started < 30
        assert session_of(next(row["pid"] for row in again if row["event"] == "phase")) == {}


def until(rows: Iterator[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    seen = []
    for row in rows:
        seen.append(row)
        if row["event"] == kind:
            return seen
    raise AssertionError(f"it ended before {kind!r}: {seen[-3:]}")
