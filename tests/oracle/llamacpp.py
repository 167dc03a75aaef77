"""llama.cpp's own tokens and logits, by ctypes over the C API that the `xllamacpp` wheel exports.

    with LlamaCpp(path, vocab_only=True) as model:
        ids = model.tokenize("Hello", add_special=True)

A GGML_ASSERT ends the process, and so does a C++ exception that crosses the C API: `in_child` runs a call in a forked
child and turns its death into `ChildDiedError`.
"""

import ctypes as ct
import faulthandler
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

LOG_WARN, LOG_ERROR = 3, 4  # enum ggml_log_level
TYPE_F32 = 0  # enum ggml_type
_LOG_CALLBACK = ct.CFUNCTYPE(None, ct.c_int, ct.c_char_p, ct.c_void_p)


class _ModelParams(ct.Structure):
    """`struct llama_model_params` of llama.h. The tail absorbs fields that a newer llama.cpp appends."""

    _fields_ = (
        ("devices", ct.c_void_p),
        ("tensor_buft_overrides", ct.c_void_p),
        ("n_gpu_layers", ct.c_int32),
        ("split_mode", ct.c_int32),
        ("load_mode", ct.c_int32),
        ("lazy_mode", ct.c_int32),
        ("main_gpu", ct.c_int32),
        ("tensor_split", ct.c_void_p),
        ("progress_callback", ct.c_void_p),
        ("progress_callback_user_data", ct.c_void_p),
        ("kv_overrides", ct.c_void_p),
        ("vocab_only", ct.c_bool),
        ("check_tensors", ct.c_bool),
        ("use_extra_bufts", ct.c_bool),
        ("no_host", ct.c_bool),
        ("no_alloc", ct.c_bool),
        ("load_mtp", ct.c_bool),
        ("tail", ct.c_uint8 * 128),
    )


class _ContextParams(ct.Structure):
    """`struct llama_context_params` of llama.h, up to the fields that are set here; the rest is the tail."""

    _fields_ = (
        ("n_ctx", ct.c_uint32),
        ("n_batch", ct.c_uint32),
        ("n_ubatch", ct.c_uint32),
        ("n_seq_max", ct.c_uint32),
        ("n_rs_seq", ct.c_uint32),
        ("n_outputs_max", ct.c_uint32),
        ("n_outputs_max_per_seq", ct.c_uint32),
        ("n_threads", ct.c_int32),
        ("n_threads_batch", ct.c_int32),
        ("ctx_type", ct.c_int32),
        ("rope_scaling_type", ct.c_int32),
        ("pooling_type", ct.c_int32),
        ("attention_type", ct.c_int32),
        ("flash_attn_type", ct.c_int32),
        ("rope_and_yarn", ct.c_float * 6),
        ("yarn_orig_ctx", ct.c_uint32),
        ("defrag_thold", ct.c_float),
        ("cb_eval", ct.c_void_p),
        ("cb_eval_user_data", ct.c_void_p),
        ("type_k", ct.c_int32),
        ("type_v", ct.c_int32),
        ("tail", ct.c_uint8 * 256),
    )


class _Batch(ct.Structure):
    """`struct llama_batch` of llama.h."""

    _fields_ = (
        ("n_tokens", ct.c_int32),
        ("token", ct.POINTER(ct.c_int32)),
        ("embd", ct.c_void_p),
        ("pos", ct.POINTER(ct.c_int32)),
        ("n_seq_id", ct.POINTER(ct.c_int32)),
        ("seq_id", ct.POINTER(ct.POINTER(ct.c_int32))),
        ("logits", ct.POINTER(ct.c_int8)),
    )


_P, _I, _B = ct.c_void_p, ct.c_int32, ct.c_bool
_IDS, _TEXT = ct.POINTER(ct.c_int32), ct.c_char_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [_LOG_CALLBACK, _P]),
    "llama_model_default_params": (_ModelParams, []),
    "llama_model_load_from_file": (_P, [_TEXT, _ModelParams]),
    "llama_model_free": (None, [_P]),
    "llama_model_get_vocab": (_P, [_P]),
    "llama_vocab_n_tokens": (_I, [_P]),
    "llama_vocab_is_eog": (_B, [_P, _I]),
    "llama_tokenize": (_I, [_P, _TEXT, _I, _IDS, _I, _B, _B]),
    "llama_detokenize": (_I, [_P, _IDS, _I, _TEXT, _I, _B, _B]),
    "llama_token_to_piece": (_I, [_P, _I, _TEXT, _I, _I, _B]),
    "llama_context_default_params": (_ContextParams, []),
    "llama_init_from_model": (_P, [_P, _ContextParams]),
    "llama_free": (None, [_P]),
    "llama_batch_init": (_Batch, [_I, _I, _I]),
    "llama_batch_free": (None, [_Batch]),
    "llama_decode": (_I, [_P, _Batch]),
    "llama_get_logits_ith": (ct.POINTER(ct.c_float), [_P, _I]),
    "llama_model_n_embd": (_I, [_P]),
    "llama_set_embeddings": (None, [_P, _B]),
    "llama_get_embeddings_ith": (ct.POINTER(ct.c_float), [_P, _I]),
    "llama_get_embeddings_seq": (ct.POINTER(ct.c_float), [_P, _I]),
    "llama_model_n_cls_out": (ct.c_uint32, [_P]),
}
NO_POOLING, RANK = 0, 4
"""Of enum llama_pooling_type of llama.h: one row for each token, one for a whole text."""


class _Library:
    """The loaded extension module, and what llama.cpp warned about since `messages` was last cleared."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("xllamacpp")
        if spec is None or spec.origin is None:
            raise RuntimeError('xllamacpp is not installed: pip install "gguf2st[dev]"')
        self.c = ct.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        self.messages: list[str] = []
        self._callback = _LOG_CALLBACK(self._log)  # ctypes keeps no reference of its own
        self.c.llama_log_set(self._callback, None)
        self.c.llama_backend_init()

    def _log(self, level: int, text: bytes, _user_data: object) -> None:
        if level in (LOG_WARN, LOG_ERROR):
            self.messages.append(text.decode("utf-8", "replace"))


@cache
def _library() -> _Library:
    return _Library()


class LlamaCpp:
    """One GGUF, loaded by llama.cpp on the CPU.

    Args:
        path: the file; the first shard of a split model.
        vocab_only: no weights: everything but `logits` works.
        n_ctx: the longest sequence that `logits` takes, in tokens.
        n_threads: threads of llama.cpp.
        flash: attention by its fused kernel, of float16 masks and queries. Some sparse attention exists only there.
        ranks: one row of scores for each text, which is what `scores` wants and the others do not.

    Raises RuntimeError with llama.cpp's messages when it does not load.
    """

    def __init__(
        self,
        path: Path,
        *,
        vocab_only: bool = False,
        n_ctx: int = 512,
        n_threads: int = 2,
        flash: bool = False,
        ranks: bool = False,
    ) -> None:
        self._lib = _library()
        self._c = self._lib.c
        self._model = self._context = None
        params = self._c.llama_model_default_params()
        params.vocab_only = vocab_only
        params.use_extra_bufts = False  # repacked weights would change the order of additions
        self._lib.messages.clear()
        self._model = self._c.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}: {self._messages()}")
        self._vocab = self._c.llama_model_get_vocab(self._model)
        self.n_tokens: int = self._c.llama_vocab_n_tokens(self._vocab)
        if not vocab_only:
            self._context = self._open_context(n_ctx, n_threads, flash=flash, ranks=ranks)

    def _open_context(self, n_ctx: int, n_threads: int, *, flash: bool, ranks: bool) -> Any:
        params = self._c.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = TYPE_F32
        params.flash_attn_type = int(flash)  # off: the plain attention is the reference
        params.pooling_type = RANK if ranks else NO_POOLING
        context = self._c.llama_init_from_model(self._model, params)
        if not context:
            raise RuntimeError(f"llama.cpp gives no context: {self._messages()}")
        return context

    def _messages(self) -> str:
        return "".join(self._lib.messages).strip()[-600:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the context and the model; a second call does nothing."""
        if self._context:
            self._c.llama_free(self._context)
        if self._model:
            self._c.llama_model_free(self._model)
        self._model = self._context = None

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            text: passed on as UTF-8.
            add_special: put BOS and EOS around it as the model asks for.
            parse_special: control tokens written in the text become their ids.
        """
        raw = text.encode("utf-8") if isinstance(text, str) else text
        room = 4 * len(raw) + 16
        ids = (ct.c_int32 * room)()
        n = self._c.llama_tokenize(self._vocab, raw, len(raw), ids, room, add_special, parse_special)
        if n < 0:
            raise RuntimeError(f"llama_tokenize needs {-n} places, {room} were given")
        return list(ids[:n])

    def detokenize(self, ids: Sequence[int], *, remove_special: bool = False, unparse_special: bool = True) -> bytes:
        """Text of token ids, with llama.cpp's clean-up of spaces where its vocabulary asks for one."""
        array = (ct.c_int32 * len(ids))(*ids)
        room = 1024 * len(ids) + 64
        text = ct.create_string_buffer(room)
        n = self._c.llama_detokenize(self._vocab, array, len(ids), text, room, remove_special, unparse_special)
        if n < 0:
            raise RuntimeError(f"llama_detokenize needs {-n} bytes, {room} were given")
        return text.raw[:n]

    def piece(self, token_id: int, *, special: bool = True) -> bytes:
        """Bytes of one token; empty for a control token unless `special`."""
        text = ct.create_string_buffer(4096)
        n = self._c.llama_token_to_piece(self._vocab, token_id, text, len(text), 0, special)
        if n < 0:
            raise RuntimeError(f"token {token_id} has {-n} bytes")
        return text.raw[:n]

    def ends_generation(self, token_id: int) -> bool:
        """Whether llama.cpp stops at this token."""
        return bool(self._c.llama_vocab_is_eog(self._vocab, token_id))

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after every token of one sequence. (n,) -> (n, n_tokens)"""
        return self._rows(ids, "llama_get_logits_ith", self.n_tokens)

    def embeddings(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """What an encoder makes of each token of one sequence, before pooling. (n,) -> (n, hidden)"""
        if self._context is not None:
            self._c.llama_set_embeddings(self._context, True)
        return self._rows(ids, "llama_get_embeddings_ith", self._c.llama_model_n_embd(self._model))

    def scores(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """What a classifier or a reranker, opened with `ranks`, makes of one text. (n,) -> (1, outputs)"""
        if self._context is not None:
            self._c.llama_set_embeddings(self._context, True)
        return self._rows(ids, "llama_get_embeddings_seq", self._c.llama_model_n_cls_out(self._model), n_rows=1)

    def _rows(self, ids: Sequence[int], getter: str, width: int, n_rows: int | None = None) -> npt.NDArray[np.float32]:
        if self._context is None:
            raise RuntimeError("logits need the weights: open the file without vocab_only")
        batch = self._c.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token_id in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token_id, i, 1, 1
            batch.seq_id[i][0] = 0
        try:
            status = self._c.llama_decode(self._context, batch)
            if status != 0:
                raise RuntimeError(f"llama_decode returned {status}: {self._messages()}")
            rows = [getattr(self._c, getter)(self._context, i) for i in range(n_rows or len(ids))]
            return np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in rows])
        finally:
            self._c.llama_batch_free(batch)


class ChildDiedError(RuntimeError):
    """The forked child of `in_child` did not live to answer."""


def in_child(function: Callable[..., T], *arguments: object) -> T:
    """`function(*arguments)` in a forked child; its result must pickle.

    Raises ChildDiedError with the signal when the child is killed or aborts, and the child's own exception otherwise.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, function, arguments))
    child.start()
    sender.close()
    try:
        ok, value = receiver.recv()
    except EOFError:
        child.join()
        raise ChildDiedError(f"{function.__qualname__}: the child ended with code {child.exitcode}") from None
    child.join()
    if not ok:
        raise value
    result: T = value
    return result


def _answer(sender: Any, function: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    faulthandler.disable()  # pytest turns it on; a death here is an answer, not a crash to report
    os.environ["GGML_NO_BACKTRACE"] = "1"  # otherwise an assert starts gdb
    try:
        sender.send((True, function(*arguments)))
    except Exception as error:
        sender.send((False, error))
