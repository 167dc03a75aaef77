"""transformers' own class, built on the meta device from config.json: has it exactly these tensors?"""

import importlib.util

from gguf2st.errors import VerifyError
from gguf2st.fold import listing
from gguf2st.verification.checkpoint import Checkpoint


def compare_model(ckpt: Checkpoint) -> None:
    """Names, shapes and tied weights of transformers' class built on the meta device from config.json."""
    if importlib.util.find_spec("transformers") is None:
        raise VerifyError("comparing with the model class needs transformers", hint="pip install 'gguf2st[verify]'")
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(ckpt.folder)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except Exception as err:  # whatever transformers raises is the finding
        ckpt.problems.append(f"transformers cannot build the model: {type(err).__name__}: {err}")
        return
    expected = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    for name in tied - ckpt.tensors.keys():
        expected.pop(name, None)
    found = {name: t.shape for name, t in ckpt.tensors.items()}
    found = _as_saved_experts(found, expected)
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


def _as_saved_experts(
    found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Stack per-expert tensors the way transformers 5 holds them: gate_up_proj (E, 2I, H) and down_proj (E, H, I).

    Checkpoints on the Hub keep experts apart, and transformers fuses them while loading.
    """
    out = dict(found)
    for name in [n for n in expected if n.endswith("mlp.experts.gate_up_proj")]:
        base = name.removesuffix("gate_up_proj")
        n_experts = expected[name][0]
        parts = {
            p: [out.pop(f"{base}{e}.{p}.weight", None) for e in range(n_experts)]
            for p in ("gate_proj", "up_proj", "down_proj")
        }
        if any(s is None or s != shapes[0] for shapes in parts.values() for s in shapes):
            continue
        gate, down = parts["gate_proj"][0], parts["down_proj"][0]
        if gate is not None and down is not None and parts["up_proj"][0] == gate:
            out[name] = (n_experts, 2 * gate[0], gate[1])
            out[f"{base}down_proj"] = (n_experts, *down)
    return out
