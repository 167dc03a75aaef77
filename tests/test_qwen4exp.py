"""Qwen4-Exp: the table of n-grams as transformers makes it, and files that say something else."""

import dataclasses
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader, dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

import gguf2st
from gguf2st.config import qwen4_exp
from gguf2st.errors import MapError
from gguf2st.execute.rows import rows_of
from gguf2st.header import Header, Source, read_header
from gguf2st.plan import Entry, Plan
from gguf2st.plan.build import build
from gguf2st.verification.original import row_order
from tests.oracle.rewrite import requantized
from tests.oracle.tiny import oracle_gguf
from tests.oracle.tiny import original as original_of

pytestmark = pytest.mark.oracle


def module(**options: Any) -> Any:
    """transformers' table for a configuration, without its memory."""
    base = {"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2, "ple_layer_ids": [1], "eos_token_id": 1}
    with torch.device("meta"):
        config = Qwen4ExpTextConfig(**base, **options)
        return Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, 0)


class Scope:
    """A file with the table that a module has."""

    def __init__(self, made: Any, **keys: Any) -> None:
        self.keys = {
            "ple.layers": [0],
            "ple.ngram_size": made.ngram_size,
            "ple.heads_per_ngram": made.heads_per_ngram,
            "ple.conv_kernel": 4,
            "ple.eos_token_id": 1,
            "ple.head_vocab_sizes": made.head_vocab_sizes,
            "ple.head_offsets": made.head_offsets,
        } | keys
        self.dims = tuple(made.ngram_embedding.weight.shape)

    def get(self, key: str) -> Any:
        return self.keys.get(key)

    def tensor(self, name: str, why: str) -> list[float] | None:
        return None

    def has(self, tensor: str) -> bool:
        return True

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.dims

    def note(self, text: str) -> None:
        raise AssertionError(text)


@settings(max_examples=60, deadline=None)
@given(
    base=st.integers(2, 3000) | st.sampled_from([20_000_000, 20_000_004, 99_991]),
    divisor=st.integers(1, 300) | st.just(128),
    size=st.integers(2, 4),
    heads=st.integers(1, 4),
)
def test_the_same_table_comes_of_our_configuration(base: int, divisor: int, size: int, heads: int) -> None:
    sizes = {"ngram_size": size, "heads_per_ngram": heads, "ple_embed_dim": 8 * heads * (size - 1)}
    made = module(ngram_vocab_size_base=base, make_ngram_vocab_size_divisible_by=divisor, **sizes)
    found = qwen4_exp.ngrams(Scope(made), 2)
    again = module(**{key: found[key] for key in found if key not in ("eos_token_id", "ple_layer_ids")})
    assert again.head_vocab_sizes == made.head_vocab_sizes
    assert again.head_offsets == made.head_offsets
    assert again.ngram_embedding.weight.shape == made.ngram_embedding.weight.shape
    if (base, divisor) == (20_000_000, 128):
        assert found["ngram_vocab_size_base"] == base
        assert found["make_ngram_vocab_size_divisible_by"] == divisor


@pytest.mark.parametrize("rows", [1, 7, 512, 513, 1024, 1043, 100_000, 320_001_536])
def test_parts_are_those_that_vllm_expects(rows: int) -> None:
    """vLLM computes the rows of each part from their number: all have as many but the last, and none is empty."""
    scope = Scope(module(ple_embed_dim=64))
    scope.dims = (rows, 8)
    parts, size = qwen4_exp.ngram_parts(scope), qwen4_exp.ngram_part_rows(scope)
    assert parts <= 512
    assert size == -(-rows // parts)
    each = [qwen4_exp.ngram_rows(scope, n) for n in range(parts)]
    assert set(each[:-1]) <= {size}
    assert sum(each) == rows
    assert 0 < each[-1] <= size


def test_parts_of_a_table_cost_no_more_than_their_own_rows() -> None:
    """The numbers of all rows of the published table would take 2.5 GB."""
    n_rows, size = 320_001_536, 625_003
    source = Source("table", "Q8_0", (n_rows, 128), 0, 0, n_rows * 136)
    header = Header(("a.gguf",), (n_rows * 136,), 3, "little", {"general.architecture": "qwen4exp"}, {"table": source})
    last = Entry("x", ("table",), (("part", 511, size),), (n_rows - 511 * size, 128), True, "", "bfloat16", "dense")
    tracemalloc.start()
    rows = rows_of(last, header)
    order = row_order(last, Plan("qwen4exp", "qwen4exp", header, {}, (last,)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows is not None
    assert (rows.first, rows.n_rows, rows.order) == (511 * size, n_rows - 511 * size, None)
    assert (len(order), order[0], order[-1]) == (n_rows - 511 * size, 511 * size, n_rows - 1)
    assert peak < 100_000_000


def test_primes() -> None:
    sieve = [True] * 70_000
    for n in range(2, 265):
        for multiple in range(n * n, len(sieve), n):
            sieve[multiple] = False
    expected = [n for n in range(2, len(sieve)) if sieve[n]]
    assert qwen4_exp._primes_from(0, len(expected), len(sieve)) == expected
    # The least numbers that bases 2; 2 and 3; 2, 3 and 5 take for primes (OEIS A014233); 2^31 - 1 is one.
    assert qwen4_exp._primes_from(2047, 1, 2047) == []
    assert qwen4_exp._primes_from(1_373_653, 1, 1_373_653) == []
    assert qwen4_exp._primes_from(25_326_001, 1, 25_326_001) == []
    assert qwen4_exp._primes_from(2**31 - 1, 1, 2**31 - 1) == [2**31 - 1]


def planned(table: tuple[int, ...] = (1152, 16), **keys: Any) -> Plan:
    """The plan of a good file, some keys of which are others; None removes one."""
    header = read_header([oracle_gguf("qwen4exp")])
    metadata = {**header.metadata, **{f"qwen4exp.{key.replace('__', '.')}": value for key, value in keys.items()}}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    source = header.sources["per_layer_token_embd.weight"]
    sources: dict[str, Source] = {**header.sources, source.name: dataclasses.replace(source, shape=table)}
    changed: Header = dataclasses.replace(header, metadata=metadata, sources=sources)
    return build(changed)


def test_a_good_file_has_no_problem() -> None:
    assert planned().all_problems == ()
    assert planned().float16  # vLLM's attention takes bfloat16 alone


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"ple__layers": [1, 2]}, "ple.layers is [1, 2]; one of 5 layers was expected"),
        ({"ple__layers": [5]}, "ple.layers is [5]; one of 5 layers was expected"),
        ({"ple__layers": [-2]}, "ple.layers is [-2]"),
        ({"ple__layers": [1.0]}, "item 0 of qwen4exp.ple.layers is 1.0; it must be a whole number"),
        ({"ple__layers": [3]}, "ple.layers is [3], a layer of full attention"),
        ({"ple__eos_token_id": None}, "the file lacks ple.eos_token_id"),
        ({"ple__ngram_size": 1}, "these give no number of heads"),
        ({"ple__heads_per_ngram": 10_000}, "these give no number of heads"),
        ({"ple__heads_per_ngram": None}, "ple.heads_per_ngram 0: these give no number of heads"),
        ({"ple__head_offsets": [0, 251, 508]}, "ple.head_offsets 3; 4, one for each head, were expected"),
        ({"ple__head_offsets": [0, 251, 508, 770]}, "ple.head_offsets is [0, 251, 508, 770]: the heads do not follow"),
        ({"ple__head_offsets": [0, 251, 508, 2**63]}, f"item 3 of qwen4exp.ple.head_offsets is {2**63}"),
        ({"ple__head_vocab_sizes": [251, 257, 263, 271]}, "the first 4 primes from 251 on were expected"),
        ({"ple__head_vocab_sizes": [2**31 - 1] * 4}, "no table has so many rows"),
        ({"ple__head_vocab_sizes": [0, 257, 263, 269]}, "no table has so many rows"),
        (
            {"ple__layer_multipliers": [1, 2]},
            "layer_multipliers is made of metadata and gives [2], not [ple.ngram_size]",
        ),
        ({"ple__layer_multipliers": None}, "the file's metadata lack 'ple.layer_multipliers'"),
        ({"ple__layer_multipliers": [1, 2, "3"]}, "item 2 of qwen4exp.ple.layer_multipliers is '3'"),
        ({"table": (1039, 16)}, "per_layer_token_embd.weight has 1039 rows; the heads have 1040 together"),
        ({"table": (1152, 8)}, "embedding_length_per_layer_input is not the 8 columns"),
        ({"attention__compress_ratios": [0, 0, 0, 4]}, "one value for each of 5 layers was expected"),
        (
            {"attention__compress_ratios": [0, 4, 0, 4, 0]},
            "one number for each layer of full attention, 0 for the others",
        ),
        (
            {"attention__compress_ratios": [0, 0, 0, 0, 0]},
            "one number for each layer of full attention, 0 for the others",
        ),
        ({"hyper_connection__count": 1}, "hyper_connection.count is 1; several streams were expected"),
        ({"ssm__time_step_rank": 5}, "5 value heads with 96 values share 2 key heads: not evenly"),
        ({"ssm__inner_size": None}, "the file lacks some of ssm.conv_kernel"),
        ({"expert_gating_func": 2}, "experts are not weighted by softmax alone"),
        ({"expert_used_count": 5}, "expert_used_count is 5; 1 to expert_count = 4 was expected"),
    ],
)
def test_files_that_say_something_else(keys: dict[str, Any], said: str) -> None:
    problems = planned(**keys).all_problems
    assert any(said in line for line in problems), problems
    assert all(len(line) < 1000 for line in problems)


def narrow(name: str) -> str:
    """Q8_0 for matrices whose rows are whole blocks."""
    return "" if any(part in name for part in ("ssm_", "hc_", "conv1d", "shexp")) else "Q8_0"


@pytest.mark.parametrize(("case", "repack"), [("qwen4exp_uneven", "none"), ("qwen4exp_uneven", "exact")])
def test_a_quantized_table_comes_in_parts(case: str, repack: str, tmp_path: Path) -> None:
    """Three rows of Q8_0 each, of which none is packed: vLLM looks them up. The hash stays what it was."""
    path = requantized(oracle_gguf(case), tmp_path / "q.gguf", narrow)
    report = gguf2st.convert(path, tmp_path / "out", repack=repack)
    assert (report.dtype, "int8_g32" in {t.scheme for t in report.types}) == ("bfloat16", repack == "exact")
    assert gguf2st.verify(tmp_path / "out", against=path).problems == ()
    tensors, original = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", original_of(case)))
    table = next(t for t in GGUFReader(path).tensors if t.name == "per_layer_token_embd.weight")
    at = "model.layers.2.ple.ple_embedding."
    parts = [tensors[f"{at}ngram_embedding.shard_{n}.weight"] for n in range(404)]
    assert [len(part) for part in parts] == [3] * 403 + [2]
    expected = torch.from_numpy(dequantize(table.data, table.tensor_type)).bfloat16()
    assert torch.equal(torch.cat(parts), expected)
    for name in ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"):
        assert torch.equal(tensors[at + name], original[at + name])


def test_a_table_without_its_layer() -> None:
    (line,) = planned(ple__layers=None).all_problems[-1:]
    assert "per_layer_token_embd.weight" in line


def test_no_search_without_an_end() -> None:
    scope = Scope(module(ple_embed_dim=64), **{"ple.head_vocab_sizes": [2**30] * 16})
    with pytest.raises(MapError, match="no table has so many rows"):
        qwen4_exp.ngrams(scope, 2)
