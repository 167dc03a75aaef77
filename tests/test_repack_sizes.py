"""How large repacked models of 8 billion parameters are: plans of the shapes of Llama 3.1 8B, without weights.

Bytes are those of llama.cpp's own files: Q4_0 and Q4_K_M keep the head in Q6_K, Q8_0 has all in one type.
"""

import dataclasses
from collections.abc import Callable

import pytest

from gguf2st import api
from gguf2st.header import Header, Source, read_header
from gguf2st.quants.layout import TYPES
from gguf2st.report import Report, make_report
from tests.large_models import sparse_model

LAYERS, HIDDEN, VOCAB = 32, 4096, 128_256


@pytest.fixture(scope="module")
def llama_8b(tmp_path_factory: pytest.TempPathFactory) -> Header:
    path = tmp_path_factory.mktemp("large") / "m.gguf"
    sizes = {"layers": LAYERS, "hidden": HIDDEN, "heads": 32, "kv_heads": 8, "ffn": 14_336}
    header = read_header([sparse_model(path, qtype="Q8_0", **sizes)])
    path.unlink()
    return header


def q4_0(name: str) -> str:
    return "Q6_K" if name == "output.weight" else "Q4_0"


def q4_k_m(name: str) -> str:
    """llama.cpp's mixture: `use_more_bits` gives attn_v and ffn_down of half the layers 6 bits."""
    if name == "output.weight":
        return "Q6_K"
    if "attn_v" in name or "ffn_down" in name:
        layer = int(name.split(".")[1])
        more = layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or (layer - LAYERS // 8) % 3 == 2
        return "Q6_K" if more else "Q4_K"
    return "Q4_K"


def report(header: Header, qtype: Callable[[str], str], repack: str) -> Report:
    """What a conversion of a model in these types would give, with the vocabulary of Llama 3."""

    def of(source: Source) -> Source:
        if len(source.shape) < 2:
            return source
        shape = (VOCAB, HIDDEN) if source.name in ("token_embd.weight", "output.weight") else source.shape
        kind, n = TYPES[qtype(source.name)], shape[0] * shape[1]
        return dataclasses.replace(source, shape=shape, qtype=kind.name, nbytes=n // kind.block * kind.nbytes)

    sources = {name: of(source) for name, source in header.sources.items()}
    if "output.weight" not in sources:
        embedding = sources["token_embd.weight"]
        sources["output.weight"] = of(dataclasses.replace(embedding, name="output.weight"))
    plan = api.make_plan(dataclasses.replace(header, sources=sources), repack=repack)
    return make_report(plan, output=None)


def embedding_nbytes(qtype: str) -> int:
    return VOCAB * HIDDEN // TYPES[qtype].block * TYPES[qtype].nbytes


def test_shapes_are_those_of_an_8b_model(llama_8b: Header) -> None:
    found = report(llama_8b, q4_k_m, "near")
    assert found.parameters == pytest.approx(8.03e9, rel=1e-3)
    assert found.source_nbytes == pytest.approx(4.92e9, rel=0.01), "the file that the Hub has"


@pytest.mark.parametrize(
    ("qtype", "head", "times"),
    [("Q4_0", "Q4_0", 1.0), ("Q8_0", "Q8_0", 1.0), ("Q4_0", "Q6_K", 1.14)],
)
def test_exact_stays_as_small_as_the_file_but_for_embeddings(
    qtype: str, head: str, times: float, llama_8b: Header
) -> None:
    """A head in Q6_K becomes 16-bit in exact: with it, such a file is 1.14 times as large, embeddings aside."""
    found = report(llama_8b, lambda name: head if name == "output.weight" else qtype, "exact")
    written = found.output_nbytes - 2 * VOCAB * HIDDEN
    assert written / (found.source_nbytes - embedding_nbytes(qtype)) == pytest.approx(times, abs=0.01)
    if head == "Q6_K":
        without_head = written - 2 * VOCAB * HIDDEN
        source = found.source_nbytes - embedding_nbytes(qtype) - embedding_nbytes(head)
        assert without_head / source == pytest.approx(1.0, abs=0.01)


def test_near_of_q4_0_files_packs_the_head_too(llama_8b: Header) -> None:
    found = report(llama_8b, q4_0, "near")
    written = found.output_nbytes - 2 * VOCAB * HIDDEN
    assert written / (found.source_nbytes - embedding_nbytes("Q4_0")) <= 1.1


def test_near_of_q4_k_m_is_little_more_than_half_of_bfloat16(llama_8b: Header) -> None:
    found = report(llama_8b, q4_k_m, "near")
    assert found.output_nbytes / found.bfloat16_nbytes <= 0.58
    assert {row.scheme for row in found.types if row.qtype in ("Q4_K", "Q6_K")} == {"int8_g32", "dense"}


def test_int4_of_q4_k_m(llama_8b: Header) -> None:
    found = report(llama_8b, q4_k_m, "int4")
    assert found.output_nbytes / found.bfloat16_nbytes <= 0.45
