"""Files of ollama's own converter: llama.cpp's files, spelled as ollama spells them, give the same checkpoint.

What ollama writes is stated here once more, by hand, in the direction of writing: the facts are those of its converter
(`convert/*.go`) and of what it changes in published files before llama.cpp reads them (`llama/compat`, ollama 0.30).
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

import gguf2st
from gguf2st.cli.inspect import command as inspect
from gguf2st.header import Header, read_header
from gguf2st.output.small_files import configurations
from gguf2st.plan import Plan
from gguf2st.plan.build import build
from gguf2st.plan.planning import make_plan
from gguf2st.plan.problems import problems
from tests.make_gguf import write_gguf
from tests.oracle.rewrite import Metadata, Tensors, rewritten
from tests.oracle.tiny import oracle_gguf

pytestmark = pytest.mark.oracle

VISION: Mapping[str, Any] = {"vision.block_count": 27, "vision.embedding_length": 1152, "vision.patch_size": 14}
"""What ollama writes of an encoder of images beside the language model."""
ENCODER = ("v.blk.0.attn_q.weight", "v.patch_embedding.weight", "mm.mm_input_projection.weight")


@dataclass(frozen=True)
class Written:
    """How ollama writes a model of llama.cpp's architecture.

    Attributes:
        arch: ollama's name of it; the same where None.
        keys: llama.cpp's key -> ollama's; None where ollama leaves it out.
        more: keys that only ollama writes.
        tensors: a part of llama.cpp's tensor name -> ollama's.
        encoder: whether an encoder of images is beside it.
        edit: what else is different, given the metadata without prefixes.
        notes: what the plan must say.
        config: what config.json has because the file does not tell.
    """

    arch: str | None = None
    keys: Mapping[str, str | None] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    encoder: bool = False
    edit: Callable[[Metadata, Tensors], None] | None = None
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def _sections(arch: str) -> Callable[[Metadata, Tensors], None]:
    def edit(metadata: Metadata, _tensors: Tensors) -> None:
        sections = metadata.pop(f"{arch}.rope.dimension_sections")
        metadata[f"{arch}.rope.mrope_section"] = [int(n) for n in sections[:3]]

    return edit


def _kv_heads(arch: str, layers: int, interval: int) -> Callable[[Metadata, Tensors], None]:
    """A number for each layer, 0 for those of linear attention."""

    def edit(metadata: Metadata, _tensors: Tensors) -> None:
        number = int(metadata.pop(f"{arch}.attention.head_count_kv"))
        counts = [0 if (i + 1) % interval else number for i in range(layers)]
        metadata[f"{arch}.attention.head_count_kv"] = np.array(counts, np.uint32)

    return edit


def _per_head(metadata: Metadata, _tensors: Tensors) -> None:
    """GLM 4.7 Flash: the widths of a head, not those of the latent attention."""
    arch = "glm4moelite.attention."
    head = int(metadata.pop(f"{arch}key_length_mla"))
    value = int(metadata.pop(f"{arch}value_length_mla"))
    metadata |= {f"{arch}key_length": np.uint32(head), f"{arch}value_length": np.uint32(value)}
    metadata[f"{arch}head_count_kv"] = metadata[f"{arch}head_count"]


def _one_token_more(metadata: Metadata, _tensors: Tensors) -> None:
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<image_soft_token>"]
    metadata["tokenizer.ggml.scores"] = [*map(float, metadata["tokenizer.ggml.scores"]), 0.0]
    metadata["tokenizer.ggml.token_type"] = np.array([*metadata["tokenizer.ggml.token_type"], 4], np.int32)


def _llama4(metadata: Metadata, _tensors: Tensors) -> None:
    metadata["llama4.intermediate_size_moe"] = metadata["llama4.feed_forward_length"]
    metadata["llama4.use_qk_norm"] = int(metadata["llama4.expert_count"]) == 16


def _kinds_of_layers(metadata: Metadata, _tensors: Tensors) -> None:
    kinds = {True: "sliding_attention", False: "full_attention"}
    windows = metadata.pop("olmo3.attention.sliding_window_pattern")
    metadata["olmo3.attention.layer_types"] = [kinds[bool(w)] for w in windows]


def _split_experts(_metadata: Metadata, tensors: Tensors) -> None:
    for name in [n for n in tensors if "ffn_gate_up_exps" in n]:
        both = tensors.pop(name)
        rows = both.shape[-2] // 2
        tensors[name.replace("gate_up", "gate")] = np.ascontiguousarray(both[:, :rows])
        tensors[name.replace("gate_up", "up")] = np.ascontiguousarray(both[:, rows:])


_QWEN35 = {
    "mrope_sections": [1, 1, 2],
    "rope.mrope_section": [1, 1, 2],
    "rope.mrope_interleaved": True,
    "ssm.v_head_reordered": True,
    "norm_top_k_prob": True,
    "image_token_id": np.uint32(7),
    "vision_start_token_id": np.uint32(8),
    "vision_end_token_id": np.uint32(9),
    "vision.deepstack_visual_indexes": np.array([5, 11], np.int32),
}
CASES: Mapping[str, Written] = {
    "gpt_oss": Written(
        arch="gptoss",
        keys={"expert_feed_forward_length": None, "rope.scaling.type": None},
        tensors={
            ".attn_output.": ".attn_out.",
            ".attn_sinks.weight": ".attn_sinks",
            ".post_attention_norm.": ".ffn_norm.",
        },
        notes=("a file of ollama's converter: gptoss",),
    ),
    "gemma3_local_theta": Written(
        keys={
            "rope.freq_base": "rope.global.freq_base",
            "rope.freq_base_swa": "rope.local.freq_base",
            "attention.layer_norm_rms_epsilon": None,
        },
        more={**VISION, "mm.tokens_per_image": np.uint32(256), "vision.num_channels": np.uint32(3)},
        encoder=True,
        edit=_one_token_more,
        notes=("attention.layer_norm_rms_epsilon = 1e-06 is assumed", "1 tokens of images have no row"),
        config={"rms_norm_eps": 1e-6},
    ),
    "mistral3": Written(
        more={**VISION, "image_token_index": np.uint32(10), "spatial_merge_size": np.uint32(2)}, encoder=True
    ),
    "ministral3": Written(
        keys={
            "rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast",
            "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
            "rope.scaling.yarn_log_multiplier": "rope.scaling.mscale_all_dim",
            "attention.temperature_scale": "rope.scaling_beta",
        },
        more={**VISION, "rope.scaling.mscale": 1.0},
        encoder=True,
    ),
    "qwen2vl": Written(arch="qwen25vl", more=VISION, encoder=True, edit=_sections("qwen25vl")),
    "qwen3vl": Written(keys={"rope.dimension_sections": None, "n_deepstack_layers": None}, more=VISION, encoder=True),
    "qwen3vlmoe": Written(
        keys={"rope.dimension_sections": None, "n_deepstack_layers": None}, more=VISION, encoder=True
    ),
    "llama4": Written(
        keys={"feed_forward_length": "intermediate_size", "expert_feed_forward_length": "feed_forward_length"},
        more=VISION,
        encoder=True,
        edit=_llama4,
    ),
    "qwen35": Written(more={**VISION, **_QWEN35}, tensors={".ssm_dt.bias": ".ssm_dt"}, encoder=True),
    "qwen35moe": Written(
        more={**VISION, **_QWEN35, "feed_forward_length": np.uint32(0)},
        tensors={".ssm_dt.bias": ".ssm_dt"},
        encoder=True,
    ),
    "qwen3next": Written(tensors={".ssm_dt.bias": ".ssm_dt"}),
    "gemma4_moe": Written(
        more={**VISION, "audio.block_count": np.uint32(12)},
        tensors={".ffn_down_exps.scale": ".ffn_gate_inp.per_expert_scale"},
        encoder=True,
        edit=_split_experts,
    ),
    "deepseek2-ocr": Written(
        arch="deepseekocr",
        keys={"expert_feed_forward_length": None, "expert_shared_count": None},
        more={**VISION, "sam.block_count": np.uint32(12)},
        encoder=True,
    ),
    "nemotron_h_moe": Written(
        arch="nemotron_h_omni", more={**VISION, "audio.block_count": np.uint32(24)}, encoder=True
    ),
    "olmo3": Written(arch="olmo3", edit=_kinds_of_layers),
    "qwen3moe": Written(more={"norm_top_k_prob": True}),
    "lfm2": Written(tensors={"token_embd_norm.": "output_norm."}),
    "glm4_moe_lite": Written(
        arch="glm4moelite", keys={"expert_group_count": None, "expert_group_used_count": None}, edit=_per_head
    ),
    "nemotron_h_latent": Written(
        keys={"moe_latent_size": None},
        tensors={".ffn_latent_down.": ".ffn_latent_in.", ".ffn_latent_up.": ".ffn_latent_out."},
    ),
}


def as_ollama(case: str, written: Written, target: Path) -> Path:
    """The GGUF of a case, as ollama would have written it."""
    reader: Any = gguf.GGUFReader(oracle_gguf(case))
    old = reader.fields["general.architecture"].contents()
    new = written.arch or old

    found: dict[str, Any] = {}

    def edit(metadata: Metadata, tensors: Tensors) -> None:
        for full in list(metadata):
            value = metadata.pop(full)
            key = full.removeprefix(f"{old}.")
            if full.startswith(f"{old}."):
                key = written.keys.get(key, key) if key in written.keys else key
                full = f"{new}.{key}" if key is not None else ""
            if full:
                metadata[full] = value
        for key, value in written.more.items():
            metadata.setdefault(f"{new}.{key}", value)
        for name in list(tensors):
            data = tensors.pop(name)
            for ours, theirs in written.tensors.items():
                name = name.replace(ours, theirs)
            tensors[name] = data
        if written.encoder:
            tensors |= dict.fromkeys(ENCODER, np.zeros((4, 4), np.float16))
        if written.edit:
            written.edit(metadata, tensors)
        found.update(metadata=dict(metadata), tensors=dict(tensors))

    rewritten(case, target, edit)
    return write_gguf(target, found["metadata"], found["tensors"], new)


def _bytes(header: Header) -> dict[str, bytes]:
    content = Path(header.files[0]).read_bytes()
    return {s.name: content[s.offset : s.offset + (s.nbytes or 0)] for s in header.sources.values()}


def _plans(case: str, written: Written, tmp_path: Path) -> tuple[Plan, Plan]:
    return build(read_header([oracle_gguf(case)])), build(read_header([as_ollama(case, written, tmp_path / "o.gguf")]))


@pytest.mark.parametrize("case", CASES)
def test_a_file_of_ollama_gives_the_same_checkpoint(case: str, tmp_path: Path) -> None:
    written = CASES[case]
    ours, theirs = _plans(case, written, tmp_path)
    assert theirs.all_problems == ()
    assert theirs.arch == ours.arch
    assert theirs.map == ours.map
    assert theirs.config == {**ours.config, **written.config}
    if not written.edit or "split" not in written.edit.__name__:
        assert theirs.entries == ours.entries
        old, new = _bytes(ours.header), _bytes(theirs.header)
        assert {name: new[name] for name in old} == old
    assert {e.name: e.shape for e in theirs.entries} == {e.name: e.shape for e in ours.entries}
    assert theirs.dropped.keys() - ours.dropped.keys() == (set(ENCODER) if written.encoder else set())
    for note in written.notes:
        assert any(note in said for said in theirs.notes), theirs.notes


def test_gemma_3_of_any_length(tmp_path: Path) -> None:
    """4B, 12B and 27B have a context of 131072 and a scaling that ollama's first files do not tell."""

    def edit(metadata: Metadata, _tensors: Tensors) -> None:
        metadata["gemma3.context_length"] = np.uint32(131072)

    path = as_ollama("gemma3", Written(more=VISION, encoder=True, edit=edit), tmp_path / "long.gguf")
    plan = build(read_header([path]))
    assert plan.config["rope_parameters"]["full_attention"] == {
        "rope_type": "linear",
        "rope_theta": 1e6,
        "factor": 8.0,
    }
    assert any("rope.scaling.factor = 8.0 is assumed" in note for note in plan.notes)


def test_heads_for_each_layer(tmp_path: Path) -> None:
    header = read_header([oracle_gguf("qwen35")])
    layers, interval = header.metadata["qwen35.block_count"], header.metadata["qwen35.full_attention_interval"]
    assert isinstance(layers, int)
    assert isinstance(interval, int)
    written = Written(more=_QWEN35, tensors={".ssm_dt.bias": ".ssm_dt"}, edit=_kv_heads("qwen35", layers, interval))
    ours, theirs = _plans("qwen35", written, tmp_path)
    assert theirs.all_problems == ()
    assert theirs.config == ours.config


def test_value_heads_in_another_order_are_refused(tmp_path: Path) -> None:
    """A file of ollama's that does not say that its value heads are in llama.cpp's order may have them in another."""
    more = {key: value for key, value in _QWEN35.items() if key != "ssm.v_head_reordered"}
    path = as_ollama("qwen35", Written(more=more, tensors={".ssm_dt.bias": ".ssm_dt"}), tmp_path / "o.gguf")
    assert any("ssm.v_head_reordered" in line for _, line in problems(path, tokenizer=False))


@pytest.mark.parametrize(
    ("case", "key", "value"),
    [
        ("qwen3moe", "norm_top_k_prob", False),
        ("ministral3", "rope.scaling.mscale", 0.5),
        ("llama4", "use_qk_norm", None),
        ("gpt_oss", "attention.novelty", np.uint32(3)),
    ],
)
def test_what_ollama_says_and_llama_cpp_cannot_is_refused(case: str, key: str, value: Any, tmp_path: Path) -> None:
    written = CASES[case]

    def edit(metadata: Metadata, tensors: Tensors) -> None:
        if written.edit:
            written.edit(metadata, tensors)
        full = f"{written.arch or read_header([oracle_gguf(case)]).arch}.{key}"
        metadata[full] = not metadata[full] if value is None else value

    path = as_ollama(case, dataclasses.replace(written, edit=edit), tmp_path / "o.gguf")
    assert any(key in line for _, line in problems(path, tokenizer=False))


def test_every_token_that_ends_a_text(tmp_path: Path) -> None:
    def edit(metadata: Metadata, _tensors: Tensors) -> None:
        metadata["tokenizer.ggml.eos_token_id"] = np.uint32(2)
        metadata["tokenizer.ggml.eos_token_ids"] = np.array([2, 5, 6], np.int32)

    plan = make_plan(as_ollama("gpt_oss", Written("gptoss", edit=edit), tmp_path / "o.gguf"))
    assert set(configurations(plan)["config.json"]["eos_token_id"]) >= {2, 5, 6}


@pytest.mark.parametrize(
    ("case", "meant"),
    [
        ("gpt_oss", "gpt-4o"),
        ("ministral3", "tekken"),
        ("mistral3", "tekken"),
        ("glm4_moe_lite", "glm4"),
        ("lfm2", "lfm2"),
    ],
)
def test_another_tokenizer_than_the_file_names_is_said(case: str, meant: str, tmp_path: Path) -> None:
    for said, word in (("default", "'default'"), (None, "left out"), (meant, "")):
        written = dataclasses.replace(CASES[case], edit=_named(said, CASES[case].edit))
        header = read_header([as_ollama(case, written, tmp_path / f"{said}.gguf")])
        assert header.metadata["tokenizer.ggml.pre"] == meant
        lines = [note for note in header.notes if note.startswith("tokenizer.ggml.pre")]
        reason = "the published models of this architecture all have it"
        expected = f"tokenizer.ggml.pre is {word} in the file, and read as {meant!r}: {reason}"
        assert lines == ([expected] if word else [])


def _named(pre: str | None, edit: Callable[[Metadata, Tensors], None] | None) -> Callable[[Metadata, Tensors], None]:
    def changed(metadata: Metadata, tensors: Tensors) -> None:
        if edit:
            edit(metadata, tensors)
        metadata.pop("tokenizer.ggml.pre", None)
        if pre:
            metadata["tokenizer.ggml.pre"] = pre

    return changed


def test_inspect_says_whose_spelling_it_shows(tmp_path: Path) -> None:
    path = as_ollama("gpt_oss", CASES["gpt_oss"], tmp_path / "o.gguf")
    line = "metadata, in llama.cpp's spelling: a file of ollama's converter: gptoss, which is gpt-oss to llama.cpp"
    assert line in CliRunner().invoke(inspect, [str(path)]).output.splitlines()
    notes = json.loads(CliRunner().invoke(inspect, [str(path), "--json"]).output)["notes"]
    assert "metadata, in llama.cpp's spelling: " + notes[0] == line
    plain = str(oracle_gguf("gpt_oss"))
    assert "metadata" in CliRunner().invoke(inspect, [plain]).output.splitlines()
    assert json.loads(CliRunner().invoke(inspect, [plain, "--json"]).output)["notes"] == []


def test_llama_cpps_own_files_are_left_alone() -> None:
    for case in ("gemma3", "qwen35moe", "mistral3", "ministral3", "lfm2", "gemma4_moe", "nemotron_h_latent"):
        header = read_header([oracle_gguf(case)])
        assert (header.beside, header.notes) == ({}, ())


@pytest.mark.parametrize("case", ["gpt_oss", "gemma3_local_theta"])
def test_it_is_converted_and_verified(case: str, tmp_path: Path) -> None:
    """The bytes come from the file as ollama wrote it: every value is compared with gguf-py's reading of it."""
    path = as_ollama(case, CASES[case], tmp_path / "o.gguf")
    report = gguf2st.convert(path, tmp_path / "out", dtype="float32")
    assert any("ollama's converter" in note for note in report.notes)
    gguf2st.verify(tmp_path / "out", against=path).require_ok()
