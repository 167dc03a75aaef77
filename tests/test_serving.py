"""`gguf2st serve` against a stand-in for vLLM that prints real log lines, hangs, dies and refuses on command."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

import gguf2st
from gguf2st.cli.summary import show_done
from gguf2st.errors import Gguf2stError, ServeError, SourceError, UsageError, VerifyError
from gguf2st.kernels import cpu, device
from gguf2st.serving import arguments, launch, preflight, watch
from gguf2st.serving.causes import ADVICE, CauseReader, advise, is_echo
from gguf2st.serving.phases import PHASES, PhaseReader
from gguf2st.serving.session import ServeOptions, serve
from gguf2st.serving.watch import Event
from tests import vllm_logs
from tests.make_gguf import tiny_model

ROOT = Path(__file__).resolve().parent.parent
CONFIG = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "num_hidden_layers": 2}


class Fake:
    """A stand-in for vLLM on PATH, and a folder to serve."""

    def __init__(self, folder: Path) -> None:
        self.scenario = folder / "scenario.json"
        self.bin = folder / "bin"
        self.bin.mkdir()
        program = self.bin / "vllm"
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.fake_vllm {self.scenario} "$@"\n'
        )
        program.chmod(0o755)
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(CONFIG))
        (self.model / "model.safetensors").write_bytes(b"")
        (self.model / "chat_template.jinja").write_text("{{ messages }}")

    def does(self, **scenario: Any) -> None:
        self.scenario.write_text(json.dumps(scenario))

    @property
    def starts(self) -> int:
        return int(Path(f"{self.scenario}.starts").read_text())

    def options(self, **more: Any) -> ServeOptions:
        return ServeOptions(str(self.model), **({"port": 0, "verify": False} | more))

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "gguf2st", "serve", str(self.model), "--no-verify", "--port", "0", *more]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    fake = Fake(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.bin}{os.pathsep}{os.environ['PATH']}")
    yield fake
    assert left_over(fake) == []


def left_over(fake: Fake) -> list[str]:
    """Command lines of living processes that belong to the stand-in, its workers included."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if environment else "Z"
        except OSError:
            continue
        own = str(fake.bin).encode() in environment and str(ROOT).encode() + b"\0" in environment + b"\0"
        if own and state not in "ZX" and entry.name != str(os.getpid()):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if "fake_vllm" in command or "time.sleep(600)" in command:
                found.append(command)
    return found


def failure(options: ServeOptions) -> tuple[list[Event], Gguf2stError]:
    """All events but ticks, and the error that ends them."""
    events: list[Event] = []
    with pytest.raises(Gguf2stError) as caught:
        events.extend(serve(options))
    return [e for e in events if e.kind != "tick"], caught.value


def run_until(events: Iterator[Event], kind: str) -> list[Event]:
    seen = []
    for event in events:
        seen.append(event)
        if event.kind == kind:
            break
    return seen


def kinds(events: Sequence[Event]) -> list[str]:
    return [e.kind for e in events if e.kind != "tick"]


# --- starting


def test_phases_come_in_order_and_then_it_is_ready(fake: Fake) -> None:
    fake.does(before=vllm_logs.START + vllm_logs.WARM_UP, pause_s=0.05, workers=2)
    events = serve(fake.options())
    seen = run_until(events, "ready")
    events.close()
    assert [e.phase for e in seen if e.kind == "phase"] == vllm_logs.ALL_PHASES
    assert kinds(seen)[:2] == ["checkpoint", "command"]
    assert all("normal: " in e.text for e in seen if e.kind == "phase")
    assert seen[-1].detail["model"] == "model"
    assert seen[-1].detail["url"].startswith("http://127.0.0.1:")


def test_the_command_names_model_name_dtype_and_passes_the_rest_on(fake: Fake) -> None:
    fake.does()
    events = serve(fake.options(vllm_arguments=("--enforce-eager", "--max_model_len=64")))
    command = next(e for e in events if e.kind == "command").detail["command"]
    events.close()
    assert command[:3] == (str(fake.bin / "vllm"), "serve", str(fake.model))
    given = dict(zip(command[3:-2:2], command[4:-2:2], strict=True))
    assert given.pop("--port").isdecimal()
    assert given == {"--host": "127.0.0.1", "--dtype": "bfloat16", "--served-model-name": "model"}
    assert command[-2:] == ("--enforce-eager", "--max_model_len=64")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--port", "81"], {"port": 81}),
        (["--port=81"], {"port": 81}),
        (
            ["--served_model_name", "a", "b", "--x"],
            {"served_name": "a", "rest": ("--served-model-name", "a", "b", "--x")},
        ),
        (["--dtype", "float16"], {"dtype": "float16", "rest": ()}),
        (["--api-key", "k"], {"api_key": "k", "rest": ("--api-key", "k")}),
        (["--host", "0.0.0.0"], {"host": "0.0.0.0", "rest": ()}),
    ],
)
def test_arguments_we_must_know_are_found_in_any_spelling(given: list[str], expected: dict[str, Any]) -> None:
    found = arguments.parse(given)
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize(
    "given", [["--model", "x"], ["--ssl-keyfile", "k"], ["--headless"], ["--uds=/x"], ["--port"], ["--port", "http"]]
)
def test_arguments_that_would_hide_the_server_are_refused(given: list[str]) -> None:
    with pytest.raises(UsageError):
        arguments.parse(given)


def test_a_port_in_use_is_refused_before_anything_starts(fake: Fake) -> None:
    fake.does()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        events, err = failure(fake.options(port=taken.getsockname()[1]))
    assert events == []
    assert err.exit_code == 7
    assert "--port 0" in err.hint


def test_no_vllm_is_said_before_a_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServeError, match="no vllm on PATH"):
        next(serve(ServeOptions(str(tiny_model(tmp_path / "model.gguf")), port=0, cache=tmp_path / "cache")))
    assert not (tmp_path / "cache").exists()


def test_no_model_is_said_before_no_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="no such file"):
        next(serve(ServeOptions(str(tmp_path / "nope"), port=0)))


def test_an_interpreter_without_vllm_is_named() -> None:
    with pytest.raises(ServeError, match="has no vLLM: no module named vllm"):
        launch.find_vllm(Path(sys.executable))


def test_a_checkpoint_that_is_not_whole_is_not_served(fake: Fake) -> None:
    fake.does()
    _, err = failure(fake.options(verify=True))
    assert isinstance(err, VerifyError)
    assert "--no-verify" in err.hint
    assert not Path(f"{fake.scenario}.starts").exists()


# --- slow or dead


def test_a_hang_is_reported_as_slow_and_not_as_dead(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.does(before=vllm_logs.START, serve=False, exit=None, workers=1)
    clock = Clock()
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    plan = launch.plan_launch(
        fake.model, arguments.parse([]), python=None, host="127.0.0.1", port=launch.free_port(), name="m"
    )
    events = watch.watch(plan, clock=clock)
    for event in events:
        if event.phase == "profiling":
            break
    clock.offset += 1.5 * next(p.normal_s for p in PHASES if p.key == "profiling")
    slow = run_until(events, "slow")[-1]
    events.close()
    assert slow.phase == "profiling"
    assert "not dead" in slow.text
    assert "use no CPU" in slow.text


class Clock:
    """Real time, plus what a test adds to it."""

    offset = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset


def test_progress_bars_show_in_ticks() -> None:
    reader = PhaseReader()
    for line in vllm_logs.START[:8]:
        reader.feed(line.strip())
    assert (reader.phase.key, reader.progress) == ("loading", "1/2")


@pytest.mark.parametrize(
    ("lines", "message", "process", "action"),
    [
        (
            vllm_logs.worker_failure(
                "ValueError: Following weights were not initialized from checkpoint: {'model.norm.weight'}"
            ),
            "model.norm.weight",
            "Worker",
            "gguf2st verify {model}",
        ),
        (
            vllm_logs.worker_failure("AttributeError: 'NoneType' object has no attribute 'shape'"),
            "NoneType",
            "Worker",
            "gguf2st verify {model}",
        ),
        (
            vllm_logs.config_failure("OSError: It looks like the config file at '/m/x.gguf' is not a valid JSON file."),
            "not a valid JSON file",
            "",
            "gguf2st serve",
        ),
        (["vllm: error: the following arguments are required: model_tag"], "model_tag", "", "vllm serve DIR"),
        (
            vllm_logs.worker_failure("NotImplementedError: Sparse Attention is not supported on CPU."),
            "not supported on CPU",
            "Worker",
            "where there is a GPU",
        ),
        (vllm_logs.worker_failure("SomeError: never seen before"), "SomeError: never seen before", "Worker", "--log"),
    ],
)
def test_a_death_at_the_start_names_its_root_and_what_to_do(
    fake: Fake, lines: list[str], message: str, process: str, action: str
) -> None:
    fake.does(before=vllm_logs.START + lines, serve=False, exit=1, workers=2)
    events, err = failure(fake.options(restarts=3))
    assert err.exit_code == 7
    assert message in err.message
    assert "exit code 1" in err.message
    assert (f"[{process}]" in err.message) == bool(process)
    assert action.replace("DIR", str(fake.model)).format(model=fake.model) in err.hint
    assert kinds(events)[-1] == "died"
    assert fake.starts == 1, "what never was ready would only die again"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_a_death_by_signal_without_a_word(fake: Fake, signum: int) -> None:
    fake.does(before=vllm_logs.START, serve=False, exit=-signum)
    _, err = failure(fake.options())
    assert f"exit code -{signum}" in err.message or f"exit code {128 + signum}" in err.message
    assert "signal" in err.message or err.problems


def test_every_known_message_is_advised_on() -> None:
    unknown = [a.pattern for a in ADVICE if not a.meaning or not a.action]
    assert unknown == []
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| `")]
    quoted = [row for row in rows if row and not row.startswith("--")]
    assert len(quoted) > 10
    assert [row for row in quoted if advise(row) is None and not is_echo(row)] == []


def test_the_first_failing_worker_counts_and_not_those_that_it_takes_along() -> None:
    reader = CauseReader()
    for line in vllm_logs.worker_failure("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."):
        reader.feed(line.replace("(Worker pid", "(Worker_TP0 pid"))
    for line in vllm_logs.worker_failure("RuntimeError: Connection closed by peer"):
        reader.feed(line.replace("(Worker pid", "(Worker_TP1 pid"))
    cause = reader.cause(1)
    assert cause is not None
    assert cause.process == "Worker_TP0"
    assert "max-model-len" in cause.action


def test_a_message_of_several_lines_is_kept_whole() -> None:
    reader = CauseReader()
    lines = ["pydantic_core.ValidationError: 1 validation error for ModelConfig", "  Value error, max_model_len (9000)"]
    for line in ["Traceback (most recent call last):", '  File "x.py", line 1, in f', *lines, ""]:
        reader.feed(line)
    cause = reader.cause(1)
    assert cause is not None
    assert "max_model_len (9000)" in cause.message


# --- serving


def test_an_engine_that_dies_while_serving_says_so_with_its_cause(fake: Fake) -> None:
    fake.does(before=vllm_logs.START, dying=vllm_logs.worker_killed(), exit=0, workers=1)
    events = serve(fake.options())
    ready = run_until(events, "ready")[-1]
    post(ready, "DIE")
    with pytest.raises(ServeError, match="died while serving, exit code 0: Worker proc VllmWorker-0 died") as caught:
        list(events)
    assert "out of memory" in " ".join(caught.value.problems) or "memory" in caught.value.hint


def test_restart_starts_it_again_as_often_as_told(fake: Fake) -> None:
    fake.does(before=vllm_logs.START, dying=vllm_logs.worker_killed(), workers=1)
    events = serve(fake.options(restarts=1))
    ready = run_until(events, "ready")[-1]
    post(ready, "DIE")
    seen = kinds(run_until(events, "ready"))
    assert seen[:2] == ["died", "restart"]
    assert seen[-1] == "ready"
    assert post(ready, "The capital of France is").json()["choices"][0]["text"] == " Paris"
    post(ready, "DIE")
    with pytest.raises(ServeError):
        list(events)
    assert fake.starts == 2


def test_health_503_is_a_dead_engine_even_if_its_process_stays(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SICK_S", 0.5)
    monkeypatch.setattr(watch, "HEALTH_EVERY_S", 0.1)
    fake.does(workers=1)
    events = serve(fake.options())
    run_until(events, "ready")
    Path(f"{fake.scenario}.sick").touch()
    seen: list[Event] = []
    with pytest.raises(ServeError, match="died while serving"):
        seen.extend(events)
    assert kinds(seen) == ["sick", "died"]


def test_a_short_refusal_is_not_a_death(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "HEALTH_EVERY_S", 0.1)
    fake.does()
    events = serve(fake.options())
    run_until(events, "ready")
    sick = Path(f"{fake.scenario}.sick")
    sick.touch()
    run_until(events, "sick")
    sick.unlink()
    assert kinds(run_until(events, "well")) == ["well"]
    events.close()


def test_processes_that_ignore_polite_signals_end_too(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf2st.serving.process.GRACE_S", (0.3, 0.3, 0.3, 5.0))
    fake.does(workers=2, ignore_sigint=True)
    events = serve(fake.options())
    run_until(events, "ready")
    assert left_over(fake)
    events.close()
    assert left_over(fake) == []


def post(ready: Event, prompt: str, **more: Any) -> httpx.Response:
    url = f"{ready.detail['url']}/v1/completions"
    try:
        return httpx.post(url, json={"model": "model", "prompt": prompt} | more, timeout=20, trust_env=False)
    except httpx.TransportError as err:
        return httpx.Response(599, text=str(err))


# --- smoke


def test_smoke_reports_both_answers(fake: Fake) -> None:
    fake.does(workers=1)
    events = list(serve(fake.options(smoke=True)))
    answers = [e.detail for e in events if e.kind == "smoke"]
    assert [(a["kind"], a["text"], a["logprobs"]) for a in answers] == [
        ("completion", " Paris", (-0.27,)),
        ("chat", "The", (-1.81,)),
    ]
    assert kinds(events)[-1] == "done"


def test_smoke_tries_no_chat_without_a_template(fake: Fake) -> None:
    (fake.model / "chat_template.jinja").unlink()
    fake.does(answers={"/v1/chat/completions": [400, "no chat template"]})
    events = list(serve(fake.options(smoke=True)))
    assert [e.detail["kind"] for e in events if e.kind == "smoke"] == ["completion"]


BAD_ANSWERS = {
    "nan": [200, '{"choices": [{"text": " x", "logprobs": {"token_logprobs": [-1.0, NaN]}}]}'],
    "null": [200, '{"choices": [{"text": " x", "logprobs": {"token_logprobs": [null]}}]}'],
    "nan as vLLM reports it": [500, '{"error": {"message": "Out of range float values are not JSON compliant"}}'],
    "empty": [200, '{"choices": [{"text": "", "logprobs": {"token_logprobs": []}}]}'],
    "no logprobs": [200, '{"choices": [{"text": " x", "logprobs": null}]}'],
    "no choices": [200, '{"choices": []}'],
    "not JSON": [200, "<html>"],
    "refused": [404, '{"error": {"message": "The model does not exist"}}'],
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
def test_smoke_refuses_bad_answers(fake: Fake, path: str, answer: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf2st.serving.session.DEATH_S", 0.1)
    fake.does(answers={path: answer})
    _, err = failure(fake.options(smoke=True))
    assert isinstance(err, ServeError)
    assert "chat" in err.message if "chat" in path else "completion" in err.message
    assert err.hint
    assert "Error(" not in err.message, "no bare exception"


RERANKER = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "yes"}}
POOLING: dict[str, tuple[dict[str, Any], tuple[str, ...], str, str]] = {
    "score": (RERANKER, (), "/score", "-> 0.7500 for 'The capital of France is Paris.', 0.2500 for 'Water boils"),
    "classify": ({"architectures": ["BertForSequenceClassification"]}, (), "/classify", "-> label 1 of 2, with 0.7500"),
    "embed": ({"architectures": ["BertModel"]}, (), "/v1/embeddings", "-> a vector of 3 finite numbers"),
}
POOLING["embed by modules.json"] = (CONFIG, ("modules.json",), *POOLING["embed"][2:])


@pytest.mark.parametrize(("config", "files", "path", "said"), POOLING.values(), ids=POOLING.keys())
def test_smoke_of_a_model_that_generates_nothing(
    fake: Fake, config: dict[str, Any], files: tuple[str, ...], path: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completions have no answer there."""
    monkeypatch.setattr("gguf2st.serving.session.DEATH_S", 0.1)
    (fake.model / "config.json").write_text(json.dumps(config))
    for name in files:
        (fake.model / name).write_text("[]")
    refused = [404, "does not support it"]
    fake.does(answers={"/v1/completions": refused, "/v1/chat/completions": refused})
    events = list(serve(fake.options(smoke=True)))
    (answer,) = [e for e in events if e.kind == "smoke"]
    assert said in answer.text
    assert answer.detail["logprobs"] == ()
    assert events[-1].text == "the model answers"
    for bad in ("NaN", "null"):
        body = f'{{"data": [{{"score": {bad}, "probs": [{bad}], "embedding": [{bad}]}}]}}'
        fake.does(answers={path: [200, body]})
        _, err = failure(fake.options(smoke=True))
        assert "1 numbers of 1 that are not finite" in err.message


def command_of(fake: Fake, **options: Any) -> list[str]:
    events = serve(fake.options(**options))
    command = next(e for e in events if e.kind == "command").detail["command"]
    events.close()
    return [*command]


def test_the_prompt_of_a_reranker_is_passed_on(fake: Fake) -> None:
    fake.does()
    template = fake.model / "additional_chat_templates/rerank.jinja"
    template.parent.mkdir()
    template.write_text("{{ messages }}")
    assert "--chat-template" not in command_of(fake), "no reranker"
    (fake.model / "config.json").write_text(json.dumps(RERANKER))
    command = command_of(fake)
    assert command[command.index("--chat-template") + 1] == str(template)
    for given in (("--chat-template", "mine.jinja"), ("--chat_template=mine.jinja",)):
        assert str(template) not in command_of(fake, vllm_arguments=given)
    template.unlink()
    assert "--chat-template" not in command_of(fake)


def test_convert_shows_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tiny_model(tmp_path / "m.gguf"), tmp_path / "out"
    report = gguf2st.convert(source, out)
    show_done(report, str(source), None)
    assert capsys.readouterr().out.endswith(f"vllm serve {out}\n")
    (out / "config.json").write_text(json.dumps(RERANKER))
    (out / "additional_chat_templates").mkdir()
    (out / "additional_chat_templates/rerank.jinja").write_text("{{ messages }}")
    show_done(report, str(source), None)
    assert capsys.readouterr().out.endswith(
        f"vllm serve {out} --chat-template {out}/additional_chat_templates/rerank.jinja\n"
    )


def test_the_request_that_is_shown_suits_the_model(fake: Fake) -> None:
    (fake.model / "config.json").write_text(json.dumps(RERANKER))
    fake.does()
    with subprocess.Popen(fake.command(), stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
    assert "/score -H" in lines[1]
    assert '"queries": "What is the capital of France?"' in lines[1]


def test_smoke_says_why_the_engine_died_rather_than_that_no_answer_came(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.does(dying=vllm_logs.worker_killed())
    monkeypatch.setattr("gguf2st.serving.tasks.PROMPT", "DIE")
    _, err = failure(fake.options(smoke=True))
    assert "Worker proc VllmWorker-0 died unexpectedly" in err.message


# --- proxy


def in_background(events: Iterator[Event], seen: list[Event], errors: list[BaseException]) -> threading.Thread:
    """Keep a session going, as the command line does."""

    def consume() -> None:
        try:
            seen.extend(events)
        except Gguf2stError as err:
            errors.append(err)

    thread = threading.Thread(target=consume)
    thread.start()
    return thread


def test_proxy_outlives_the_engine(fake: Fake) -> None:
    fake.does(dying=vllm_logs.worker_killed(), before=vllm_logs.START, pause_s=0.1, workers=1)
    events = serve(fake.options(proxy=True, restarts=1))
    seen = run_until(events, "ready")
    ready = seen[-1]
    assert ready.detail["url"] not in " ".join(next(e.text for e in seen if e.kind == "command"))
    errors: list[BaseException] = []
    later: list[Event] = []
    thread = in_background(events, later, errors)
    assert post(ready, "x").json()["choices"][0]["text"] == " Paris"

    killing = post(ready, "DIE")
    assert killing.status_code == 503
    assert killing.json()["error"]["type"] == "engine_unavailable"

    during = wait_for(lambda: post(ready, "x"), lambda r: "vLLM died" in r.text)
    assert during.status_code == 503
    assert during.headers["Retry-After"]
    assert "Worker proc VllmWorker-0 died unexpectedly" in during.json()["error"]["message"]

    again = wait_for(lambda: post(ready, "x"), lambda r: r.status_code == 200)
    assert again.json()["choices"][0]["text"] == " Paris"

    streamed = httpx.post(
        f"{ready.detail['url']}/v1/completions", json={"prompt": "DIE", "stream": True}, timeout=20, trust_env=False
    )
    assert streamed.status_code == 200, "the answer had begun"
    assert '"engine_unavailable"' in streamed.text
    assert streamed.text.rstrip().endswith("data: [DONE]")
    thread.join(30)
    assert [type(e) for e in errors] == [ServeError]


def test_proxy_keeps_streams_headers_paths_and_statuses(fake: Fake) -> None:
    fake.does(answers={"/v1/odd": [418, '{"tea": true}']})
    events = serve(fake.options(proxy=True))
    url = run_until(events, "ready")[-1].detail["url"]
    with httpx.stream("POST", f"{url}/v1/completions", json={"stream": True}, timeout=20, trust_env=False) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        rows = (line[6:] for line in answer.iter_lines() if line.startswith("data: {"))
        late = [time.time() - json.loads(row)["at"] for row in rows]
    assert len(late) == 3
    assert max(late) < 0.4, "events half a second apart must not wait for each other"
    echo = httpx.get(f"{url}/some%2Fpath?a=1&b=%20", headers={"X-Test": "yes"}, trust_env=False).json()
    assert echo == {"path": "/some%2Fpath?a=1&b=%20", "header": "yes"}
    assert httpx.post(f"{url}/v1/odd", json={}, trust_env=False).status_code == 418
    events.close()


def wait_for(ask: Callable[[], httpx.Response], good: Callable[[httpx.Response], bool]) -> httpx.Response:
    deadline = time.monotonic() + 30
    while not good(answer := ask()):
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)
    return answer


# --- the command line


def test_json_is_one_object_a_line(fake: Fake) -> None:
    fake.does(before=vllm_logs.START, workers=1)
    run = subprocess.run(fake.command("--smoke", "--json"), capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [r["event"] for r in rows if r["event"] not in ("phase",)] == [
        "checkpoint", "command", "ready", "smoke", "smoke", "done",
    ]  # fmt: skip
    assert run.stderr == ""


def test_a_pipe_gets_plain_lines_and_the_failure_its_exit_code(fake: Fake, tmp_path: Path) -> None:
    fake.does(before=vllm_logs.START + vllm_logs.worker_failure("OSError: [Errno 98] Address already in use"),
              serve=False, exit=1)  # fmt: skip
    log = tmp_path / "vllm.log"
    run = subprocess.run(fake.command("--log", str(log)), capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 7
    assert "\x1b" not in run.stderr
    assert "\r" not in run.stderr
    assert "loading shards (normal:" in run.stderr
    assert "Address already in use [Worker]" in run.stderr
    assert "it means: another program listens" in run.stderr
    assert "Traceback" not in run.stderr
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("while_starting", [True, False])
def test_signals_end_every_process(fake: Fake, signum: int, while_starting: bool) -> None:
    fake.does(before=vllm_logs.START, workers=3, serve=not while_starting)
    with subprocess.Popen(fake.command("--json"), stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        wanted = "profiling" if while_starting else "ready"
        for line in process.stdout:
            row = json.loads(line)
            if wanted in (row["phase"], row["event"]):
                break
        assert len(left_over(fake)) >= 3
        process.send_signal(signum)
        assert process.wait(30) == (130 if while_starting else 0)
    assert left_over(fake) == []


def test_help_needs_no_torch_and_no_proxy_libraries() -> None:
    code = (
        "import sys\nfrom gguf2st.cli import main\ntry: main(['serve', '--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'numba', 'httpx', 'starlette', 'uvicorn'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.splitlines()[-1] == "[]"


# --- converting into the cache


def test_a_conversion_to_serve_leaves_the_device_to_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(device, "decoder", lambda name: asked.append(name) or cpu.dequantize)
    monkeypatch.setattr(device, "_cuda_devices", lambda: 1)
    folder, converted = launch.checkpoint(launch.find(tiny_model(tmp_path / "m.gguf")), cache=tmp_path / "cache")
    assert converted
    assert (folder / "config.json").exists()
    assert asked == ["cpu"]


@pytest.mark.real
def test_a_gguf_is_converted_once_and_again_when_it_changed(fake: Fake, smollm2: Path, tmp_path: Path) -> None:
    fake.does()
    source = tmp_path / "SmolLM2.gguf"
    source.write_bytes(smollm2.read_bytes())
    options = ServeOptions(str(source), port=0, cache=tmp_path / "cache", smoke=True, verify=True)
    first, second = (next(serve(options)) for _ in range(2))
    os.utime(source, ns=(1, 1))
    third = next(serve(options))
    other_dtype = next(
        serve(ServeOptions(str(source), port=0, cache=tmp_path / "cache", vllm_arguments=("--dtype", "float16")))
    )
    assert [e.detail["converted"] for e in (first, second, third, other_dtype)] == [True, False, True, True]
    assert first.detail["folder"] == second.detail["folder"]
    assert len({e.detail["folder"] for e in (first, third, other_dtype)}) == 3


# --- preflight


def test_the_table_says_which_vllm_it_was_read_from() -> None:
    table = preflight.read_table()
    assert table["vllm"].split(".")[:2] == preflight.TABLE.removesuffix(".json").split("_")[1:]
    assert not set(table["native"]) & set(table["transformers_backend"])


@pytest.mark.parametrize(
    ("hf_class", "served"),
    [
        ("LlamaForCausalLM", "native"),
        ("Gemma3ForCausalLM", "native"),
        ("Qwen3MoeForCausalLM", "native"),
        ("Olmo2ForCausalLM", "transformers backend"),
        ("BitNetForCausalLM", "transformers backend"),
        ("XverseForCausalLM", "not served"),
        ("NeverHeardOfForCausalLM", "not served"),
    ],
)
def test_who_serves(hf_class: str, served: str) -> None:
    assert preflight.who_serves(hf_class)[0] == served


LLAMA_70B = {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
             "intermediate_size": 28672}  # fmt: skip
DEEPSEEK_V3 = {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
               "qk_rope_head_dim": 64, "hidden_size": 7168}  # fmt: skip
GEMMA3_1B = {"num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
             "hidden_size": 1152, "sliding_window": 512,
             "layer_types": [("full" if i % 6 == 5 else "sliding") + "_attention" for i in range(26)]}  # fmt: skip
QWEN3_NEXT = {"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
              "layer_types": ["linear_attention"] * 3 + ["full_attention"]}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "length", "nbytes"),
    [
        (LLAMA_70B, 1, 327_680),  # the 320 KiB a token that every sizing guide of Llama 3 70B gives
        (DEEPSEEK_V3, 1, 70_272),  # the 70 KB a token of the DeepSeek-V3 report
        (GEMMA3_1B, 512, 26 * 512 * 1024),
        (GEMMA3_1B, 32768, (4 * 32768 + 22 * 512) * 1024),
        (QWEN3_NEXT, 100, 100 * 2 * 2 * 256 * 2),
        ({"num_hidden_layers": 2}, 1, None),
    ],
)
def test_kv_cache_of_a_request(config: dict[str, Any], length: int, nbytes: int | None) -> None:
    assert preflight.kv_cache(config, length)[0] == nbytes


@pytest.mark.parametrize(
    ("config", "works"),
    [
        (LLAMA_70B, [1, 2, 4, 8]),
        (GEMMA3_1B, [1, 2, 4]),  # 4 heads; its one KV head is copied
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, [1]),
        ({"num_attention_heads": 24, "num_key_value_heads": 6}, [1, 2]),  # 6 neither divides by 4 nor is copied to 4
        ({"num_attention_heads": 8, "num_key_value_heads": 8, "moe_intermediate_size": 100}, [1, 2, 4]),
    ],
)
def test_tensor_parallel_sizes(config: dict[str, Any], works: list[int]) -> None:
    assert [n for n in preflight.TENSOR_PARALLEL_SIZES if not preflight.why_not_parallel(config, n)] == works
