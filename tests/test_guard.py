"""The guard finds every weight that is not there, in modules of torch and transformers, and no other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as transformers_module
from torch import Tensor, nn

from gguf2st import guard
from gguf2st.errors import VerifyError

transformers: Any = transformers_module  # its constructors carry no types

TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def llama(device: str, **more: Any) -> nn.Module:
    with torch.device(device):
        model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, **more))
    return model.eval()


class Custom(nn.Module):
    """A module as model code writes them: an annotated weight, an optional one, buffers of both kinds."""

    scale: Tensor
    table: Tensor
    cache: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.ones(2))
        self.register_buffer("cache", None)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * self.table


def break_none(model: nn.Sequential) -> None:
    model[0].register_parameter("weight", None)


def break_plain_none(model: nn.Sequential) -> None:
    del model[0].weight
    model[0].__dict__["weight"] = None


def break_meta(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.empty(4, 4, device="meta"))


def break_meta_bias(model: nn.Sequential) -> None:
    model[0].bias = nn.Parameter(torch.empty(4, device="meta"))


def break_meta_buffer(model: nn.Sequential) -> None:
    model[1].register_buffer("running_mean", torch.empty(4, device="meta"))


def break_uninitialised(model: nn.Sequential) -> None:
    model[0].weight = nn.parameter.UninitializedParameter()


BREAKS = {
    "None": (break_none, "0.weight", "is None"),
    "None as a plain attribute": (break_plain_none, "0.weight", "is None"),
    "meta": (break_meta, "0.weight", "meta"),
    "meta bias": (break_meta_bias, "0.bias", "meta"),
    "meta buffer": (break_meta_buffer, "1.running_mean", "meta"),
    "uninitialised": (break_uninitialised, "0.weight", "uninitialised"),
}
broken = pytest.mark.parametrize(("break_it", "name", "why"), BREAKS.values(), ids=BREAKS.keys())


def whole() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()


@broken
def test_each_kind_of_hole_is_found(break_it: Callable[[nn.Sequential], None], name: str, why: str) -> None:
    model = whole()
    break_it(model)
    (found,) = guard.offenders(model)
    assert found.name == name
    assert why in found.why
    with pytest.raises(VerifyError, match=name) as caught:
        guard.assert_complete(model)
    assert caught.value.exit_code == 5
    assert guard.offenders(model, allow=[name]) == ()


@broken
def test_forward_checks_name_module_and_weight_before_any_kernel(
    break_it: Callable[[nn.Sequential], None], name: str, why: str
) -> None:
    model = whole()
    break_it(model)
    with guard.forward_checks(model), pytest.raises(RuntimeError, match=rf"^{name.split('.')[0]}: .*{name} .*{why}"):
        model(torch.zeros(2, 4))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "Linear without bias": lambda: nn.Linear(2, 2, bias=False),
    "Conv without bias": lambda: nn.Conv1d(2, 2, 1, bias=False),
    "norm without affine weights": lambda: nn.LayerNorm(4, elementwise_affine=False),
    "RMSNorm without affine weights": lambda: nn.RMSNorm(4, elementwise_affine=False),
    "BatchNorm without anything": lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
    "fused attention": lambda: nn.MultiheadAttention(4, 2),
    "attention of several widths": lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
    "LSTM": lambda: nn.LSTM(2, 2),
    "optional buffer": Custom,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    "tied": lambda: llama("cpu", tie_word_embeddings=True),
    "transformers": lambda: llama("cpu"),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())
def test_whole_modules_pass(make: Callable[[], nn.Module]) -> None:
    guard.assert_complete(make())


def test_an_annotated_buffer_must_not_be_none() -> None:
    model = Custom()
    model.register_buffer("table", None)
    assert [str(o) for o in guard.offenders(model)] == ["buffer table of Custom is None"]


def test_a_model_on_meta_lists_every_weight_and_not_the_first_five() -> None:
    model = llama("meta")
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    with pytest.raises(VerifyError) as caught:
        guard.assert_complete(model)
    assert len(weights) > 20
    assert len(caught.value.problems) == len(weights) - 1
    assert {o.name for o in guard.offenders(model)} == set(weights)


def test_tied_weights_are_one_offender() -> None:
    model = llama("meta", tie_word_embeddings=True)
    names = [o.name for o in guard.offenders(model)]
    assert len(names) == len(set(names))
    assert ("lm_head.weight" in names) + ("model.embed_tokens.weight" in names) == 1


def test_the_first_hole_on_the_way_is_the_one_named() -> None:
    model = llama("cpu")
    layer = model.get_submodule("model.layers.1.self_attn.k_proj")
    layer.weight = nn.Parameter(torch.empty(layer.weight.shape, device="meta"))
    with guard.forward_checks(model), pytest.raises(RuntimeError, match=r"model\.layers\.1\.self_attn\.k_proj\.weight"):
        model(torch.arange(4)[None])


def test_forward_checks_leave_a_whole_model_alone_and_go_away() -> None:
    model = llama("cpu")
    ids = torch.arange(4)[None]
    with torch.inference_mode():
        expected = model(ids).logits
        with guard.forward_checks(model):
            assert torch.equal(model(ids).logits, expected)
    assert not any(m._forward_pre_hooks for m in model.modules())
    checks = guard.forward_checks(model)
    assert any(m._forward_pre_hooks for m in model.modules())
    checks.remove()
    checks.remove()
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_lazy_modules_are_incomplete_until_their_first_input() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyBatchNorm1d())
    names = {o.name for o in guard.offenders(model)}
    assert names == {"0.weight", "0.bias", "2.weight", "2.bias", "2.running_mean", "2.running_var"}
    with guard.forward_checks(model):
        model(torch.zeros(2, 4))
    guard.assert_complete(model)


def test_the_guard_imports_torch_only_when_it_is_used() -> None:
    import subprocess
    import sys

    code = "import sys, gguf2st.guard; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
