"""Run by vLLM's own interpreter: which parameters of vLLM's class does a checkpoint fill?

    python loading_probe.py < JOBS > RESULTS

JOBS is a JSON list of {"name", "folder"}: a checkpoint of 16-bit weights. RESULTS is a JSON object name -> a traceback,
or {"parameters": how many the class has, "empty": those that no weight reached, "partly": those that some did}. Every
parameter is made of NaN before vLLM's loader runs; what it pads stays so in part.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import modules_probe


def plain_experts() -> None:
    """Experts in 16 bits, for which vLLM would look for a kernel that this machine has."""
    from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, UnquantizedFusedMoEMethod, routed_experts

    class WithoutKernel(FusedMoEMethodBase):
        create_weights = UnquantizedFusedMoEMethod.create_weights

        def get_fused_moe_quant_config(self, layer: Any) -> None:
            return None

        def apply(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("nothing is run here")

    routed_experts.UnquantizedFusedMoEMethod = WithoutKernel


def probe(folder: Path) -> dict[str, Any]:
    """What vLLM's loader fills from the weights of the folder."""
    import torch
    from safetensors.torch import load_file

    model, _ = modules_probe.build(json.loads((folder / "config.json").read_text()))
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.fill_(float("nan"))
    model.load_weights(row for file in sorted(folder.glob("*.safetensors")) for row in load_file(file).items())
    lacking = {name: torch.isnan(p.data.float()) for name, p in model.named_parameters() if p.is_floating_point()}
    return {
        "parameters": len(lacking),
        "empty": sorted(name for name, nan in lacking.items() if nan.all()),
        "partly": sorted(name for name, nan in lacking.items() if nan.any() and not nan.all()),
    }


def main() -> None:
    os.environ |= modules_probe.SETTINGS
    jobs = json.load(sys.stdin)
    stdout = os.dup(1)
    os.dup2(2, 1)  # vLLM writes to both
    modules_probe.lift_limits()
    plain_experts()
    results: dict[str, object] = {}
    for job in jobs:
        try:
            results[job["name"]] = probe(Path(job["folder"]))
        except Exception:  # one model that vLLM refuses must not hide the others
            results[job["name"]] = traceback.format_exc()
    os.write(stdout, json.dumps(results).encode())


if __name__ == "__main__":
    main()
