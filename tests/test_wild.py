"""Published GGUF files of many converters and years: their metadata, and the tensors that they hold, become the
published config.json. `tests/wild_files.py` says what is recorded and where the rest comes from.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf2st.header import read_header
from gguf2st.header.keys import ONE_IS_NONE, ZERO_IS_NONE
from gguf2st.output.small_files import configurations
from gguf2st.plan.build import build
from gguf2st.plan.planning import make_plan
from gguf2st.tokenizer.evidence import resolve
from tests.oracle.tiny import oracle_gguf
from tests.wild_files import NAMES, Shapes, Wild, gguf_tensors, read_as_transformers, values_of, wild, write_header

KEPT = (
    *("ffn_gate_inp.weight", "ssm_conv1d.weight", "shortconv.conv.weight", "inp_gate.weight", ".proj.weight"),
    *("position_embd.weight", "token_types.weight"),
)
"""Matrices that are not quantized: by llama.cpp's quantizer, and the per-layer ones of Gemma 4 by Unsloth."""

INFILL = ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
"""Tokens that end an infill, not a text: llama.cpp stops at them, generation_config.json of their models does not."""

OF_NO_MEANING = (
    *("dtype", "torch_dtype", "transformers_version", "architectures", "_name_or_path", "initializer_range"),
    *("use_cache", "pretraining_tp", "resid_pdrop", "embd_pdrop", "bos_token_id", "eos_token_id", "pad_token_id"),
)
"""Keys of config.json that the model does not compute with; token ids are compared with the file's."""

ROPE_OF_NO_MEANING = {"type", "mrope_section", "mrope_interleaved", "apply_yarn_scaling"}
"""The old name of rope_type, and how the positions of images count: a text has one position a token on all axes."""
YARN_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0}
"""What transformers computes with where config.json does not say."""


def _plain(value: Any) -> Any:
    """Numbers as GGUF holds them, rope parameters with their defaults."""
    if isinstance(value, dict):
        inner = {key: _plain(x) for key, x in value.items() if key not in ROPE_OF_NO_MEANING}
        return {**YARN_DEFAULTS, **inner} if inner.get("rope_type") == "yarn" else inner
    if isinstance(value, list):
        return [_plain(x) for x in value]
    return float(np.float32(value)) if type(value) in (int, float) else value


def _differences(published: Any, ours: Any) -> dict[str, tuple[Any, Any]]:
    """Keys that transformers' class knows, or both have, and whose values are not the published ones."""
    theirs, mine = published.to_dict(), ours.to_dict()
    declared = type(published)().to_dict().keys()
    keys = (theirs.keys() & (declared | mine.keys())) | (mine.keys() & declared)
    pairs = {key: (_plain(theirs.get(key)), _plain(mine.get(key))) for key in sorted(keys - set(OF_NO_MEANING))}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _require_the_counts_of_the_log(source: Wild, shapes: Shapes) -> None:
    assert len(shapes) == sum(source.types.values())
    exact = sum(len(shape) == 1 or tensor.endswith((*KEPT, "_exps.bias")) for tensor, shape in shapes.items())
    assert exact == source.types["f32"] + (source.types["f16"] if "per_expert" in source.layout else 0)


def _require_the_tokens_of_the_file(source: Wild, config: dict[str, Any]) -> None:
    for role in ("bos", "eos", "pad"):
        key = f"tokenizer.ggml.{'padding' if role == 'pad' else role}_token_id"
        found = config.get(f"{role}_token_id")
        _, said = source.metadata.get(key, ("", None))
        assert said in found if isinstance(found, list) else found == said, role
    if source.ends:
        ends = {token for token in source.ends if source.tokens.get(token) not in INFILL}
        assert ends == set(np.atleast_1d(config["eos_token_id"]).tolist())


@pytest.mark.parametrize("name", NAMES)
def test_a_published_file(name: str, tmp_path: Path) -> None:
    """Its tensors are as many as the log counts, it is planned whole, and its config.json is the published one but for
    what the record explains.
    """
    source = wild(name)
    shapes = gguf_tensors(source)
    if source.types:
        _require_the_counts_of_the_log(source, shapes)
    plan = make_plan(write_header(tmp_path / f"{name}.gguf", source, shapes, values_of(source)))
    assert plan.all_problems == ()
    config = configurations(plan)["config.json"]
    found = _differences(read_as_transformers(source.config or {}), read_as_transformers(config))
    assert {key: found[key] for key in found if key not in source.differs} == {}
    assert [key for key in source.differs if key not in found] == []
    assert [text for text in source.said if not any(text in note for note in plan.notes)] == []
    _require_the_tokens_of_the_file(source, config)


def test_no_vocabulary_is_taken_for_another() -> None:
    """A file that does not say how words are split: its tokens show what the recorded file says, or nothing."""
    for name in NAMES:
        source = wild(name)
        _, said = source.metadata.get("tokenizer.ggml.pre", ("", None))
        if source.metadata["tokenizer.ggml.model"][1] != "gpt2" or said is None:
            continue
        tokens = [source.tokens.get(number, "") for number in range(max(source.tokens, default=0) + 1)]
        found, _ = resolve(
            {"general.architecture": source.arch, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens}
        )
        assert found.get("tokenizer.ggml.pre") in (said, None), name


@pytest.mark.oracle
@pytest.mark.parametrize("case", ["llama", "qwen3moe", "gemma2", "deepseek_v3", "granite", "mamba", "qwen35moe"])
def test_what_a_file_has_none_of_is_no_loss(case: str) -> None:
    """A key that no map reads is refused, unless it is llama.cpp's own value for its absence."""
    header = read_header([oracle_gguf(case)])
    for keys, value in ((ZERO_IS_NONE, 0), (ONE_IS_NONE, 1)):
        absent = {f"{header.arch}.{key}": value for key in keys} | header.metadata
        plan = build(dataclasses.replace(header, metadata=absent))
        assert plan.all_problems == ()
        assert plan.config == build(header).config
    key = f"{header.arch}.attn_logit_softcapping" if case != "gemma2" else "gemma2.expert_shared_count"
    plan = build(dataclasses.replace(header, metadata={**absent, key: 2}))
    assert any(key in problem for problem in plan.all_problems)
