"""Run by vLLM's own interpreter: which modules vLLM builds for a configuration, and which scheme it finds for each.

    python modules_probe.py < JOBS > RESULTS

JOBS is a JSON list of {"name", "config", "modules"}: config.json with its quantization_config, and the names of the
checkpoint's modules that have a matrix. RESULTS is a JSON object name -> a traceback, or
    {"modules": {module of the checkpoint: [module of vLLM, whether it asks for quantization, config group it gets]},
     "experts": {module of vLLM that holds the experts of a layer: config group it gets},
     "fused": {last part of a module of vLLM: last parts of those of the checkpoint that it looks the group up by}}
Weights are made, but never read.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_KIMI_K3_GEMM_AR": "0",  # a library for GPUs
}
"""Of vLLM, for models that are built and not run."""
RECORDS: list[dict[str, Any]] = []
SCRATCH = tempfile.TemporaryDirectory()
NUMBERS = itertools.count()
"""Of the models, whose folders must be different: vLLM remembers them by name."""


def watch() -> None:
    """Make the quantization configuration write down what it is asked for, and quantize nothing."""
    from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts, UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    class WithoutKernel(FusedMoEMethodBase):
        """Makes the weights of experts, and looks for no kernel that could run them here."""

        create_weights = UnquantizedFusedMoEMethod.create_weights

        def get_fused_moe_quant_config(self, layer: Any) -> None:
            return None

    def get_quant_method(self: Any, layer: Any, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            members = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
            found = [group_of(self, layer, f"{prefix}.0.{member}") for member in members]
            group = found[0] if len(set(found)) == 1 else f"differ: {found}"
            RECORDS.append({"layer": layer, "group": group, "experts": True})
            return WithoutKernel(layer.moe_config)
        if isinstance(layer, LinearBase | ParallelLMHead):
            RECORDS.append({"layer": layer, "group": group_of(self, layer, prefix), "experts": False})
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None

    compressed_tensors.CompressedTensorsConfig.get_quant_method = get_quant_method


def stand_in_for_torchvision() -> None:
    """Let vLLM's multimodal classes import it: the tests have none that fits, and use no images."""
    import importlib.abc
    import importlib.machinery
    from unittest.mock import MagicMock

    class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        """An empty torchvision."""

        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            package = name.partition(".")[0] == "torchvision"
            return importlib.machinery.ModuleSpec(name, self, is_package=True) if package else None

        def create_module(self, spec: Any) -> Any:
            return MagicMock(__path__=[], __spec__=spec, __version__="0.0")

        def exec_module(self, module: Any) -> None:
            pass

    sys.meta_path.insert(0, StandIn())


def lift_limits() -> None:
    """Let models be built that this machine could not run: nothing is run here."""
    from unittest.mock import MagicMock

    import torch

    import vllm.config.vllm as configuration
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
    from vllm.model_executor.models import registry
    from vllm.platforms.cpu import CpuPlatform

    def post_init(self: Any) -> None:
        with contextlib.suppress(NotImplementedError):  # experts without a gate want a GPU
            checks(self)

    def backend(cls: Any, *some: Any, **others: Any) -> Any:
        config = others["attn_selector_config"]._replace(use_sparse=False)
        return choose(*some, **others | {"attn_selector_config": config})

    stand_in_for_torchvision()
    torch.cuda.Stream = torch.cuda.Event = MagicMock  # type: ignore[misc, assignment]
    checks, FusedMoEConfig.__post_init__ = FusedMoEConfig.__post_init__, post_init
    choose, CpuPlatform.get_attn_backend_cls = CpuPlatform.get_attn_backend_cls, classmethod(backend)
    registry._run_in_subprocess = lambda fn: fn()
    from vllm.models.qwen4_exp.nvidia import model, qsa  # needs the stand-in

    assert model
    qsa.is_flash_attn_varlen_func_available = lambda: True
    # Tables of n-grams would lie in pinned memory, which only a device has.
    configuration.EngramConfig = functools.partial(configuration.EngramConfig, cpu_offload=False)


def group_of(config: Any, layer: Any, name: str) -> str | None:
    """The config group that vLLM takes for a module; what it refuses is told in words."""
    try:
        scheme = config.get_scheme_dict(layer, name)
    except ValueError as err:
        return f"refused: {err}"
    if scheme is None:
        return None
    weights = scheme["weights"]
    for group, table in config.config["config_groups"].items():
        ours = table["weights"]
        if all(_plain(getattr(weights, key)) == ours[key] for key in ("num_bits", "group_size", "symmetric", "type")):
            return group
    return f"unknown: {weights}"


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def register(config: dict[str, Any]) -> None:
    """Let transformers read a configuration of a type that is in the code of a repository alone, which is not here."""
    from transformers import AutoConfig, PretrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config["model_type"]
    config.pop("auto_map", None)
    if kind not in CONFIG_MAPPING:
        defaults = {"model_type": kind, "embedding_dropout": 0.0, "num_hidden_layers": 2}
        AutoConfig.register(kind, type(f"Config_{kind}".replace("-", "_"), (PretrainedConfig,), defaults))


def build(config: dict[str, Any]) -> tuple[Any, dict[str, list[str]]]:
    """vLLM's model for a configuration, and what it fuses: name of the fused module -> names of the members."""
    import torch

    from vllm.config import set_current_vllm_config
    from vllm.distributed import destroy_model_parallel, init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    register(config)
    folder = Path(SCRATCH.name) / f"model-{next(NUMBERS)}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        load_format="dummy",
        max_model_len=32,
        distributed_executor_backend="uni",
        block_size=32,  # vLLM refuses its own choice for linear attention on CPUs
    )
    vllm_config = arguments.create_engine_config()
    with set_current_vllm_config(vllm_config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{SCRATCH.name}/store", 0, backend="gloo")
        destroy_model_parallel()
        initialize_model_parallel(1, 1)  # anew: groups for experts are made for models that have some
    RECORDS.clear()
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(vllm_config.model_config.dtype)
    try:
        model = initialize_model(vllm_config)
    finally:
        torch.set_default_dtype(dtype)
    fused = {
        **(getattr(vllm_config.quant_config, "packed_modules_mapping", None) or {}),
        **(getattr(model, "packed_modules_mapping", None) or {}),
    }
    return model, fused


def probe(config: dict[str, Any], modules: list[str]) -> dict[str, Any]:
    """Where each module of the checkpoint goes."""
    model, fused = build(config)
    paths = {id(module): path for path, module in model.named_modules()}
    asked = {paths[id(r["layer"])]: r["group"] for r in RECORDS if id(r["layer"]) in paths}
    known = set(paths.values())
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    result = {}
    for module in modules:
        weight = f"{module}.weight"
        name = mapper._map_name(weight) if mapper is not None else weight
        path = name and _path(name.removesuffix(".weight"), known, asked, fused)
        result[module] = [path, path in asked, asked.get(path)]
    experts = {paths[id(r["layer"])]: r["group"] for r in RECORDS if r["experts"]}
    return {"modules": result, "experts": experts, "fused": fused}


def _path(name: str, known: set[str], asked: dict[str, Any], fused: dict[str, list[str]]) -> str | None:
    """The module that a weight of that name goes into."""
    if name in known:
        return name
    for module, members in fused.items():
        for member in members:
            whole = name.removesuffix(member) + module
            if name.endswith("." + member) and whole in known:
                return whole
    if match := re.fullmatch(r"(.*experts)\.\d+\.\w+", name):
        return next((path for path in asked if path == match[1] or path.startswith(match[1] + ".")), None)
    *_, parent, leaf = ["", *name.split(".")]
    leaf = next((module for module, members in fused.items() if leaf in members), leaf)
    numbers = re.findall(r"\.(\d+)", name)
    same = [path for path in asked if re.findall(r"\.(\d+)", path) == numbers]
    ends = [path for path in same if path.endswith(f"{parent}.{leaf}")] or [p for p in same if p.endswith(f".{leaf}")]
    return ends[0] if len(ends) == 1 else None


def main() -> None:
    os.environ |= SETTINGS
    jobs = json.load(sys.stdin)
    stdout = os.dup(1)
    os.dup2(2, 1)  # vLLM writes to both
    watch()
    lift_limits()
    results: dict[str, object] = {}
    for job in jobs:
        try:
            results[job["name"]] = probe(job["config"], job["modules"])
        except Exception:  # one model that vLLM refuses must not hide the others
            results[job["name"]] = traceback.format_exc()
    os.write(stdout, json.dumps(results).encode())


if __name__ == "__main__":
    main()
