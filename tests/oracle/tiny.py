"""Tiny random HF checkpoints, and what llama.cpp's own converter makes of them.

`original(case)` is the folder transformers wrote, `oracle_gguf(case)` the float32 GGUF. Both are cached under
.cache/oracle by the digest of all they depend on; `prepare` makes many at once for one start of the converter.
"""

import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers as transformers_module
from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file

from tests.oracle.cases import BASE, CASES, Case

transformers: Any = transformers_module  # its constructors carry no types

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "oracle"
SPECIAL_IDS: Mapping[str, Mapping[str, int | list[int]]] = {
    "bpe": {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
    "glm": {"bos_token_id": 0, "eos_token_id": [1, 4, 5], "pad_token_id": 2},
    "spm": {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
    "gemma4": {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
    "wpm": {"pad_token_id": 0},
    "unigram": {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
}
AT_ONCE = 90
"""Cases for one start of the converter, which takes as long as 20 of them: so few that several processes have some."""
FLOAT32 = (
    *("e_score_correction_bias", "expert_bias", "router_bias"),
    *("_hc.fn", "_hc.base", "_hc.scale", "hc_head.hc_fn", "hc_head.hc_base", "hc_head.hc_scale"),
)
"""Ends of the names of tensors that published checkpoints keep in float32 whatever their dtype."""


def original(case: str) -> Path:
    """The HF folder of `case`, as transformers saved it."""
    return _folder(case) / case


def oracle_gguf(case: str) -> Path:
    """The float32 GGUF that llama.cpp's converter wrote from `original(case)`."""
    return _folder(case) / f"{case}.gguf"


def prepare(cases: Iterable[str]) -> dict[str, str]:
    """Make every checkpoint and GGUF of `cases` that the cache lacks; safe to call from several processes.

    Returns: case -> traceback, for the cases that could not be made.
    """
    failures: dict[str, str] = {}
    left = list(cases)
    while left := [case for case in left if case not in failures and not _home(case).exists()]:
        with contextlib.ExitStack() as locks:
            if mine := [case for case in _ours(left, locks) if not _home(case).exists()]:
                failures |= _make(mine)
    return failures


def _ours(cases: Sequence[str], locks: contextlib.ExitStack) -> list[str]:
    """Some of the cases, locked: those that no other process is making, or the first once another is done with it."""
    (CACHE / "locks").mkdir(parents=True, exist_ok=True)
    ours: list[str] = []
    for case in cases:
        with contextlib.suppress(Timeout):
            locks.enter_context(FileLock(CACHE / "locks" / case, blocking=False))
            ours.append(case)
            if len(ours) == AT_ONCE:
                return ours
    if not ours:
        locks.enter_context(FileLock(CACHE / "locks" / cases[0]))
        ours.append(cases[0])
    return ours


def _make(cases: Sequence[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        jobs = []
        for case in cases:
            home = Path(scratch) / case
            write_checkpoint(CASES[case], home / case)
            jobs.append(
                {
                    "source": str(_published(CASES[case], home / case)),
                    "target": str(home / f"{case}.gguf"),
                    "flags": CASES[case].flags,
                    "hparams": CASES[case].hparams,
                }
            )
        failures = run_converter(jobs)
        for case in cases:
            if case not in failures:
                (Path(scratch) / case).rename(_home(case))
    return failures


def _published(case: Case, folder: Path) -> Path:
    """The folder that the converter reads: the one of transformers, or a copy with its tensors spelled as published."""
    if case.spelled is None:
        return folder
    copy = folder.with_name("published")
    shutil.copytree(folder, copy)
    tensors = case.spelled(load_file(folder / "model.safetensors"))
    save_file({name: t.contiguous() for name, t in tensors.items()}, copy / "model.safetensors", {"format": "pt"})
    return copy


def write_checkpoint(case: Case, folder: Path) -> None:
    """Save the random model of `case`, its configuration and its tokenizer.

    Norms and biases are random too: all ones and all zeros would hide a missing or swapped vector.
    """
    for file, content in _tokenizer_files(case.tokenizer).items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    for file, table in case.files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(json.dumps(table))
    if case.weights:
        _write_by_hand(case, folder)
        return
    options = {**BASE, **SPECIAL_IDS[case.tokenizer], **case.options}
    config = getattr(transformers, case.config)(**options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, case.auto).from_config(config, **case.arguments).float()
    generator = torch.Generator().manual_seed(zlib.crc32(folder.name.encode()))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise * 0.6 / parameter.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("layer_scalar"):
                buffer.add_(0.2 * torch.randn(buffer.shape, generator=generator))
    model.to(getattr(torch, case.dtype))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(FLOAT32):
            tensor.data = tensor.data.float()
    model.save_pretrained(folder)
    if case.remade:
        path = folder / "model.safetensors"
        save_file({name: t.contiguous() for name, t in case.remade(load_file(path)).items()}, path, {"format": "pt"})
    if case.published:
        more = {"dtype": case.dtype, "torch_dtype": case.dtype, **SPECIAL_IDS[case.tokenizer]}
        (folder / "config.json").write_text(json.dumps({**case.published, **more}))


def _write_by_hand(case: Case, folder: Path) -> None:
    """Random tensors under the names of the case, and its configuration as it is."""
    generator = torch.Generator().manual_seed(zlib.crc32(folder.name.encode()))
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in case.weights.items()}
    dtype = getattr(torch, case.dtype)
    stored = {name: t if name.endswith(FLOAT32) else t.to(dtype) for name, t in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**SPECIAL_IDS[case.tokenizer], **case.options}))


@functools.cache
def _home(case: str) -> Path:
    """Where the cache keeps `case`: its digest covers the table entry, the programs and the libraries that write it."""
    digest = hashlib.sha256(repr(sorted(CASES[case].written().items())).encode())
    digest.update(
        repr((sorted(BASE.items()), version("transformers"), version("torch"), version("sentencepiece"))).encode()
    )
    for program in ("tiny.py", "converter.py"):
        digest.update(Path(__file__).with_name(program).read_bytes())
    return CACHE / f"{case}-{digest.hexdigest()[:16]}"


def _folder(case: str) -> Path:
    if not _home(case).exists() and (failures := prepare([case])):
        raise RuntimeError(f"the converter failed on {case}\n{failures[case]}")
    return _home(case)


def run_converter(jobs: list[dict[str, Any]]) -> dict[str, str]:
    """Jobs of tests/oracle/converter.py, all in one process -> traceback of each case that failed."""
    # A process of its own: the converter needs the gguf package of its source tree, the tests the published one.
    command = [sys.executable, "-m", "tests.oracle.converter"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, input=json.dumps(jobs), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}\n{done.stderr}")
    failures: dict[str, str] = json.loads(done.stdout)
    return failures


def _corpus() -> list[str]:
    # The only long English text that comes with Python.
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))[:80000].split("\n")


@functools.cache
def _tokenizer_files(kind: str) -> Mapping[str, bytes]:
    byte_level = {"bpe": _write_bpe, "glm": _write_glm}
    others = {"spm": _write_spm, "gemma4": _write_gemma4, "wpm": _write_wpm, "unigram": _write_unigram}
    with tempfile.TemporaryDirectory() as folder:
        {**byte_level, **others}[kind](Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _write_bpe(folder: Path, special: Sequence[str] = ("<s>", "</s>", "<pad>", "<unk>")) -> None:
    """`special`: the tokens for begin, end, padding and unknown, then others."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE["vocab_size"],
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    names = dict(zip(("bos_token", "eos_token", "pad_token", "unk_token"), special, strict=False))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def _write_glm(folder: Path) -> None:
    # The converter looks these up by their spelling.
    more = ("<|user|>", "<|observation|>", "<|startoftext|>")
    _write_bpe(folder, ("[gMASK]", "<|endoftext|>", "<pad>", "<unk>", *more))


def _write_spm(folder: Path) -> None:
    import sentencepiece

    pieces: dict[str, Any] = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    pieces |= {"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"}

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_corpus()),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=BASE["vocab_size"],
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
        **pieces,
    )
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write_unigram(folder: Path) -> None:
    """As XLM-RoBERTa has it: <s>, <pad>, </s> and <unk> for SentencePiece's three own pieces, <mask> at the end."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_corpus()),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=BASE["vocab_size"] - 2,
        model_type="unigram",
        minloglevel=2,
    )
    kinds = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    names = {f"{kind}_token": token for kind, token in kinds.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer", **names}))


def _write_gemma4(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=BASE["vocab_size"],
        special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        max_token_length=16,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus()[:200], trainer)
    content = json.loads(tokenizer.to_str())
    # Bytes are no special tokens; the trainer has no other way to number them.
    content["added_tokens"] = [row for row in content["added_tokens"] if not row["content"].startswith("<0x")]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write_wpm(folder: Path) -> None:
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(_corpus(), vocab_size=BASE["vocab_size"], show_progress=False)
    tokenizer.save_model(str(folder))
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
