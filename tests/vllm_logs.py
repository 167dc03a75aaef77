"""Lines that vLLM 0.32.0 printed, shortened where they are long, with its processes' prefixes and carriage returns."""

_AT = "11-29 18:03:26"
_WORKER = f"(Worker pid=17871) ERROR {_AT} [multiproc_executor.py:953] "
_ENGINE = f"(EngineCore pid=17845) ERROR {_AT} [core.py:1510] "
_API = f"(APIServer pid=17827) ERROR {_AT} [async_llm.py:906] "

START = [
    "W1129 18:03:26.451000 16651 torch/_library/triton.py:53] Triton not available, find_triton_kernels = []",
    f"(APIServer pid=16651) INFO {_AT} [api_utils.py:286] non-default args: {{'model_tag': '/m', 'port': 8533}}",
    f"(APIServer pid=16651) INFO {_AT} [model.py:733] Resolved architecture: LlamaForCausalLM",
    f"(APIServer pid=16651) INFO {_AT} [model.py:2152] Using max model len 1024",
    f"(EngineCore pid=16893) INFO {_AT} [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/m'",
    f"(Worker pid=17075) INFO {_AT} [cpu_model_runner.py:68] Starting to load model /m...",
    "Loading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]\r",
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:00,  1.19s/it]\r",
    "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:01<00:00,  1.20s/it]",
    f"(Worker pid=17075) INFO {_AT} [default_loader.py:501] Loading weights took 1.20 seconds",
]
WARM_UP = [
    f"(Worker pid=17075) INFO {_AT} [cpu_model_runner.py:90] Warming up model for the compilation...",
    f"(EngineCore pid=16893) INFO {_AT} [kv_cache_utils.py:2327] CPU KV cache size: 46,592 tokens, Maximum concurrency",
    f"(EngineCore pid=16893) INFO {_AT} [core.py:402] init engine (profile, create kv cache, warmup model) took 3.07 s",
    f"(APIServer pid=16651) INFO {_AT} [entry.py:140] Starting vLLM server on http://127.0.0.1:8533",
    "INFO:     Application startup complete.",
]
ALL_PHASES = ["starting", "resolving", "engine", "loading", "profiling", "compiling", "capturing", "server"]


def worker_failure(exception: str) -> list[str]:
    """A worker that fails while it loads, and how the failure travels outwards."""
    return [
        f"{_WORKER}WorkerProc failed to start.",
        f"{_WORKER}Traceback (most recent call last):",
        f'{_WORKER}  File "vllm/v1/executor/multiproc_executor.py", line 920, in worker_main',
        f"{_WORKER}    worker = WorkerProc(*args, **kwargs)",
        f"{_WORKER}             ^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        f"{_WORKER}{exception}",
        f"(EngineCore pid=17845) INFO {_AT} [multiproc_executor.py:486] [shutdown] Executor: all workers exited",
        f"{_ENGINE}EngineCore failed to start.",
        f"{_ENGINE}Traceback (most recent call last):",
        f'{_ENGINE}  File "vllm/v1/engine/core.py", line 1482, in run_engine_core',
        f"{_ENGINE}    raise e from None",
        f"{_ENGINE}Exception: WorkerProc initialization failed due to an exception in a background process. "
        "See stack trace for root cause.",
        "Process EngineCore:",
        "Traceback (most recent call last):",
        '  File "vllm/v1/engine/core.py", line 1512, in run_engine_core',
        "    raise e",
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for "
        "root cause.",
        "Traceback (most recent call last):",
        '  File "vllm/v1/engine/utils.py", line 1432, in wait_for_engine_startup',
        "    raise RuntimeError(",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]


def worker_killed() -> list[str]:
    """What follows when a worker is killed while it serves."""
    engine = f"(EngineCore pid=16893) ERROR {_AT} [core.py:1512] "
    return [
        f"(EngineCore pid=16893) ERROR {_AT} [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly "
        "(exit code: -9), shutting down executor.",
        f"(EngineCore pid=16893) INFO {_AT} [multiproc_executor.py:479] [shutdown] Executor: waiting for worker exit",
        f"{engine}EngineCore encountered a fatal error.",
        f"{engine}Traceback (most recent call last):",
        f'{engine}  File "vllm/v1/engine/core.py", line 1496, in run_engine_core',
        f"{engine}    engine_core.run_busy_loop()",
        f"{engine}RuntimeError: cancelled",
        f"{_API}AsyncLLM output_handler failed.",
        f"{_API}Traceback (most recent call last):",
        f'{_API}  File "vllm/v1/engine/async_llm.py", line 849, in output_handler',
        f"{_API}    outputs = await engine_core.get_output_async()",
        f"{_API}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) "
        "for the root cause.",
        "INFO:     Shutting down",
    ]


def config_failure(exception: str) -> list[str]:
    """The API server itself fails, with a first exception that a second one explains."""
    return [
        "Traceback (most recent call last):",
        '  File "transformers/configuration_utils.py", line 870, in _get_config_dict',
        "    config_dict = cls._dict_from_json_file(resolved_config_file)",
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 110: invalid start byte",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "vllm/entrypoints/cli/main.py", line 120, in main',
        "    args.dispatch_function(args)",
        exception,
    ]
