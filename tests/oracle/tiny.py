"""Tiny random HF checkpoints, and what llama.cpp's own converter makes of them.

`original(case)` is the folder transformers wrote, `oracle_gguf(case)` the float32 GGUF. Both are cached under
.cache/oracle by the digest of all they depend on; `prepare` makes many at once for one start of the converter.
"""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers as transformers_module
from filelock import FileLock

from tests.oracle.cases import BASE, CASES, Case

transformers: Any = transformers_module  # its constructors carry no types

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "oracle"
SPECIAL_IDS: Mapping[str, Mapping[str, int]] = {
    "bpe": {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
    "spm": {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
    "wpm": {"pad_token_id": 0},
}


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
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / "lock"):
        missing = [case for case in cases if not _home(case).exists()]
        if not missing:
            return {}
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            jobs = []
            for case in missing:
                home = Path(scratch) / case
                write_checkpoint(CASES[case], home / case)
                jobs.append(
                    {
                        "source": str(home / case),
                        "target": str(home / f"{case}.gguf"),
                        "flags": CASES[case].flags,
                        "hparams": CASES[case].hparams,
                    }
                )
            failures = _run_converter(jobs)
            for case in missing:
                if case not in failures:
                    (Path(scratch) / case).rename(_home(case))
    return failures


def write_checkpoint(case: Case, folder: Path) -> None:
    """Save the random model of `case`, its configuration and its tokenizer.

    Norms and biases are random too: all ones and all zeros would hide a missing or swapped vector.
    """
    options = {**BASE, **SPECIAL_IDS[case.tokenizer], **case.options}
    config = getattr(transformers, case.config)(**options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, case.auto).from_config(config).float()
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
    model.to(getattr(torch, case.dtype)).save_pretrained(folder)
    for file, content in _tokenizer_files(case.tokenizer).items():
        (folder / file).write_bytes(content)


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


def _run_converter(jobs: list[dict[str, Any]]) -> dict[str, str]:
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
    folder = Path(tempfile.mkdtemp())
    {"bpe": _write_bpe, "spm": _write_spm, "wpm": _write_wpm}[kind](folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    return files


def _write_bpe(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE["vocab_size"],
        special_tokens=["<s>", "</s>", "<pad>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


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


def _write_wpm(folder: Path) -> None:
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(_corpus(), vocab_size=BASE["vocab_size"], show_progress=False)
    tokenizer.save_model(str(folder))
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
