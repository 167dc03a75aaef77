"""A stand-in for `vllm serve`: prints what a real one printed, listens, and dies on command.

    python -m tests.fake_vllm SCENARIO.json serve DIR --host H --port P --served-model-name NAME ...

A scenario is a JSON object: `before` lines printed at the start, `pause_s` after each, `workers` child processes that
would outlive a careless parent, `serve` whether it listens, `exit` its code when it does not (null: it hangs),
`answers` path -> [status, body] that differ from the usual ones, `ignore_sigint`, and `dying` lines printed when a
prompt says DIE. A file SCENARIO.json.sick makes /health refuse; SCENARIO.json.starts counts the starts.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOGPROBS = {"text_offset": [0], "token_logprobs": [-0.27], "tokens": [" Paris"], "top_logprobs": [{" Paris": -0.27}]}
COMPLETION = {"choices": [{"index": 0, "text": " Paris", "logprobs": LOGPROBS, "finish_reason": "length"}]}
MESSAGE = {"role": "assistant", "content": "The"}
CHAT = {"choices": [{"index": 0, "message": MESSAGE, "logprobs": {"content": [{"token": "The", "logprob": -1.81}]}}]}

POOLED = {
    "/score": {"data": [{"index": 0, "score": 0.75}, {"index": 1, "score": 0.25}]},
    "/classify": {"data": [{"index": 0, "label": "no", "probs": [0.25, 0.75], "num_classes": 2}]},
    "/v1/embeddings": {"data": [{"index": 0, "embedding": [0.6, -0.8, 0.0]}]},
}


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def say(lines: list[str], pause_s: float = 0.0) -> None:
    for line in lines:
        sys.stderr.write(line if line.endswith("\r") else line + "\n")
        sys.stderr.flush()
        time.sleep(pause_s)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scenario: dict[str, Any]
    path_of_scenario: Path

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(503 if Path(f"{self.path_of_scenario}.sick").exists() else 200, "")
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": option("--served-model-name")}]})
        else:
            self.answer(200, {"path": self.path, "header": self.headers.get("X-Test")})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "DIE" in json.dumps(body):
            self.die(bool(body.get("stream")))
        if self.path in self.scenario.get("answers", {}):
            self.answer(*self.scenario["answers"][self.path])
        elif body.get("stream"):
            self.stream()
        else:
            answers = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT, **POOLED}
            self.answer(200 if self.path in answers else 404, answers.get(self.path, "no such path"))

    def answer(self, status: int, body: Any) -> None:
        raw = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def stream(self) -> None:
        """Three events, half a second apart: whoever buffers them is late."""
        self.chunk_headers()
        for i in range(3):
            self.chunk(f"data: {json.dumps({'i': i, 'at': time.time()})}\n\n")
            time.sleep(0.5)
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk_headers(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
        self.wfile.flush()

    def die(self, stream: bool) -> None:
        if stream:
            self.chunk_headers()
            self.chunk('data: {"i": 0}\n\n')
        say(self.scenario.get("dying", []))
        os._exit(self.scenario.get("exit", 1))


def main() -> None:
    path = Path(sys.argv.pop(1))
    scenario = json.loads(path.read_text())
    starts = Path(f"{path}.starts")
    starts.write_text(str(int(starts.read_text()) + 1 if starts.exists() else 1))
    if scenario.get("ignore_sigint"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    for _ in range(scenario.get("workers", 0)):
        subprocess.Popen(
            [sys.executable, "-c", "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(600)"]
        )
    say(scenario.get("before", []), scenario.get("pause_s", 0.0))
    if not scenario.get("serve", True):
        if scenario.get("exit") is None:
            time.sleep(600)
        if scenario["exit"] < 0:
            os.kill(os.getpid(), -scenario["exit"])
        os._exit(scenario["exit"])
    Handler.scenario, Handler.path_of_scenario = scenario, path
    ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
