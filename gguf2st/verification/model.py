"""transformers' own class, built on the meta device from config.json: has it exactly these tensors?"""

import importlib.util

from gguf2st.errors import VerifyError
from gguf2st.fold import listing
from gguf2st.verification.checkpoint import Checkpoint


def compare_model(ckpt: Checkpoint) -> None:
    """Names, shapes and tied weights of transformers' class built on the meta device from config.json."""
    if importlib.util.find_spec("transformers") is None:
        raise VerifyError(
            "comparing with the model class needs transformers", hint="pip install 'transformers>=5.18,<6'"
        )
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    try:
        config = transformers.AutoConfig.from_pretrained(ckpt.folder)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        # The names on disk: transformers 5 fuses some parameters while loading, experts among them.
        saved = revert_weight_conversion(model, model.state_dict())
    except Exception as err:  # whatever transformers raises is the finding
        ckpt.problems.append(f"transformers cannot build the model: {type(err).__name__}: {err}")
        return
    expected = {name: tuple(p.shape) for name, p in saved.items()}
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    for name in tied - ckpt.tensors.keys():
        expected.pop(name, None)
    found = {name: t.shape for name, t in ckpt.tensors.items()}
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
