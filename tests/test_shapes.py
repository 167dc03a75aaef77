"""Shapes of a file that are not the map's: dimensions in another order, and axes of length 1 that ggml drops."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import gguf2st
from gguf2st.archmap import mapfile
from gguf2st.archmap.mapfile import maps_folder
from gguf2st.header import Header, Source, read_header
from gguf2st.ops import same_shape
from gguf2st.plan.build import build, read_small
from tests.oracle.cases import CASES
from tests.oracle.rewrite import Metadata, Tensors, rewritten
from tests.oracle.tiny import oracle_gguf, prepare

pytestmark = pytest.mark.oracle

Shape = tuple[int, ...]


@pytest.fixture(scope="module", autouse=True)
def _prepared(request: pytest.FixtureRequest) -> None:
    """All selected cases at once: each start of the converter costs more than all conversions."""
    specs = (getattr(item, "callspec", None) for item in request.session.items)
    prepare(sorted({spec.params["case"] for spec in specs if spec and spec.params.get("case") in CASES}))


@pytest.fixture(scope="module", autouse=True)
def _maps_read_once() -> Iterator[None]:
    """A map is asked again and again here about files that differ in a shape; to read it is half of the work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapfile, "load_map", functools.cache(mapfile.load_map))
        yield


def _with_shapes(header: Header, shapes: dict[str, Shape]) -> Header:
    sources: dict[str, Source] = dict(header.sources)
    for name, shape in shapes.items():
        sources[name] = dataclasses.replace(sources[name], shape=shape)
    return dataclasses.replace(header, sources=sources)


def _others(shape: Shape) -> list[Shape]:
    """The same number of elements in another order, and with a factor of 2 moved to the next axis."""
    candidates = set(itertools.permutations(shape))
    for axis, (n, m) in enumerate(itertools.pairwise(shape)):
        if n % 2 == 0:
            candidates.add((*shape[:axis], n // 2, 2 * m, *shape[axis + 2 :]))
    return sorted(other for other in candidates if not same_shape(other, shape))


def _structures() -> list[str]:
    """One case for each set of tensors: those that differ in numbers alone have the same equations."""
    found: dict[object, str] = {}
    for name, case in CASES.items():
        switches = {key for key, x in case.options.items() if x is None or isinstance(x, bool | list | tuple)}
        if case.dtype == "float32":
            stated = (case.config or name, case.auto, case.tokenizer, case.flags, str(case.hparams), case.becomes)
            found.setdefault((*stated, frozenset(switches)), name)
    return list(found.values())


@pytest.mark.parametrize("case", _structures())
def test_dimensions_in_another_order_are_refused(case: str) -> None:
    """Of each kind of tensor in turn: the bytes are as many, and only the shape tells."""
    header = read_header([oracle_gguf(case)])
    read = read_small(header)
    plan = build(header, read=read)
    assert plan.all_problems == ()
    chosen = maps_folder() / f"{plan.map}.toml"
    kinds: dict[str, str] = {}
    for name in header.sources.keys() - plan.dropped.keys():
        kinds[re.sub(r"\d+", "N", name)] = name
    accepted = [
        (name, shape)
        for name in kinds.values()
        for shape in _others(header.sources[name].shape)
        if not build(_with_shapes(header, {name: shape}), arch_map=chosen, read=read).all_problems
    ]
    assert accepted == []


@pytest.mark.parametrize("case", CASES)
def test_axes_of_length_1_may_be_gone(case: str) -> None:
    """llama.cpp's quantizer writes (n,) for the (1, n) that its converter wrote."""
    header = read_header([oracle_gguf(case)])
    shapes = {name: source.shape for name, source in header.sources.items() if source.shape[:1] == (1,)}
    bare = {name: tuple(itertools.dropwhile(lambda n: n == 1, shape)) or (1,) for name, shape in shapes.items()}
    after = build(_with_shapes(header, bare))
    assert after.all_problems == ()
    if bare:
        before = build(header)
        assert after.entries == before.entries
        assert after.config == before.config


@pytest.mark.parametrize(
    "case",
    ["xlm-roberta_types", "xlm-roberta_classifier", "qwen3next", "kimi_linear", "ernie4_5_moe", "falcon_h1_norm"],
)
def test_the_same_weights_are_written(case: str, tmp_path: Path) -> None:
    def strip(_: Metadata, tensors: Tensors) -> None:
        for name, values in tensors.items():
            tensors[name] = values.reshape(list(itertools.dropwhile(lambda n: n == 1, values.shape)) or [1])

    bare, folder = rewritten(case, tmp_path / "bare.gguf", strip), tmp_path / "bare"
    assert {s.shape for s in read_header([bare]).sources.values()} != {
        s.shape for s in read_header([oracle_gguf(case)]).sources.values()
    }
    gguf2st.convert(bare, folder, dtype="float32")
    gguf2st.convert(oracle_gguf(case), tmp_path / "whole", dtype="float32")
    found, expected = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "whole"))
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []
    assert [line for line in gguf2st.verify(folder, against=bare).problems if "token" not in line] == []
