"""Header and map -> plan: complete models have no problems, and every kind of damage has one clear line.

The damage is done to headers that were read from files which gguf-py wrote; no weight is read but rope factors.
"""

import dataclasses
import functools
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf2st.errors import CoverageError, Gguf2stError, HeaderError, MapError
from gguf2st.header import Header, Source, read_header
from gguf2st.plan import Plan
from gguf2st.plan.build import build
from tests.make_gguf import ARCHS, tiny_gemma3, tiny_model

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "tied": {"tied": True},
    "untied": {"tied": False},
    "three layers": {"layers": 3, "qtype": "F16"},
    "head_dim apart": {"head_dim": 48},
    "one kv head": {"kv_heads": 1},
    "as many kv heads": {"kv_heads": 4},
}


@functools.cache
def _header(arch: str, variant: str = "untied", *more: tuple[str, Any]) -> Header:
    """The header of a tiny model; its file is gone afterwards."""
    options = {**VARIANTS[variant], **dict(more)}
    make: Callable[..., Path] = tiny_gemma3 if arch == "gemma3" else functools.partial(tiny_model, arch=arch)
    if "head_dim" in options and not ARCHS[arch].head_dim_keys:
        key_length = {f"{arch}.attention.key_length": options["head_dim"]}
        options["extra_metadata"] = key_length
    with tempfile.TemporaryDirectory() as folder:
        return read_header([make(Path(folder) / "tiny.gguf", **options)])


def _with(header: Header, **keys: Any) -> Header:
    """The header with metadata keys set, or taken away where the value is None; `__` stands for a dot."""
    changed = {f"{header.arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
    metadata = {key: value for key, value in (header.metadata | changed).items() if value is not None}
    return dataclasses.replace(header, metadata=metadata)


def _set(header: Header, full: str, value: Any) -> Header:
    metadata = {k: v for k, v in (header.metadata | {full: value}).items() if v is not None}
    return dataclasses.replace(header, metadata=metadata)


def _source(header: Header, name: str, **fields: Any) -> Header:
    """The header with one tensor changed, or added as F32."""
    source = header.sources.get(name) or Source(name, "F32", (1,), 0, 0, 4)
    return dataclasses.replace(header, sources=header.sources | {name: dataclasses.replace(source, **fields)})


def _without(header: Header, *names: str) -> Header:
    return dataclasses.replace(header, sources={k: v for k, v in header.sources.items() if k not in names})


def _one_problem(header: Header, *, read: Callable[[Source], list[float]] | None = None) -> str:
    """The only problem of a header."""
    (line,) = build(header, read=read).all_problems
    assert "\n" not in line
    assert len(line) < 2000
    return line


def _outcome(header: Header) -> Plan | Gguf2stError:
    """The plan, or the error of a header that fits no map."""
    try:
        return build(header)
    except Gguf2stError as err:
        return err


def _lines(outcome: Plan | Gguf2stError) -> tuple[str, ...]:
    return outcome.all_problems if isinstance(outcome, Plan) else (outcome.message, *outcome.problems)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("arch", ARCHS)
def test_a_complete_model_has_no_problems(arch: str, variant: str) -> None:
    if arch == "qwen2" and variant == "head_dim apart":
        assert "Qwen2 cannot say so" in " ".join(build(_header(arch, variant)).all_problems)
        return
    header = _header(arch, variant)
    plan = build(header)
    assert plan.all_problems == ()
    plan.require_complete()
    assert {s for e in plan.entries for s in e.sources} | plan.dropped.keys() == header.sources.keys()
    assert sum(e.n_elements for e in plan.entries) == sum(math.prod(s.shape) for s in header.sources.values())
    assert plan.config["tie_word_embeddings"] == ("output.weight" not in header.sources)
    assert json.loads(json.dumps(plan.config)) == plan.config


def _tensors(arch: str) -> Iterator[tuple[str, str]]:
    """(arch, tensor) for one tensor of each kind."""
    for name in _header(arch).sources:
        if not name.startswith("blk.") or name.startswith("blk.1."):
            yield arch, name


EACH_TENSOR = [pytest.param(*row, id="-".join(row)) for arch in ARCHS for row in _tensors(arch)]


@pytest.mark.parametrize(("arch", "name"), EACH_TENSOR)
def test_a_tensor_removed(arch: str, name: str) -> None:
    header = _without(_header(arch), name)
    if name == "output.weight":  # that is what a tied head looks like
        plan = build(header)
        assert plan.all_problems == ()
        assert plan.config["tie_word_embeddings"] is True
        return
    line = _one_problem(header)
    assert line.startswith("HF tensors that nothing fills: model.")
    assert f"(the file lacks {name})" in line


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kind_of_tensor_removed_is_folded_over_layers(arch: str) -> None:
    line = _one_problem(_without(_header(arch), "blk.0.attn_q.weight", "blk.1.attn_q.weight"))
    assert line == (
        "HF tensors that nothing fills: model.layers.{0..1}.self_attn.q_proj.weight"
        " (the file lacks blk.{0..1}.attn_q.weight)"
    )


def test_experts_removed_are_folded_over_layers_and_experts() -> None:
    line = _one_problem(_without(_header("qwen3moe"), "blk.0.ffn_up_exps.weight", "blk.1.ffn_up_exps.weight"))
    assert (
        "model.layers.{0..1}.mlp.experts.{0..3}.up_proj.weight (the file lacks blk.{0..1}.ffn_up_exps.weight)" in line
    )


@pytest.mark.parametrize(
    "name",
    ["blk.0.ffn_act.scales", "blk.1.attn_q.bias_2", "blk.7.attn_q.weight", "blk.00.attn_q.weight", "output.bias",
     "rope_factors_long.weight", "v.blk.0.attn_q.weight", "", "model.embed_tokens.weight", "blk.{i}.attn_q.weight"],
)  # fmt: skip
@pytest.mark.parametrize("arch", ARCHS)
def test_a_tensor_added(arch: str, name: str) -> None:
    line = _one_problem(_source(_header(arch), name))
    assert line == f"GGUF tensors without a place in the map {arch}: {name}"


ATTENTION_BIASES = {"attn_q.bias": 64, "attn_k.bias": 32, "attn_v.bias": 32, "attn_output.bias": 64}


def test_all_biases_of_llama() -> None:
    header = _header("llama")
    for name, size in ATTENTION_BIASES.items():
        for i in range(2):
            header = _source(header, f"blk.{i}.{name}", shape=(size,))
    plan = build(header)
    assert plan.all_problems == ()
    assert (plan.config["attention_bias"], plan.config["mlp_bias"]) == (True, False)
    for i in range(2):
        for name in ATTENTION_BIASES:
            assert ".bias" in _one_problem(_without(header, f"blk.{i}.{name}"))


@pytest.mark.parametrize(("arch", "name"), EACH_TENSOR)
def test_a_tensor_of_the_wrong_shape(arch: str, name: str) -> None:
    header = _header(arch)
    shape = header.sources[name].shape
    damaged = {shape[::-1], (shape[0] - 1, *shape[1:]), (*shape, 1), (), (math.prod(shape),), (*shape[:-1], 1)} - {
        shape
    }
    for wrong in damaged:
        lines = build(_source(header, name, shape=wrong)).all_problems
        # The embedding tells the size of the vocabulary, so that vocab_size and lm_head have their say as well.
        embedding = name == "token_embd.weight"
        assert any(name in line or (embedding and "output.weight" in line) for line in lines)
        assert len(lines) == 1 or (embedding and len(lines) == 2)


def test_wrong_shapes_are_one_line_with_the_numbers_they_come_from() -> None:
    line = _one_problem(_with(_header("qwen3"), feed_forward_length=96))
    assert line == (
        "shapes that contradict the metadata:"
        " blk.{0..1}.ffn_gate.weight, blk.{0..1}.ffn_up.weight is [128, 64], not [ffn, hidden] = [96, 64];"
        " blk.{0..1}.ffn_down.weight is [64, 128], not [hidden, ffn] = [64, 96]"
        " (qwen3.embedding_length = 64, qwen3.feed_forward_length = 96)"
    )


CONTRADICTIONS = [
    ("llama", "feed_forward_length", 256, 1),
    ("llama", "embedding_length", 128, 2),  # rope.dimension_count contradicts it too
    ("llama", "attention.head_count", 8, 2),
    ("llama", "attention.head_count", 5, 2),
    ("llama", "attention.head_count_kv", 4, 1),
    ("llama", "attention.head_count_kv", None, 1),
    ("llama", "attention.key_length", 32, 2),
    ("llama", "attention.value_length", 32, 1),
    ("llama", "rope.dimension_count", 8, 1),
    ("llama", "vocab_size", 303, 1),
    ("qwen2", "attention.head_count", 2, 1),
    ("qwen2", "vocab_size", 1, 1),
    ("qwen3", "attention.head_count", 8, 1),
    ("qwen3", "attention.head_count_kv", 1, 1),
    ("qwen3", "embedding_length", 65, 1),
    ("qwen3", "attention.key_length", 8, 2),
    ("qwen3moe", "expert_count", 3, 1),
    ("qwen3moe", "expert_count", 5, 1),
    ("qwen3moe", "expert_used_count", 5, 1),
    ("qwen3moe", "expert_used_count", 0, 1),
    ("qwen3moe", "expert_feed_forward_length", 64, 1),
    ("qwen3moe", "expert_gating_func", 2, 1),
    ("qwen3moe", "expert_weights_scale", 2.5, 1),
    ("gemma3", "attention.head_count", 2, 1),
    ("gemma3", "attention.key_length", None, 2),
    ("gemma3", "attention.sliding_window_pattern", [True], 1),
    ("gemma3", "rope.dimension_count", 16, 1),
]


@pytest.mark.parametrize(("arch", "key", "value", "count"), CONTRADICTIONS)
def test_metadata_that_contradict_the_tensors(arch: str, key: str, value: Any, count: int) -> None:
    lines = build(_set(_header(arch), f"{arch}.{key}", value)).all_problems
    assert len(lines) == count
    said = key if value is not None else "attention.head_count"
    assert any(said in line or f"{arch}.{said}" in line for line in lines) or key == "attention.key_length"


@pytest.mark.parametrize("experts", [3, 5, 9999])
def test_a_wrong_number_of_experts_is_one_line(experts: int) -> None:
    line = _one_problem(_with(_header("qwen3moe"), expert_count=experts))
    assert f"blk.{{0..1}}.ffn_gate_inp.weight is [4, 64], not [expert_count, hidden] = [{experts}, 64]" in line
    assert f"is [4, 32, 64], not one matrix for each of {experts} experts" in line
    assert f"qwen3moe.expert_count = {experts}" in line


@pytest.mark.parametrize("count", [0, -1, 2**31, 2**32 - 1, 2**64 - 1, 10_001, True, 2.0, 2.5, "2", [2], []])
@pytest.mark.parametrize("arch", ARCHS)
def test_an_absurd_number_of_layers(arch: str, count: Any) -> None:
    line = _one_problem(_with(_header(arch), block_count=count))
    assert line.startswith(f"{arch}.block_count is {count!r}; it must be a whole number from 1 to")


@pytest.mark.parametrize("arch", ARCHS)
def test_one_layer_too_few(arch: str) -> None:
    line = _one_problem(_with(_header(arch), block_count=1))
    assert line.startswith(f"GGUF tensors without a place in the map {arch}: blk.1.")


@pytest.mark.parametrize("arch", ARCHS)
def test_one_layer_too_many(arch: str) -> None:
    line = _one_problem(_with(_header(arch), block_count=3))
    assert line.startswith("HF tensors that nothing fills: model.layers.2.")
    assert "the file lacks blk.2." in line


@pytest.mark.parametrize(("layers", "experts"), [(10_000, 4), (2, 10_000), (10_000, 10_000), (2, 2**31)])
def test_absurd_counts_cost_little(layers: int, experts: int) -> None:
    plan = build(_with(_header("qwen3moe"), block_count=layers, expert_count=experts))
    assert plan.all_problems
    assert all(len(line) < 2000 for line in plan.all_problems)
    assert len(plan.missing) + len(plan.entries) < 300_000  # all combinations would take hours


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.foo", 1.0),
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scaling.yarn_beta_fast", 32.0),
        ("rope.freq_base_swa", 1e4),
        ("rope.dimension_sections", [1, 2]),
        ("attention.sliding_window", 4096),
        ("attention.scale", 0.125),
        ("logit_scale", 0.1),
        ("expert_shared_count", 1),
        ("something_new", "text"),
        ("", 1),
    ],
)
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "qwen3moe"])
def test_a_key_that_nobody_reads(arch: str, key: str, value: Any) -> None:
    line = _one_problem(_set(_header(arch), f"{arch}.{key}", value))
    assert line == f"metadata that the map {arch} does not use: {arch}.{key} = {value!r}"


@pytest.mark.parametrize("key", ["tensor_data_layout", "expert_count", "expert_used_count"])
def test_a_key_that_the_map_ignores(key: str) -> None:
    value = "Meta AI original pth" if key == "tensor_data_layout" else 0
    assert build(_set(_header("llama"), f"llama.{key}", value)).all_problems == ()


def test_keys_of_others_are_not_ours() -> None:
    header = _header("llama")
    for key in ("general.license", "quantize.imatrix.file", "tokenizer.ggml.foo", "llama4.x", "llamas.x"):
        header = _set(header, key, 1)
    assert build(header).all_problems == ()


@pytest.mark.parametrize(("arch", "name"), EACH_TENSOR)
def test_a_tensor_of_an_unknown_type(arch: str, name: str) -> None:
    line = _one_problem(_source(_header(arch), name, qtype="type 57", nbytes=None))
    assert line == f"no decoder for ggml type 57, used by {name}"


REQUIRED = {
    "llama": {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
              "attention.layer_norm_rms_epsilon"},
    "qwen3moe": {"block_count", "context_length", "embedding_length", "attention.head_count", "expert_count",
                 "expert_used_count", "attention.layer_norm_rms_epsilon"},
}  # fmt: skip
REQUIRED |= dict.fromkeys(["qwen2", "qwen3", "gemma3"], REQUIRED["llama"])
"""Keys without which llama.cpp does not load a model of the architecture (its `get_key` calls without `false`)."""


@pytest.mark.parametrize(("arch", "key"), [(arch, key) for arch in ARCHS for key in sorted(REQUIRED[arch])])
def test_a_required_key_is_missing(arch: str, key: str) -> None:
    assert _one_problem(_set(_header(arch), f"{arch}.{key}", None)) == f"the file's metadata lack {key!r}"


@pytest.mark.parametrize("value", [None, "", 3, ["llama"], True])
def test_no_architecture(value: Any) -> None:
    with pytest.raises(HeaderError, match=r"general\.architecture"):
        build(_set(_header("llama"), "general.architecture", value))


WRONG: Mapping[str, Any] = {
    "text": "4",
    "empty text": "",
    "list of numbers": [4, 5],
    "list of lists": [[4]],
    "list of texts": ["4"],
    "negative": -1,
    "negative float": -1.5,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "2**31": 2**31,
    "2**32 - 1": 2**32 - 1,
    "2**63": 2**63,
    "1e300": 1e300,
    "true": True,
    "zero": 0,
}
"""Values that no number of a map may have."""

KEYS_OF = {
    arch: [key.removeprefix(f"{arch}.") for key in _header(arch).metadata if key.startswith(f"{arch}.")]
    for arch in ARCHS
}
OPTIONAL = ["attention.key_length", "attention.value_length", "vocab_size", "rope.dimension_count",
            "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.original_context_length",
            "rope.scaling.finetuned", "expert_count"]  # fmt: skip
MORE = {
    "llama": OPTIONAL,
    "qwen2": OPTIONAL[:-1],
    "qwen3": OPTIONAL[:-1],
    "qwen3moe": [*OPTIONAL[:-1], "expert_gating_func", "expert_weights_scale"],
    "gemma3": [*OPTIONAL[:-1], "rope.freq_base_swa", "attention.sliding_window_pattern", "final_logit_softcapping"],
}
BASES = ("rope.freq_base", "rope.freq_base_swa")
HARMLESS = {
    "zero": {"expert_count", "expert_gating_func", "expert_weights_scale", "rope.scaling.factor", "rope.scale_linear",
             "attention.sliding_window", "attention.sliding_window_pattern", "final_logit_softcapping"},
    "text": {"rope.scaling.type"},
    "empty text": {"rope.scaling.type"},
    "true": {"rope.scaling.finetuned"},
    "1e300": {"rope.scaling.factor", "rope.scale_linear", "final_logit_softcapping"},
    "2**31": {"rope.scaling.factor", "rope.scale_linear", "final_logit_softcapping", *BASES},
    "2**32 - 1": {"rope.scaling.factor", "rope.scale_linear", "final_logit_softcapping", *BASES},
    "list of numbers": {"attention.sliding_window_pattern"},
    "2**63": {"rope.scaling.factor", "rope.scale_linear", "final_logit_softcapping"},
}  # fmt: skip
"""Where such a value says something after all (a zero that means "none"), or is a number like any other."""


@pytest.mark.parametrize(
    ("arch", "key"), [(arch, key) for arch in ARCHS for key in dict.fromkeys([*KEYS_OF[arch], *MORE[arch]])]
)
def test_a_value_of_the_wrong_type_or_size(arch: str, key: str) -> None:
    for kind, value in WRONG.items():
        outcome = _outcome(_set(_header(arch), f"{arch}.{key}", value))
        lines = _lines(outcome)
        if key not in HARMLESS.get(kind, ()):
            assert lines, kind
            assert isinstance(outcome, Plan | MapError)
            assert any(key in line for line in lines), (kind, lines)
            assert len(lines) == 1, (kind, lines)
        if isinstance(outcome, Plan):
            json.dumps(outcome.config)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_key_damaged_at_once_is_every_problem_at_once(arch: str) -> None:
    header = _header(arch)
    for key in KEYS_OF[arch]:
        header = _set(header, f"{arch}.{key}", "text")
    lines = _lines(_outcome(header))
    assert [key for key in KEYS_OF[arch] if not any(f"{arch}.{key} is 'text'" in line for line in lines)] == []


def test_independent_problems_are_all_listed() -> None:
    header = _with(_header("llama"), feed_forward_length="x", vocab_size=5, rope__scaling__foo=1, something=2)
    header = _source(_without(header, "blk.0.attn_k.weight"), "extra.weight")
    header = _source(header, "blk.1.attn_v.weight", qtype="type 99", nbytes=None)
    lines = build(header).all_problems
    for part in ("feed_forward_length is 'x'", "vocab_size is not", "llama.something = 2", "blk.0.attn_k.weight",
                 "extra.weight", "type 99"):  # fmt: skip
        assert sum(part in line for line in lines) == 1, part
    with pytest.raises(CoverageError) as caught:
        build(header).require_complete()
    assert (caught.value.message.endswith(f"(and {len(lines) - 1} more problems)"), caught.value.exit_code) == (True, 4)
    assert caught.value.problems == lines[1:]


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "Linear", "su", "llama3"])
@pytest.mark.parametrize("arch", ARCHS)
def test_an_unknown_rope_scaling(arch: str, kind: str) -> None:
    header = _with(_header(arch), rope__scaling__type=kind, rope__scaling__factor=8.0)
    assert _one_problem(header).startswith(f"rope.scaling.type is {kind!r}")


@pytest.mark.parametrize(
    "divisors",
    [
        [2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        [1.0, 1.5, 3.0, 2.0, 8.0, 8.0, 8.0, 8.0],
        [1.0, 1.1, 1.2, 5.0, 8.0, 8.0, 8.0, 8.0],
        [0.5] * 8,
        [0.0] * 8,
        [-1.0] * 8,
        [math.nan] * 8,
        [math.inf] * 8,
        [1.0] * 7 + [math.inf],
        [1.0] * 7 + [math.nan],
        [1.0, 1.0, 1.0, 1.0, 1e38, 1e38, 1e38, 3e38],
        [1.0, 1.0, 2.0, 8.0],
        [8.0] * 16,
    ],
)
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_rope_factors_that_follow_no_rule(arch: str, divisors: list[float]) -> None:
    n = len(divisors)
    header = _source(_header(arch), "rope_freqs.weight", shape=(n,), nbytes=4 * n)
    assert "rope_freqs.weight" in _one_problem(header, read=lambda source: divisors)


@pytest.mark.parametrize(
    "fields", [{"qtype": "F16"}, {"qtype": "type 57", "nbytes": None}, {"shape": (1 << 20,), "nbytes": 4 << 20}]
)
def test_rope_factors_of_the_wrong_kind_are_not_read(fields: dict[str, Any]) -> None:
    def read(source: Source) -> list[float]:
        raise AssertionError("only small float32 tensors are read")

    line = _one_problem(_source(_header("llama"), "rope_freqs.weight", **fields), read=read)
    assert "a small float32 tensor was expected" in line


def test_rope_factors_beside_another_scaling_are_too_much() -> None:
    header = _with(_header("llama"), rope__scaling__type="linear", rope__scaling__factor=2.0)
    assert "rope_freqs.weight" in _one_problem(_source(header, "rope_freqs.weight", shape=(8,), nbytes=32))


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_rope_factors_are_read_from_the_file(byteorder: str, tmp_path: Path) -> None:
    ones = {"rope_freqs.weight": np.ones(8, np.float32)}
    path = tiny_model(tmp_path / "ones.gguf", "llama", extra_tensors=ones, byteorder=byteorder)  # type: ignore[arg-type]
    plan = build(read_header([path]))
    assert plan.all_problems == ()
    assert plan.dropped == {"rope_freqs.weight": "became rope parameters of type llama3"}
    assert "rope_scaling" not in plan.config


def test_a_given_map_must_be_for_the_architecture(tmp_path: Path) -> None:
    header = _header("llama")
    path = tmp_path / "mine.toml"
    path.write_text('arch = "qwen2"\nlayers = "block_count"\ntensors = []\n[config]\n')
    with pytest.raises(MapError, match=r"'qwen2'.*'llama'"):
        build(header, arch_map=path)
    path.write_text('arch = "llama"\nlayers = "block_count"\ntensors = []\n[config]\n')
    plan = build(header, arch_map=path)
    assert plan.map == "mine"
    assert set(plan.unmapped) == set(header.sources)


MAP = """
arch = "llama"
layers = "block_count"
experts = "expert_count or 0"
[names]
hidden = "embedding_length"
[config]
[[tensors]]
{tensors}
"""


def _own(tmp_path: Path, tensors: str, header: Header) -> Plan:
    (tmp_path / "own.toml").write_text(MAP.format(tensors=tensors))
    metadata = {k: v for k, v in header.metadata.items() if not k.startswith("llama.")}
    metadata |= {f"llama.{k}": header.metadata[f"llama.{k}"] for k in ("block_count", "embedding_length")}
    return build(dataclasses.replace(header, metadata=metadata), arch_map=tmp_path / "own.toml")


def test_one_tensor_from_two_equations_is_told(tmp_path: Path) -> None:
    header = _header("llama")
    kept = dataclasses.replace(header, sources={k: header.sources[k] for k in ("output_norm.weight",)})
    twice = '"x.weight" = "output_norm.weight -> [hidden]"\n'
    plan = _own(tmp_path, f'{twice}[[tensors]]\nif = "True"\n{twice}', kept)
    assert plan.all_problems == ("x.weight is filled by two equations of the map own",)


def test_a_condition_that_fails_blames_nobody_else(tmp_path: Path) -> None:
    header = _header("llama")
    kept = dataclasses.replace(header, sources={k: v for k, v in header.sources.items() if "attn_norm" in k})
    tensors = 'if = "leading_dense_block_count > i"\n"l.{i}.x.weight" = "blk.{i}.attn_norm.weight -> [hidden]"\n'
    assert _own(tmp_path, tensors, kept).all_problems == ("the file's metadata lack 'leading_dense_block_count'",)


def test_a_condition_is_asked_in_every_layer(tmp_path: Path) -> None:
    header = _header("llama")
    kept = dataclasses.replace(header, sources={k: v for k, v in header.sources.items() if "attn_norm" in k})
    tensors = 'if = "i == 1"\n"l.{i}.x.weight" = "blk.{i}.attn_norm.weight | minus(i) -> [hidden]"\n'
    plan = _own(tmp_path, tensors, kept)
    assert [(e.name, e.equation()) for e in plan.entries] == [("l.1.x.weight", "blk.1.attn_norm.weight | minus(1)")]
    assert plan.unmapped == ("blk.0.attn_norm.weight",)
