"""vLLM's own lookup finds, for every module of every served architecture, the scheme that its weights are packed in.

Plans alone, of tiny models whose matrices are declared quantized: nothing is packed, and vLLM makes no forward pass.
"""

import json
import os
import re
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gguf2st import api
from gguf2st.header import read_header
from gguf2st.output.small_files import configurations
from gguf2st.plan import DENSE, Plan
from gguf2st.plan.vllm_modules import layerless
from gguf2st.serving.preflight import who_serves
from gguf2st.verification.fused import fused_in
from tests.oracle.cases import CASES
from tests.oracle.tiny import oracle_gguf, prepare
from tests.test_choice import declared
from tests.vllm.conftest import ENVIRONMENT, HERE

pytestmark = pytest.mark.slow  # `make test-vllm-modules`

MISSING: Mapping[str, str] = {
    "deci": "vLLM reads the configuration with code of the model's repository",
    "deepseek4": "vLLM's class knows the widths of the published model's heads only",
    "dots3note": "vLLM's class imports a library for GPUs",
    "granitehybrid-bamba": "vLLM 0.32 has no Bamba",
    "nanbeige": "the Transformers backend needs code of the model's repository",
    "qwen4exp": "vLLM's class wants FlashAttention",
    "plamo3": "vLLM reads the configuration with code of the model's repository",
}
"""Arch maps whose models vLLM cannot build here."""

STACKED = ("self_attn.index_q_proj", "self_attn.index_k_proj")
"""What MiniMax M3's loader puts into qkv_proj, though its packed_modules_mapping does not say so."""


def uniform(name: str) -> str:
    return "Q4_0"


def mixed(name: str) -> str:
    """Types that may be packed together, that may not, and none, at random but the same on each machine."""
    return ("Q4_0", "Q4_0", "Q4_0", "Q8_0", "Q4_1", "Q4_0", "F32", "Q5_1")[zlib.crc32(name.encode()) % 8]


@pytest.fixture(scope="session")
def plans() -> dict[str, Plan]:
    """One plan per arch map and way to declare types, of models that vLLM serves; "case/uniform" -> plan."""
    unmade = prepare(CASES)  # what the round trip says about them is enough
    found: dict[str, Plan] = {}
    maps: set[str] = set()
    for case in (name for name in CASES if name not in unmade):
        header = read_header([oracle_gguf(case)])
        first = api.make_plan(header)
        served = who_serves(first.config["architectures"][0])[0] != "not served"
        if first.map in maps or not served or first.map in MISSING:
            continue
        maps.add(first.map)
        for way in (uniform, mixed):
            plan = api.make_plan(declared(header, way), repack="exact")
            plan.require_complete()
            if any(e.scheme != DENSE for e in plan.entries):
                found[f"{case}/{way.__name__}"] = plan
    return found


@pytest.fixture(scope="session")
def answers(plans: dict[str, Plan], vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM says, all in one process."""
    jobs = []
    for name, plan in plans.items():
        config = configurations(plan)["config.json"]
        jobs.append({"name": name, "config": config, "modules": list(schemes(plan))})
    run = subprocess.run(
        [vllm_python, HERE / "modules_probe.py"], input=json.dumps(jobs), env=os.environ | ENVIRONMENT,
        cwd=tmp_path_factory.mktemp("elsewhere"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    results: dict[str, Any] = json.loads(run.stdout)
    return results


def schemes(plan: Plan) -> dict[str, str]:
    """Module -> its scheme, of those with a matrix."""
    matrices = (e for e in plan.entries if e.name.endswith(".weight") and len(e.shape) == 2)
    return {e.module: e.scheme for e in matrices if not e.module.endswith(STACKED)}


def experts_of(plan: Plan, path: str) -> set[str]:
    """The schemes of the experts in the layer whose number a module of vLLM has."""
    (layer, *_) = re.findall(r"\.(\d+)\.", path)
    here = [e for e in plan.entries if re.search(rf"\.{layer}\.", e.name) and len(e.shape) > 1]
    return {e.scheme for e in here if any(layerless(s).endswith("_exps") for s in e.sources)}


def test_what_verification_takes_for_one_parameter(plans: dict[str, Plan], answers: dict[str, Any]) -> None:
    """The members of each parameter go into one module of vLLM's, and no others do."""
    wrong: list[str] = []
    for name, plan in plans.items():
        if isinstance(answers[name], str):
            continue
        paths = {m: path for m, (path, _, _) in answers[name]["modules"].items() if ".experts." not in m}
        children: dict[str, list[str]] = defaultdict(list)
        for module in paths:
            children[module.rpartition(".")[0]].append(module)
        taken: set[frozenset[str]] = set()
        for modules in children.values():
            last = {module.rpartition(".")[2]: module for module in modules}
            for together, members in fused_in(plan.config["architectures"][0]):
                there = frozenset(last[m] for m in members if m in last)
                taken.add(there)
                if len(there) > 1 and len({paths[m] for m in there}) > 1:
                    wrong.append(f"{name}: {together} is not one parameter: {sorted(there)}")
        for path in set(paths.values()) - {None}:
            one = {module for module, other in paths.items() if other == path}
            if len(one) > 1 and not any(one <= group for group in taken):
                wrong.append(f"{name}: {path} is one parameter of {sorted(one)}")
    assert not wrong, "\n".join(wrong[:20])


def test_vllm_finds_the_scheme_of_every_module(plans: dict[str, Plan], answers: dict[str, Any]) -> None:
    assert len(plans) > 150
    wrong: dict[str, list[str]] = defaultdict(list)
    for name, plan in plans.items():
        if isinstance(answers[name], str):
            wrong[name].append(answers[name].strip().splitlines()[-1])
            continue
        together: dict[str, set[str]] = defaultdict(set)
        for module, scheme in schemes(plan).items():
            path, asked, group = answers[name]["modules"][module]
            together[path or module].add(scheme)
            if scheme == DENSE and group is not None:
                wrong[name].append(f"{module} is dense, vLLM takes {group}")
            elif scheme != DENSE and not asked:
                wrong[name].append(f"{module} is {scheme}, vLLM's {path} is built without quantization")
            elif scheme != DENSE and group != scheme:
                wrong[name].append(f"{module} is {scheme}, vLLM takes {group} for {path}")
        for path, group in answers[name]["experts"].items():
            if (group or DENSE) not in (found := experts_of(plan, path)):
                wrong[name].append(f"the experts of {path} are {sorted(found)}, vLLM takes {group}")
        wrong[name] += [f"{path} holds {sorted(found)}" for path, found in together.items() if len(found) > 1]
    if told := [f"{name}: {line}" for name, lines in wrong.items() for line in lines]:
        pytest.fail("\n".join(told))  # an assertion would show a few of them


def test_maps_fuse_what_vllm_fuses(plans: dict[str, Plan], answers: dict[str, Any]) -> None:
    """What vLLM's class packs into one parameter is one group of the map; a map may say more of what classes differ in.

    Only groups of which the checkpoint has several members, by the last parts of their names, which is all vLLM says.
    """
    lacking: set[str] = set()
    for name, plan in plans.items():
        leaves = {module.rpartition(".")[2] for module in schemes(plan)}
        ours = [{member.rpartition(".")[2] for member in members} for members in plan.fused.values()]
        for module, members in answers[name]["fused"].items() if isinstance(answers[name], dict) else ():
            together = set(members) & leaves
            if len(together) > 1 and not any(together <= group for group in ours):
                lacking.add(f"{plan.map}: {module} = {sorted(together)}")
    assert lacking == set()
