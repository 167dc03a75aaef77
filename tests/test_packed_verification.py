"""Quantized checkpoints: unpacked as compressed-tensors and transformers unpack them, and every defect that vLLM loads
without a word is refused by name."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as transformers_module
from safetensors.torch import load_file, save_file
from torch import Tensor

import gguf2st
from gguf2st.errors import VerifyError
from gguf2st.verification import Verification, checkpoint_dtype, running
from gguf2st.verification.running import check_running
from gguf2st.verification.structural import read_checkpoint
from tests.oracle import compressed
from tests.oracle.compressed import Change, Config, Tensors, changed, projections, remove, replace

transformers: Any = transformers_module  # its constructors carry no types

LAYER = "model.layers.1"
BASE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}


def shared_scale(folder: Path) -> Path:
    """NVFP4 as vLLM wants it: one global scale for all weights, here by writing it so; the values do not matter."""
    tensors = load_file(folder / "model.safetensors")
    scales = {name: torch.tensor([100.0]) for name in tensors if name.endswith("weight_global_scale")}
    save_file(tensors | scales, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """transformers' own checkpoints, random."""
    home = tmp_path_factory.mktemp("dense")
    configs = {
        "llama": transformers.LlamaConfig(**BASE),
        "qwen3moe": transformers.Qwen3MoeConfig(**BASE, **EXPERTS),
    }
    for name, config in configs.items():
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).half().save_pretrained(home / name)
        (home / name / "tokenizer.json").write_text("{}")
    return {name: home / name for name in configs}


@pytest.fixture(scope="module")
def good(dense: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("packed")
    return {
        name: shared_scale(compressed.compress(dense["llama"], home / name, projections(name)))
        for name in ("int4_g32", "int4_asym_g32", "nvfp4")
    } | {"experts": compressed.compress(dense["qwen3moe"], home / "experts", projections("int4_g32"))}


def assert_found(result: Verification, words: str) -> None:
    assert any(re.search(words, problem) for problem in result.problems), (words, result.problems)


# --- Good checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
@pytest.mark.parametrize("name", ["int4_g32", "int4_asym_g32", "int8_g32", "int5_channel", "mxfp4", "nvfp4"])
def test_good_checkpoints_pass(arch: str, name: str, dense: dict[str, Path], tmp_path: Path) -> None:
    folder = shared_scale(compressed.compress(dense[arch], tmp_path / "m", projections(name)))
    result = gguf2st.verify(folder, model=True)
    assert result.problems == ()
    limits = {"int4_asym_g32": 1, "mxfp4": 1, "nvfp4": 2 if arch == "qwen3moe" else 1}
    assert len(result.notes) == limits.get(name, 0), result.notes
    assert result.parameters == sum(t.numel() for t in load_file(dense[arch] / "model.safetensors").values())
    assert checkpoint_dtype(folder) == "float16"


@pytest.mark.usefixtures("without_tokenizer")
def test_formats_may_differ_between_modules_that_are_not_fused(dense: dict[str, Path], tmp_path: Path) -> None:
    schemes = {"o_proj": "int8_g32", "down_proj": "int5_channel", "gate_proj": "mxfp4", "up_proj": "mxfp4"}

    def choose(module: str) -> str:
        last = module.rpartition(".")[2]
        if last in ("q_proj", "k_proj", "v_proj"):
            return "int4_asym_g32" if ".1." in module else ""  # one layer is packed, the others are not
        return schemes.get(last, "")

    folder = compressed.compress(dense["llama"], tmp_path / "m", choose)
    assert gguf2st.verify(folder, model=True).problems == ()
    assert check_running(folder).problems == ()


@pytest.fixture
def without_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of random models have none that can read."""
    monkeypatch.setattr(running, "_ids", lambda folder, model: list(range(5, 30)))


@pytest.mark.parametrize("targets", [["Linear"], [r"re:.*\.(self_attn|mlp)\..*_proj$"], [r"re:model\.layers\..*_proj"]])
def test_patterns_and_classes_target_like_names(targets: list[str], good: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(good["int4_g32"], tmp_path, lambda t, c: only_group(c).update(targets=targets))
    assert gguf2st.verify(folder, model=True).problems == ()


def test_a_head_may_be_packed_by_its_name(good: dict[str, Path], tmp_path: Path) -> None:
    change = both(to_all_targets("Linear", ignore=[]), pack_one("lm_head", "int4_g32"))
    folder = changed(good["int4_g32"], tmp_path, both(change, lambda t, c: only_group(c)["targets"].append("lm_head")))
    assert gguf2st.verify(folder, model=True).problems == ()


def test_what_transformers_saves_again_passes(good: dict[str, Path], tmp_path: Path) -> None:
    """Another writer: transformers' own, of a model that it loaded packed."""
    model = transformers.AutoModelForCausalLM.from_pretrained(good["int4_g32"], dtype="auto")
    model.save_pretrained(tmp_path / "again")
    (tmp_path / "again/tokenizer.json").write_text("{}")
    assert gguf2st.verify(tmp_path / "again", model=True).problems == ()
    again = read_checkpoint(tmp_path / "again")
    assert len(again.packed) == 7 * BASE["num_hidden_layers"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scales_may_have_any_floating_dtype(dtype: torch.dtype, good: dict[str, Path], tmp_path: Path) -> None:
    """vLLM casts them to the model's; float16 scales of a bfloat16 model keep the file exact."""
    changes = replace(f"{LAYER}.mlp.down_proj.weight_scale", lambda t: t.to(dtype))
    assert gguf2st.verify(changed(good["int4_g32"], tmp_path, changes), model=True).problems == ()


def test_other_quantizations_are_said_not_to_be_looked_into(dense: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(dense["llama"], tmp_path, lambda t, c: c.update(quantization_config={"quant_method": "gptq"}))
    result = gguf2st.verify(folder)
    assert result.ok
    assert "quantized by gptq" in result.notes[0]


# --- Damage ------------------------------------------------------------------------------------------------------


def every(pattern: str) -> str:
    return rf"model\.layers\.\d+\.{pattern}"


def only_group(config: Config) -> dict[str, Any]:
    (group,) = config["quantization_config"]["config_groups"].values()
    return group  # type: ignore[no-any-return]


def unpack_one(module: str) -> Change:
    """A module in 16 bits as if nobody had packed it; quantization_config stays."""

    def change(tensors: Tensors, config: Config) -> None:
        parts = {n: tensors.pop(n) for n in list(tensors) if n.startswith(f"{module}.")}
        tensors[f"{module}.weight"] = torch.zeros(*parts[f"{module}.weight_shape"].tolist(), dtype=torch.float16)

    return change


def repack(module: str, scheme: str, *, declare: bool) -> Change:
    """A module in another format, with a config group of its own or without."""

    def change(tensors: Tensors, config: Config) -> None:
        shape = tensors[f"{module}.weight_shape"].tolist()
        for name in [n for n in tensors if n.startswith(f"{module}.")]:
            del tensors[name]
        tensors.update({f"{module}.{k}": v for k, v in compressed.pack(torch.randn(shape).half(), scheme).items()})
        if declare:
            only_group(config)["targets"].remove(module)
            more = compressed.quantization_config({scheme: [module]})["config_groups"]
            config["quantization_config"]["config_groups"].update(more)

    return change


def pack_one(module: str, scheme: str) -> Change:
    """A module packed whose name no config group has."""

    def change(tensors: Tensors, config: Config) -> None:
        parts = compressed.pack(tensors.pop(f"{module}.weight"), scheme)
        tensors.update({f"{module}.{part}": tensor for part, tensor in parts.items()})

    return change


def more_rows(module: str) -> Change:
    """A module that is half as high again, all its parts alike."""
    return both(
        *(
            replace(f"{module}.{part}", lambda t: torch.cat([t, t[: len(t) // 2]]))
            for part in ("weight_packed", "weight_scale")
        ),
        replace(f"{module}.weight_shape", lambda t: t * torch.tensor([3, 2]) // 2),
    )


def untarget(module: str) -> Change:
    return lambda tensors, config: only_group(config)["targets"].remove(module)


def quantization(**keys: Any) -> Change:
    return lambda tensors, config: config["quantization_config"].update(keys)


def both(*changes: Change) -> Change:
    return lambda tensors, config: [change(tensors, config) for change in changes]


def to_all_targets(target: str, **keys: Any) -> Change:
    def change(tensors: Tensors, config: Config) -> None:
        only_group(config)["targets"] = [target]
        config["quantization_config"].update(keys)

    return change


@dataclasses.dataclass(frozen=True)
class Damage:
    """A change to a packed checkpoint, and what is said of it; the comment before it is what vLLM 0.32 does."""

    change: Change
    words: str
    source: str = "int4_g32"


UP, DOWN, QUERY, VALUE = (
    f"{LAYER}.{x}" for x in ("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj", "self_attn.v_proj")
)
FIRST_QUERY = QUERY.replace(".1.", ".0.")
DAMAGES: Mapping[str, Damage] = {
    # silent; of an unquantized model it says so
    "norm missing": Damage(remove(rf"{LAYER}\.input_layernorm\.weight"), r"layers\.1\.input_layernorm"),
    "final norm missing": Damage(remove("model.norm.weight"), "norm"),
    # silent
    "embedding missing": Damage(remove("model.embed_tokens.weight"), "embed"),
    "head missing": Damage(remove("lm_head.weight"), "lm_head"),
    **{
        f"{m} missing": Damage(remove(rf"{LAYER}\.{m}\..*"), rf"layers\.1\.{m}")
        for m in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    },
    "qkv missing": Damage(remove(rf"{LAYER}\.self_attn\.[qkv]_proj\..*"), r"layers\.1\.self_attn"),
    "every k_proj missing": Damage(remove(every(r"self_attn\.k_proj\..*")), "k_proj"),
    "every o_proj missing": Damage(remove(every(r"self_attn\.o_proj\..*")), "o_proj"),
    "last layer missing": Damage(remove(r"model\.layers\.2\..*"), r"3 layers.*2|layers\.2"),
    # silent, every answer is NaN
    **{
        f"{part} missing": Damage(
            remove(rf"{LAYER}\.mlp\.up_proj\.{part}"), rf"layers\.1\.mlp\.up_proj: {part} missing"
        )
        for part in ("weight_packed", "weight_scale")
    },
    # vLLM does without, transformers does not
    "weight_shape missing": Damage(
        remove(rf"{LAYER}\.mlp\.up_proj\.weight_shape"), r"layers\.1\.mlp\.up_proj: weight_shape"
    ),
    "every weight_scale missing": Damage(remove(r".*weight_scale"), r"layers\.\{0\.\.2\}.*: weight_scale missing"),
    # silent, garbage
    "zero point missing": Damage(
        remove(rf"{LAYER}\.self_attn\.k_proj\.weight_zero_point"), r"k_proj: weight_zero_point missing", "int4_asym_g32"
    ),
    "global scale missing": Damage(
        remove(rf"{LAYER}\.self_attn\.k_proj\.weight_global_scale"), "k_proj: weight_global_scale missing", "nvfp4"
    ),
    # a warning in the log; the greatest is taken for all three
    "global scales differ": Damage(
        replace(f"{LAYER}.self_attn.k_proj.weight_global_scale", lambda t: t * 2),
        r"layers\.1\.self_attn: weight_global_scale of k_proj, q_proj, v_proj differs; vLLM takes one for all",
        "nvfp4",
    ),
    # ValueError: There is no module or parameter named ...
    "zero point of a symmetric format": Damage(
        lambda t, c: t.update({f"{UP}.weight_zero_point": torch.zeros(12, 2, dtype=torch.int32)}),
        "up_proj: weight_zero_point has no place in int4 sym g32",
    ),
    # silent truncation
    "more rows": Damage(more_rows(QUERY), r"layers\.1\.self_attn\.q_proj"),
    "more rows in every q_proj": Damage(
        both(*(more_rows(f"model.layers.{i}.self_attn.q_proj") for i in range(3))), r"self_attn\.q_proj"
    ),
    # RuntimeError: start (0) + length (16) exceeds dimension size (8)
    "groups of another size": Damage(
        replace(f"{DOWN}.weight_scale", lambda t: t[:, :2]),
        r"down_proj: weight_packed is \[64, 12\]|down_proj: weight_scale",
    ),
    "scales of fewer rows": Damage(
        replace(f"{DOWN}.weight_scale", lambda t: t[:32]), r"down_proj: weight_scale is \[32, 3\]"
    ),
    "packed columns cut": Damage(
        replace(f"{DOWN}.weight_packed", lambda t: t[:, :8]), r"down_proj: weight_packed is \[64, 8\]"
    ),
    "packed transposed": Damage(
        replace(f"{DOWN}.weight_packed", torch.t), r"down_proj: weight_packed is \[12, 64\]|down_proj"
    ),
    "zero points not packed": Damage(
        replace(f"{DOWN}.weight_zero_point", lambda t: t.repeat_interleave(8, 0)),
        "down_proj: weight_zero_point",
        "int4_asym_g32",
    ),
    "another weight_shape": Damage(
        replace(f"{DOWN}.weight_shape", lambda t: t + 1), r"down_proj: weight_shape says \[65, 97\]"
    ),
    # silent
    "integers of another dtype": Damage(
        replace(f"{DOWN}.weight_packed", lambda t: t.view(torch.float32)), "weight_packed is F32"
    ),
    "scale of integers": Damage(replace(f"{DOWN}.weight_scale", Tensor.int), "weight_scale is I32"),
    "fp4 scale of another dtype": Damage(
        replace(f"{DOWN}.weight_scale", Tensor.half), "weight_scale is F16, not F8_E4M3", "nvfp4"
    ),
    # silent: dropped
    "bias alone": Damage(
        lambda t, c: t.update({f"{UP}.bias": torch.ones(96).half()}), r"layers\.1\.mlp\.up_proj\.bias"
    ),
    "head beside a tied embedding": Damage(lambda t, c: c.update(tie_word_embeddings=True), "tie_word_embeddings"),
    # AttributeError: 'QKVParallelLinear' object has no attribute 'data'
    "one of three not packed": Damage(
        both(unpack_one(VALUE), untarget(VALUE)), r"layers\.1\.self_attn: .*q_proj int4 sym g32.*v_proj 16-bit"
    ),
    "one of three ignored": Damage(
        both(unpack_one(VALUE), quantization(ignore=["lm_head", VALUE])), r"layers\.1\.self_attn: .*v_proj 16-bit"
    ),
    # silent, garbage
    "one of three asymmetric": Damage(
        repack(VALUE, "int4_asym_g32", declare=True), r"layers\.1\.self_attn: .*v_proj int4 asym g32"
    ),
    "one of two asymmetric": Damage(
        repack(UP, "int4_asym_g32", declare=True), r"layers\.1\.mlp: .*up_proj int4 asym g32"
    ),
    "one of two has other groups": Damage(
        repack(UP, "int4_g16", declare=True), r"layers\.1\.mlp: .*up_proj int4 sym g16"
    ),
    "one of three in 8 bits": Damage(repack(VALUE, "int8_g32", declare=True), r"layers\.1\.self_attn: .*v_proj int8"),
    "another format undeclared": Damage(
        repack(DOWN, "int8_g32", declare=False), r"layers\.1\.mlp\.down_proj: weight_packed"
    ),
    "packed but not targeted": Damage(untarget(DOWN), r"layers\.1\.mlp\.down_proj are packed, but no config group"),
    "packed but ignored": Damage(quantization(ignore=["lm_head", DOWN]), r"layers\.1\.mlp\.down_proj are packed, but"),
    "targeted but not packed": Damage(unpack_one(DOWN), r"layers\.1\.mlp\.down_proj are targeted as int4 sym g32"),
    "packed and not packed": Damage(
        lambda t, c: t.update({f"{DOWN}.weight": torch.zeros(64, 96).half()}), r"down_proj have both"
    ),
    "target without tensors": Damage(
        lambda t, c: only_group(c)["targets"].append("model.layers.9.mlp.up_proj"),
        r"no tensors: model\.layers\.9\.mlp\.up_proj",
    ),
    # `re.match` with vLLM's name of the three together
    "pattern that also means the fused name": Damage(
        both(
            lambda t, c: only_group(c).update(targets=["Linear"]),
            *(unpack_one(f"model.layers.{i}.self_attn.v_proj") for i in range(3)),
            quantization(ignore=["lm_head", "re:.*v_proj$"]),
        ),
        "q_proj int4 sym g32.*v_proj 16-bit",
    ),
    "target pattern that also means the fused name": Damage(
        lambda t, c: (
            repack_everywhere(t, "v_proj", "int8_g32"),
            c["quantization_config"].update(
                config_groups={
                    **compressed.quantization_config({"int8_g32": ["re:.*v_proj$"]})["config_groups"],
                    **compressed.quantization_config({"int4_g32": ["Linear"]})["config_groups"],
                }
            ),
        ),
        "v_proj int8 sym g32",
    ),
    "ignored by a pattern that means the fused name": Damage(
        lambda t, c: (
            only_group(c).update(targets=["Linear"]),
            c["quantization_config"].update(ignore=["lm_head", r"re:.*\.qkv_proj$"]),
        ),
        r"matches qkv_proj, vLLM's name for q_proj, k_proj, v_proj, which are then 16-bit instead of int4",
    ),
    # transformers: its head is a linear layer like any other
    "head not ignored": Damage(to_all_targets("Linear", ignore=[]), "lm_head are targeted as int4 sym g32"),
    # vLLM: There is no module or parameter named 'lm_head.weight_packed'; to transformers it is a linear layer
    "head packed by its class": Damage(
        both(to_all_targets("Linear", ignore=[]), pack_one("lm_head", "int4_g32")),
        r'lm_head are packed, but only the class "Linear" targets them, which heads and embeddings are not in vLLM',
    ),
    "embedding packed by its class": Damage(
        both(to_all_targets("Linear"), pack_one("model.embed_tokens", "int4_g32")),
        r'model\.embed_tokens are packed, but only the class "Linear" targets them',
    ),
    # transformers: random weights
    "status missing": Damage(quantization(quantization_status=None), "quantization_status is None"),
    "status frozen": Damage(quantization(quantization_status="frozen"), "quantization_status is 'frozen'"),
    "no groups": Damage(quantization(config_groups={}), "no config_groups"),
    "groups are a list": Damage(quantization(config_groups=[1]), "no config_groups"),
    "group without weights": Damage(lambda t, c: only_group(c).pop("weights"), "says nothing about weights"),
    "targets are a word": Damage(lambda t, c: only_group(c).update(targets="Linear"), "not a list of names"),
    "no targets": Damage(lambda t, c: only_group(c).update(targets=[]), "has no targets"),
    "broken pattern": Damage(lambda t, c: only_group(c)["targets"].append("re:*("), "no regular expression"),
    "ignore is a number": Damage(quantization(ignore=5), "ignore is '5'"),
    "target twice": Damage(
        lambda t, c: c["quantization_config"]["config_groups"].update(b=only_group(c)), "these targets twice"
    ),
    "no format": Damage(lambda t, c: (only_group(c).pop("format"), c["quantization_config"].pop("format")), "a format"),
    "activation order": Damage(lambda t, c: only_group(c)["weights"].update(actorder="group"), "activation order"),
    "9 bits": Damage(lambda t, c: only_group(c)["weights"].update(num_bits=9), "cannot be int of 9 bits"),
    "bits are a word": Damage(lambda t, c: only_group(c)["weights"].update(num_bits="4"), "num_bits is '4'"),
    "groups of nothing": Damage(lambda t, c: only_group(c)["weights"].update(group_size=0), "group_size is 0"),
    "by tensor": Damage(
        lambda t, c: only_group(c)["weights"].update(strategy="tensor", group_size=None), "by tensor of None"
    ),
    "float for int": Damage(lambda t, c: only_group(c)["weights"].update(type="float"), "cannot be float of 4 bits"),
    "quantization_config is a list": Damage(lambda t, c: c.update(quantization_config=[]), "is no object"),
    "no quantization_config": Damage(lambda t, c: c.pop("quantization_config"), "has no quantization_config"),
    # vLLM looks at the first expert only
    "expert in another format": Damage(
        repack(f"{LAYER}.mlp.experts.2.up_proj", "int8_g32", declare=True),
        r"layers\.1\.mlp\.experts: all experts must have one format.*experts\.2\.up_proj",
        "experts",
    ),
    "expert not packed": Damage(
        both(unpack_one(f"{LAYER}.mlp.experts.1.down_proj"), untarget(f"{LAYER}.mlp.experts.1.down_proj")),
        r"all experts must have one format.*experts\.1\.down_proj",
        "experts",
    ),
    "scale of an expert missing": Damage(
        remove(rf"{LAYER}\.mlp\.experts\.1\.up_proj\.weight_scale"), r"experts\.1\.up_proj: weight_scale", "experts"
    ),
    # some of vLLM's classes take a router for a linear layer
    "router not ignored": Damage(to_all_targets("Linear"), r"mlp\.gate are targeted as int4 sym g32", "experts"),
}


def repack_everywhere(tensors: Tensors, last: str, scheme: str) -> None:
    for module in {n.rpartition(".")[0] for n in tensors if f".{last}." in n}:
        repack(module, scheme, declare=False)(tensors, {})


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_is_found_without_a_source(case: str, good: dict[str, Path], tmp_path: Path) -> None:
    damage = DAMAGES[case]
    result = gguf2st.verify(changed(good[damage.source], tmp_path, damage.change))
    assert_found(result, damage.words)
    with pytest.raises(VerifyError):
        result.require_ok()


def test_a_pattern_that_is_anchored_is_no_trap(dense: dict[str, Path], tmp_path: Path) -> None:
    """`.*v_proj$` in `ignore` also means `qkv_proj`; `.*\\.v_proj$` means one module, and only in layers without q."""
    folder = compressed.compress(dense["llama"], tmp_path / "m", projections("int4_g32"))
    for ignored, ok in (("re:.*\\.lm_head$", True), ("re:.*ate_up_proj$", False), ("re:.*\\.no_such_proj$", True)):
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"]["ignore"] = ["lm_head", ignored]
        (folder / "config.json").write_text(json.dumps(config))
        assert gguf2st.verify(folder).ok == ok, ignored


def test_order_of_targets_that_only_one_reader_follows(dense: dict[str, Path], tmp_path: Path) -> None:
    """A pattern before a full name: vLLM takes the pattern, compressed-tensors the name."""

    def choose(module: str) -> str:
        return "int8_g32" if module == DOWN else projections("int4_g32")(module)

    folder = compressed.compress(dense["llama"], tmp_path / "m", choose)
    config = json.loads((folder / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"]
    groups["int4_g32"]["targets"] = [r"re:.*_proj$"]
    for order, ok in ((("int8_g32", "int4_g32"), True), (("int4_g32", "int8_g32"), False)):
        config["quantization_config"]["config_groups"] = {name: groups[name] for name in order}
        (folder / "config.json").write_text(json.dumps(config))
        result = gguf2st.verify(folder)
        assert result.ok == ok
        if not ok:
            assert_found(result, r"down_proj are int4 sym g32 for vLLM and int8 sym g32 for transformers")


@pytest.mark.usefixtures("without_tokenizer")
def test_gpt_oss_parts(tmp_path: Path) -> None:
    config = transformers.GptOssConfig(
        **BASE | {"num_hidden_layers": 6}, num_local_experts=2, num_experts_per_tok=1, head_dim=16
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path / "dense")
    (tmp_path / "dense/tokenizer.json").write_text("{}")
    generator = torch.Generator().manual_seed(0)

    def pack_experts(tensors: Tensors, config: Config) -> None:
        for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
            experts, columns, rows = tensors.pop(name).shape
            shape = (experts, rows, columns // 32)
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
            tensors[f"{name}_scales"] = torch.randint(115, 120, shape, dtype=torch.uint8, generator=generator)
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}

    folder = changed(tmp_path / "dense", tmp_path, pack_experts)
    assert gguf2st.verify(folder, model=True).problems == ()
    assert check_running(folder).problems == ()
    name = "model.layers.1.mlp.experts.down_proj"
    damages: Mapping[str, tuple[Change, str]] = {
        "scales": (remove(re.escape(f"{name}_scales")), "down_proj_scales is missing"),
        "blocks": (remove(re.escape(f"{name}_blocks")), "down_proj_blocks is missing"),
        "both": (remove(re.escape(name) + ".*s"), "down_proj"),
        "all": (remove(".*_(blocks|scales)"), "there are no tensors named"),
        "groups": (replace(f"{name}_scales", lambda t: t[..., :2]), "they do not fit"),
        "dtype": (replace(f"{name}_blocks", Tensor.int), "blocks are I32"),
        "rows": (
            both(replace(f"{name}_blocks", lambda t: t[:, :32]), replace(f"{name}_scales", lambda t: t[:, :32])),
            r"layers\.1\.mlp\.experts\.down_proj",
        ),
    }
    for case, (change, words) in damages.items():
        assert_found(gguf2st.verify(changed(folder, tmp_path / case, change)), words)


def test_class_targets_are_decided_by_the_model_class(tmp_path: Path) -> None:
    """By its name alone a module may be anything; transformers' class says which ones are linear layers."""
    config = transformers.GPTNeoXConfig(**BASE)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).half().save_pretrained(tmp_path / "dense")
    (tmp_path / "dense/tokenizer.json").write_text("{}")
    names = ("query_key_value", "dense_h_to_4h", "dense_4h_to_h")
    for last, ok in ((names, False), ((*names, "dense"), True)):
        folder = tmp_path / str(ok)
        compressed.compress(
            tmp_path / "dense", folder, lambda m, last=last: "int4_g32" if m.rpartition(".")[2] in last else ""
        )
        stated = json.loads((folder / "config.json").read_text())
        only_group(stated)["targets"] = ["Linear"]
        stated["quantization_config"]["ignore"] = ["embed_out"]
        (folder / "config.json").write_text(json.dumps(stated))
        assert gguf2st.verify(folder).ok
        result = gguf2st.verify(folder, model=True)
        assert result.ok == ok
        if not ok:
            assert_found(result, r"attention\.dense are targeted as linear layers, but lie there as they were")


def test_only_linear_layers_can_be_packed_for_transformers(tmp_path: Path) -> None:
    """GPT-2's matrices are of a class of their own, with their axes exchanged."""
    config = transformers.GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).half().save_pretrained(tmp_path / "dense")
    (tmp_path / "dense/tokenizer.json").write_text("{}")
    folder = compressed.compress(tmp_path / "dense", tmp_path / "m", lambda m: "int4_g32" if "c_attn" in m else "")
    assert_found(
        gguf2st.verify(folder, model=True), r"no linear layers of the model: transformer\.h\.\{0\.\.1\}\.attn\.c_attn"
    )
