"""transformers' own class, built on the meta device from config.json: has it exactly these tensors?"""

from collections.abc import Mapping

from gguf2st.fold import listing
from gguf2st.verification.checkpoint import STRANGERS, Checkpoint
from gguf2st.verification.classes import on_meta
from gguf2st.verification.formats import Rules
from gguf2st.verification.packed import logical_tensors


def compare_model(ckpt: Checkpoint) -> None:
    """Names, shapes and tied weights of transformers' class built on the meta device from config.json."""
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    try:
        config = transformers.AutoConfig.from_pretrained(ckpt.folder, **STRANGERS)
        model = on_meta(config, ckpt.tensors)
        # The names on disk: transformers 5 fuses some parameters while loading, experts among them.
        saved = revert_weight_conversion(model, model.state_dict())
    except Exception as err:  # whatever transformers raises is the finding
        ckpt.problems.append(f"transformers cannot build the model: {type(err).__name__}: {err}")
        return
    expected, tensors = {name: tuple(p.shape) for name, p in saved.items()}, logical_tensors(ckpt)
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    for name in tied - tensors.keys():
        expected.pop(name, None)
    found = {name: t.shape for name, t in tensors.items()}
    if lost := sorted(expected.keys() - found.keys()):
        ckpt.problems.append(f"the model has parameters that nothing fills: {listing(lost)}")
    if extra := sorted(found.keys() - expected.keys()):
        ckpt.problems.append(f"tensors that the model does not have: {listing(extra)}")
    wrong = [n for n in expected.keys() & found.keys() if expected[n] != found[n]]
    if wrong:
        n = wrong[0]
        ckpt.problems.append(
            f"shapes differ from the model's: {listing(wrong)} ({list(found[n])}, not {list(expected[n])})"
        )
    if ckpt.rules is not None:
        modules = {name: isinstance(m, torch.nn.Linear) for name, m in model.named_modules()}
        _compare_targets(ckpt, ckpt.rules, modules)


def _compare_targets(ckpt: Checkpoint, rules: Rules, modules: Mapping[str, bool]) -> None:
    """Config groups may target classes, and transformers packs linear layers only.

    `modules`: of transformers' model, and whether each is a linear layer.
    """
    packed = [name.removesuffix(".weight") for name in ckpt.packed]
    if other := [name for name in packed if not modules.get(name, True)]:
        ckpt.problems.append(f"packed, but no linear layers of the model: {listing(other)}")
    dense = [name for name, linear in modules.items() if linear and f"{name}.weight" in ckpt.tensors]
    if lost := [name for name in dense if (f := rules.exact_first(name)) and f.layout != "scaled"]:
        ckpt.problems.append(f"{listing(lost)} are targeted as linear layers, but lie there as they were")
