"""Load the checkpoint as a user would and let it run: what no header can show.

transformers loads it with torch's uninitialised memory filled with NaN, so that a weight nobody filled is seen. Every
parameter and buffer is checked, then a text is read: the logits must be finite and the loss better than guessing. With
the GGUF at hand its next-token logprobs are compared with llama.cpp's.

Packed weights are unpacked here: transformers 5.24 with compressed-tensors 0.20 cannot load zero points, nor experts in
NVFP4, and reads several formats in one checkpoint as one if it is told to dequantize.
"""

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf2st import guard
from gguf2st.fold import listing
from gguf2st.verification.checkpoint import STRANGERS, Checkpoint, Packed
from gguf2st.verification.classes import arguments_of, named_class, on_meta, speaks
from gguf2st.verification.structural import read_checkpoint
from gguf2st.verification.unpack import unpack

if TYPE_CHECKING:
    import torch

    from gguf2st.header import Header

TEXT = (
    "The capital of France is Paris, and the capital of Italy is Rome. Water boils at one hundred degrees Celsius and "
    "freezes at zero. In the year 1969 two people walked on the Moon for the first time. One, two, three, four, five, "
    "six, seven. def add(a, b): return a + b. Once upon a time there was a king who had three daughters; the youngest "
    "was so beautiful that even the sun, which has seen so much, was astonished whenever it shone in her face."
)
MAX_TOKENS = 128

WORSE_THAN_GUESSING = 1.2
"""A loss above this many times ln(vocabulary), the loss of a uniform guess, shows a model that is sure of nonsense."""

TOP = 20
"""Of each distribution only the most likely tokens are compared: the tail is noise on both sides."""

COMPARED_LENGTHS = (5, 12, 24, 48)
"""Prefixes of the text after which the next token's logprobs are compared."""

FINITE_ELEMENTS = 1 << 24
"""Values looked at together when weights are searched for NaN: bounds the extra memory to 16 MB."""

FLOAT_TYPES = frozenset({"F32", "F16", "BF16", "F64"})


@dataclass(frozen=True)
class Tolerance:
    """How far logprobs may lie from llama.cpp's on average, and why not nearer."""

    limit: float
    why: str


EXACT = Tolerance(
    5e-3, "both compute in float32; measured: up to 0.001, from GELU, which llama.cpp looks up in a table"
)
ROUNDED = Tolerance(0.15, "the checkpoint computes in 16 bits, llama.cpp in 32; measured: 0.005 to 0.042")
QUANTIZED = Tolerance(
    0.4,
    "llama.cpp rounds activations to 8 bits before it multiplies them with quantized weights, the checkpoint does not; "
    "measured: 0.08 to 0.13, and above 1 for wrong models. Only a float32 GGUF and checkpoint are compared exactly",
)


@dataclass(frozen=True)
class Running:
    """What running the model showed.

    Attributes:
        loss: per token of the text, in nats; None when it could not run.
        uniform_loss: of a uniform guess.
        difference: mean difference of logprobs from llama.cpp's; None when that was not compared.
        notes: the same for people, and what was left out.
        problems: one line each.
    """

    loss: float | None = None
    uniform_loss: float | None = None
    difference: float | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def check_running(folder: Path, source: "Header | None" = None) -> Running:
    """Load and run a checkpoint; with its GGUF's header, compare it with llama.cpp (needs xllamacpp)."""
    try:
        ckpt = read_checkpoint(folder)
        model, problems = _load_unpacked(ckpt) if ckpt.packed else _load(ckpt)
        ids = _ids(folder, model)
    except Exception as err:  # whatever transformers raises is the finding
        return Running(problems=(f"transformers cannot load it: {type(err).__name__}: {err}",))
    problems += _holes(model)
    if problems:
        return Running(problems=tuple(problems), notes=("it was not run, since weights are missing or damaged",))
    try:
        if not speaks(model):
            return _judge_outputs(model, ids)
        logprobs = _logprobs(model, ids)
    except Exception as err:  # likewise
        return Running(problems=(f"the model does not run: {type(err).__name__}: {err}",))
    result = _judge_loss(logprobs, ids)
    if source is None or result.problems:
        return result
    exact = next(model.parameters()).dtype.itemsize == 4
    return _judge_difference(result, logprobs, ids, source, exact=exact, lossy=_lossy(ckpt, source))


def _lossy(ckpt: Checkpoint, source: "Header") -> str:
    """Formats with fewer than 8 bits that hold the numbers of no type in the source, "" without any.

    Such weights are other weights: how far the answers move says nothing about the conversion.
    """
    from gguf2st.verification.losses import holds

    qtypes = {s.qtype for s in source.sources.values()}
    formats = {p.format for p in ckpt.packed.values() if p.format.bits < 8}
    return ", ".join(sorted(str(f) for f in formats if not any(holds(f, qtype) for qtype in qtypes)))


def _load(ckpt: Checkpoint) -> "tuple[torch.nn.Module, list[str]]":
    """The model, and what transformers reports about loading it."""
    import transformers

    config: Any = transformers.AutoConfig.from_pretrained(ckpt.folder, **STRANGERS)
    kind: Any = named_class(config)
    arguments = {**STRANGERS, **(arguments_of(kind, ckpt.tensors) if kind else {})}
    auto: Any = kind or transformers.AutoModelForCausalLM
    with _unfilled_memory_is_nan(), _quiet(transformers.utils.logging):
        model, info = auto.from_pretrained(
            ckpt.folder, dtype="auto", output_loading_info=True, use_safetensors=True, **arguments
        )
    return model.eval(), _loading_problems(info)


def _load_unpacked(ckpt: Checkpoint) -> "tuple[torch.nn.Module, list[str]]":
    """The same for a checkpoint with packed weights, as if they were not."""
    import torch
    import transformers
    from safetensors.torch import load_file

    config: Any = transformers.AutoConfig.from_pretrained(ckpt.folder, **STRANGERS)
    del config.quantization_config
    dtype = config.dtype or torch.get_default_dtype()
    tensors = {n: t for file in sorted({t.file for t in ckpt.tensors.values()}) for n, t in load_file(file).items()}
    for name, packed in ckpt.packed.items():
        tensors[name] = _unpacked(packed, dtype)
        for part in packed.parts.values():
            del tensors[part.name]
    kind = type(on_meta(config, ckpt.tensors))
    with _unfilled_memory_is_nan(), _quiet(transformers.utils.logging):
        model, info = kind.from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=dtype,
            output_loading_info=True,
            **arguments_of(kind, ckpt.tensors),
        )
    return model.eval(), _loading_problems(info)


def _unpacked(packed: Packed, dtype: "torch.dtype") -> "torch.Tensor":
    import torch

    out = torch.empty(packed.shape, dtype=dtype)
    rows = out.view(-1, packed.shape[-1])
    step = max(1, FINITE_ELEMENTS // packed.shape[-1])
    for start in range(0, len(rows), step):
        rows[start : start + step] = torch.from_numpy(unpack(packed, start, min(start + step, len(rows))))
    return out


def _loading_problems(info: dict[str, Any]) -> list[str]:
    """What transformers reports about loading, one line each."""
    kinds = {
        "missing_keys": "parameters that the checkpoint lacks, which transformers fills with random numbers",
        "unexpected_keys": "tensors that the model does not have",
        "mismatched_keys": "tensors of another shape than the model's",
    }
    problems = []
    for key, text in kinds.items():
        if names := sorted(n if isinstance(n, str) else n[0] for n in info.get(key) or ()):
            problems.append(f"{text}: {listing(names)}")
    return problems


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """No progress bar and no warnings of transformers: what it warns of is read from its report."""
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


@contextmanager
def _unfilled_memory_is_nan() -> Iterator[None]:
    """Let torch fill the memory of new tensors with NaN: what nobody fills afterwards stays NaN."""
    import torch

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _ids(folder: Path, model: Any) -> list[int]:
    """Tokens of the text, no more than the model takes."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **STRANGERS)
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or MAX_TOKENS
    ids: list[int] = tokenizer(TEXT)["input_ids"][: min(MAX_TOKENS, longest)]
    return ids


def _holes(model: "torch.nn.Module") -> list[str]:
    """Weights that are not there, or that hold NaN or Inf; buffers may hold Inf, as masks do."""
    import torch

    problems = [str(offender) for offender in guard.offenders(model)]
    bad: dict[str, list[str]] = {"NaN": [], "Inf": []}
    rows = [(n, p, True) for n, p in model.named_parameters()] + [(n, b, False) for n, b in model.named_buffers()]
    for name, tensor, is_parameter in rows:
        if tensor.is_meta or not tensor.is_floating_point():
            continue
        parts = torch.split(tensor.detach().reshape(-1), FINITE_ELEMENTS)
        if any(bool(torch.isnan(part).any()) for part in parts):
            bad["NaN"].append(name)
        elif is_parameter and any(bool(torch.isinf(part).any()) for part in parts):
            bad["Inf"].append(name)
    problems += [f"{kind} in {listing(names)}" for kind, names in bad.items() if names]
    return problems


def _judge_outputs(model: Any, ids: list[int]) -> Running:
    """Of a model that encodes or judges a text, and has no loss."""
    import torch

    text = torch.tensor([ids], device=next(model.parameters()).device)
    more = {"decoder_input_ids": text} if model.config.is_encoder_decoder else {}
    with torch.inference_mode(), guard.forward_checks(model):
        outputs = model(text, **more).to_tuple()
    if not all(bool(torch.isfinite(x).all()) for x in outputs if isinstance(x, torch.Tensor)):
        return Running(problems=("the model's outputs are not finite",))
    return Running(notes=(f"{type(model).__name__} reads a text of {len(ids)} tokens; it writes none to be judged by",))


def _logprobs(model: Any, ids: list[int]) -> "torch.Tensor":
    """float32 logprobs of the next token after each token. (n,) -> (n, vocabulary)"""
    import torch

    with torch.inference_mode(), guard.forward_checks(model):
        logits = model(torch.tensor([ids], device=next(model.parameters()).device)).logits[0].float()
    return torch.log_softmax(logits, -1)


def _judge_loss(logprobs: "torch.Tensor", ids: list[int]) -> Running:
    import torch

    uniform = math.log(logprobs.shape[-1])
    if not bool(torch.isfinite(logprobs).all()):
        return Running(problems=("the model's logits are not finite",), uniform_loss=uniform)
    loss = -logprobs[:-1].gather(1, torch.tensor(ids[1:], device=logprobs.device)[:, None]).mean().item()
    note = f"loss {loss:.2f} per token on a text of {len(ids)} tokens (a uniform guess: {uniform:.2f})"
    problems = (f"{note}: worse than guessing",) if loss > WORSE_THAN_GUESSING * uniform else ()
    return Running(loss, uniform, notes=(note,), problems=problems)


def _judge_difference(
    result: Running, logprobs: "torch.Tensor", ids: list[int], source: "Header", *, exact: bool, lossy: str
) -> Running:
    """The result with the comparison added."""

    def with_note(note: str, problems: tuple[str, ...] = (), difference: float | None = None) -> Running:
        return Running(result.loss, result.uniform_loss, difference, (*result.notes, note), problems)

    if importlib.util.find_spec("xllamacpp") is None:
        return with_note("not compared with llama.cpp: pip install xllamacpp")
    from gguf2st.verification import llamacpp

    lengths = [n for n in COMPARED_LENGTHS if n < len(ids)]
    try:
        theirs = llamacpp.logprobs(Path(source.files[0]), ids, lengths, TOP)
    except RuntimeError as err:
        return with_note(f"not compared with llama.cpp: {err}")
    differences = [
        abs(logprobs[length - 1, token].item() - value)
        for length, row in zip(lengths, theirs, strict=True)
        for token, value in row.items()
    ]
    mean = sum(differences) / len(differences)
    quantized = any(s.qtype not in FLOAT_TYPES for s in source.sources.values())
    tolerance = QUANTIZED if quantized else EXACT if exact else ROUNDED
    note = f"next-token logprobs differ from llama.cpp's by {mean:.4f} on average, {max(differences):.4f} at most"
    if lossy:
        return with_note(f"{note}; not judged, for the weights themselves have changed ({lossy})", (), mean)
    if not mean <= tolerance.limit:
        return with_note(note, (f"{note}; allowed are {tolerance.limit} on average ({tolerance.why})",), mean)
    return with_note(f"{note} (allowed on average: {tolerance.limit}; {tolerance.why})", (), mean)
