"""HF -> GGUF by llama.cpp's own converter -> HF by gguf2st gives back the model that went in.

Weights are compared and not only logits: a wrong permutation can leave the logits alone.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file
from torch import Tensor

import gguf2st
from gguf2st.archmap.mapfile import all_maps, select_map
from gguf2st.archmap.proofs import read_proofs
from gguf2st.archmap.scope import MapScope
from gguf2st.header import read_header
from gguf2st.plan.build import read_small
from tests.oracle import logits, summary
from tests.oracle.case import CLASSIFIER
from tests.oracle.cases import CASES, Case
from tests.oracle.proofs import proofs
from tests.oracle.tiny import oracle_gguf, original, prepare, run_converter

transformers: Any = transformers_module  # its constructors carry no types
pytestmark = pytest.mark.oracle

IDS = torch.arange(5, 45)[None]
"""Forty tokens: fewer than any sliding window of the table, more than any original context of its yarn cases."""


NOT_IN_GGUF: Mapping[str, str] = {
    "_name_or_path": "where the files lie",
    "transformers_version": "who wrote them",
    "initializer_range": "training only",
    "attention_dropout": "training only",
    "use_cache": "a choice of the caller",
}
"""Keys that say nothing about the architecture, and may therefore differ."""

OLD_SPELLINGS: Mapping[str, str] = {
    "sliding_window_pattern": "what transformers 4.50 reads where later ones read layer_types, which is compared",
    "partial_rotary_factor": "what transformers 4.x and vLLM read where transformers 5 reads rope_parameters, compared",
}
"""Keys that we write for older readers: transformers keeps them, but writes none of its own."""

OF_A_CLASS = [name for name, case in CASES.items() if not case.weights]
"""Cases that transformers itself wrote, so that it can run and compare them."""


@dataclass(frozen=True)
class RoundTrip:
    """A case, the folder that transformers wrote, and the folder that gguf2st made of its GGUF by an arch map."""

    name: str
    case: Case
    before: Path
    after: Path
    arch: str
    map: str


@pytest.fixture(scope="session")
def prepared(request: pytest.FixtureRequest) -> None:
    """Make all selected checkpoints at once: the start of the converter costs more than the conversions."""
    specs = (getattr(item, "callspec", None) for item in request.session.items)
    params = [spec.params for spec in specs if spec]
    prepare(sorted({p[key] for p in params for key in ("trip", "name") if p.get(key) in CASES}))


@pytest.fixture(scope="module", params=CASES)
def trip(request: pytest.FixtureRequest, prepared: None, tmp_path_factory: pytest.TempPathFactory) -> RoundTrip:
    name = request.param
    after = tmp_path_factory.mktemp("round_trip") / name
    report = gguf2st.convert(oracle_gguf(name), after, dtype=CASES[name].dtype)
    return RoundTrip(name, CASES[name], original(name), after, report.arch, report.map)


def test_every_tensor_comes_back_bit_for_bit(trip: RoundTrip, record_property: Callable[[str, object], None]) -> None:
    record_property(summary.PROPERTY, [trip.arch, trip.map])
    before, after = _tensors(trip.before), _tensors(trip.after)
    assert sorted(after) == sorted(before)
    expected = {name: _left(trip.case, name, tensor) for name, tensor in before.items()}
    assert {n: (t.dtype, t.shape) for n, t in after.items()} == {n: (t.dtype, t.shape) for n, t in expected.items()}
    assert [name for name, tensor in expected.items() if not torch.equal(after[name], tensor)] == []


@pytest.mark.parametrize("trip", OF_A_CLASS, indirect=True)
def test_config_says_the_same_to_transformers(trip: RoundTrip) -> None:
    expected = _read_config(trip.before)
    if trip.case.becomes:
        kept = {
            key: value for key, value in expected.items() if key not in {"model_type", "architectures", *trip.case.lost}
        }
        expected = getattr(transformers, trip.case.becomes)(**kept).to_dict()
        expected["architectures"] = [trip.case.becomes.replace("Config", "ForCausalLM")]
    found = _read_config(trip.after)
    compared = (expected.keys() | found.keys()) - NOT_IN_GGUF.keys() - OLD_SPELLINGS.keys()
    differing = {key: (expected.get(key), found.get(key)) for key in compared if expected.get(key) != found.get(key)}
    on_purpose = {key: found.get(key) for key in trip.case.differs}
    assert on_purpose == {key: value for key, (value, _) in trip.case.differs.items()}
    assert differing.keys() <= on_purpose.keys(), f"key: (original, ours) in {differing}"


@pytest.mark.parametrize("trip", [name for name, case in CASES.items() if case.weights], indirect=True)
def test_config_has_what_the_published_one_has(trip: RoundTrip) -> None:
    """For want of a class of transformers that reads it: key by key."""
    found = json.loads((trip.after / "config.json").read_text())
    differing = {key: (value, found.get(key)) for key, value in trip.case.options.items() if found.get(key) != value}
    on_purpose = {key: found.get(key) for key in trip.case.differs}
    assert on_purpose == {key: value for key, (value, _) in trip.case.differs.items()}
    assert differing.keys() <= on_purpose.keys() | trip.case.lost.keys(), f"key: (original, ours) in {differing}"


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("_mtp")])
def test_layers_that_predict_further_tokens_are_left_behind(name: str) -> None:
    """As llama.cpp's converter writes them: behind the others, whatever the checkpoint calls them."""
    plan = gguf2st.make_plan(oracle_gguf(name))
    layers = plan.config["num_hidden_layers"]
    behind = {x for x in plan.header.sources if x.startswith("blk.") and int(x.split(".")[1]) >= layers}
    assert any("nextn" in source for source in behind)
    assert behind == {source for source in plan.dropped if source.startswith("blk.")}


@pytest.mark.parametrize("trip", [name for name, case in CASES.items() if "modules.json" in case.files], indirect=True)
def test_files_of_sentence_transformers_come_back(trip: RoundTrip) -> None:
    assert {name: json.loads((trip.after / name).read_text()) for name in trip.case.files} == trip.case.files


@pytest.mark.parametrize("trip", OF_A_CLASS, indirect=True)
def test_transformers_computes_the_same_logits(trip: RoundTrip) -> None:
    after = _model(trip.after, trip.case)
    with torch.inference_mode():
        if trip.case.keeps:
            before = _model(trip.before, trip.case)
            for name, parameter in before.named_parameters():
                parameter.copy_(_left(trip.case, name, parameter))
            expected = _output(before)
        else:
            expected = _output_before(trip.name)
        assert torch.equal(_output(after), expected)


@pytest.mark.parametrize(
    "trip",
    [name for name in OF_A_CLASS if CASES[name].dtype == "float32" and CASES[name].tolerance],
    indirect=True,
)
def test_llama_cpp_computes_the_same_logits(trip: RoundTrip) -> None:
    """The GGUF says all that llama.cpp needs: where a case lost something, the comparison above proves nothing."""
    what: logits.What = "logits"
    expected = _output_before(trip.name)
    if trip.case.auto == "AutoModel":
        what, expected = "embeddings", expected[0]
    elif trip.case.auto == CLASSIFIER:
        what, expected = "scores", trip.case.goes_on(expected) if trip.case.goes_on else expected
    else:
        expected = expected[0]
    found = torch.from_numpy(logits.compute(oracle_gguf(trip.name), IDS[0].tolist(), what))
    torch.testing.assert_close(found, expected, rtol=0, atol=trip.case.tolerance)


@functools.lru_cache(maxsize=1)  # two tests compare with it, one after the other
def _output_before(case: str) -> Tensor:
    with torch.inference_mode():
        return _output(_model(original(case), CASES[case]))


def _output(model: Any) -> Tensor:
    """Logits, what an encoder makes of each token, or a classifier of each text. (batch, [tokens,] width)"""
    found = model(IDS, decoder_input_ids=IDS) if hasattr(model, "decoder") else model(IDS)
    tensor: Tensor = found.logits if "logits" in found else found.last_hidden_state
    return tensor


def _left(case: Case, name: str, tensor: Tensor) -> Tensor:
    """What the converter's arithmetic leaves of a tensor: all of it, with few exceptions."""
    if case.dtype == "float32":  # float32 arithmetic keeps every bfloat16 value
        for pattern, left in case.keeps.items():
            if fnmatch(name, pattern):
                return left(tensor)
    return tensor


def _tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        content = load_file(shard)
        assert tensors.keys().isdisjoint(content), f"{shard} repeats a tensor"
        tensors |= content
    return tensors


def _read_config(folder: Path) -> dict[str, Any]:
    """As transformers reads it; the parts of a whole know where they were read from too."""
    config: dict[str, Any] = transformers.AutoConfig.from_pretrained(folder).to_dict()
    for part in config.values():
        if isinstance(part, dict):
            part.pop("_name_or_path", None)
    return config


def _model(folder: Path, case: Case) -> Any:
    model, report = getattr(transformers, case.auto).from_pretrained(
        folder, dtype=getattr(torch, case.dtype), output_loading_info=True, **case.arguments
    )
    assert not any(report.values()), f"{folder}: {report}"
    return model.eval()


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("name", CASES)
def test_maps_declare_every_key_they_read(name: str) -> None:
    """Only declared keys have their type and range checked before anything is computed from them."""
    header = read_header([oracle_gguf(name)])
    amap = select_map(header.arch, lambda m: bool(MapScope(header, m, read_small(header)).evaluate(m.when)))
    scope = MapScope(header, amap, read_small(header))
    for expression in amap.config.values():
        scope.at().evaluate(expression)
    read = {key.removeprefix(f"{header.arch}.") for key in scope.read_keys}
    declared = amap.keys
    assert [k for k in read if not any(k == d or (d.endswith(".") and k.startswith(d)) for d in declared)] == []


def test_the_converter_keeps_nothing_from_one_model_to_the_next(tmp_path: Path) -> None:
    """One process converts all cases, in an order that is nobody's promise: Arctic has names of its own for tensors."""
    names = ["arctic", "llama", "qwen3", "llama_yarn"]
    jobs = [
        {
            "source": str(original(name)),
            "target": str(tmp_path / f"{name}.gguf"),
            "flags": CASES[name].flags,
            "hparams": CASES[name].hparams,
        }
        for name in names
    ]
    assert run_converter(jobs) == {}
    assert [name for name in names if (tmp_path / f"{name}.gguf").read_bytes() != oracle_gguf(name).read_bytes()] == []


@pytest.mark.usefixtures("prepared")
def test_every_map_has_a_case() -> None:
    assert {m.name for m in all_maps()} - proofs().keys() == set()


@pytest.mark.usefixtures("prepared")
def test_the_proofs_that_users_see_are_those_of_the_table() -> None:
    """`python -m tests.oracle.proofs` writes them anew."""
    assert read_proofs() == proofs()
