"""Mutations of a checkpoint folder: shards, index, configuration, tokenizer."""

import json
import struct
from random import Random
from typing import Any

from tests.fuzz import hostile
from tests.fuzz.harness import Files
from tests.fuzz.texts import any_json, broken_json

INDEX = "model.safetensors.index.json"
STRAY = (
    *("model.safetensors", "model-00003-of-00002.safetensors", "consolidated.safetensors", "x.safetensors", "x.bin"),
    *(
        "model.safetensors.part",
        "pytorch_model.bin",
        "notes.md",
        "a\x1b[31mb.safetensors",
        "-rf",
        "sub/model.safetensors",
    ),
    *("tokenizer.model", "chat_template.jinja", "x.json", "é\n.gguf"),
)


def mutated_folder(files: Files, rng: Random) -> Files:
    """The files of a checkpoint, one or a few of them changed."""
    changed = dict(files)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _mutate(changed, rng)
    return changed


def _mutate(files: dict[str, bytes], rng: Random) -> None:
    if not files:
        return
    name = rng.choice(sorted(files))
    pick = rng.random()
    if pick < 0.06:
        del files[name]
    elif pick < 0.12:
        files[rng.choice(STRAY)] = rng.choice((b"", b"{}", hostile.text(rng), files[name]))
    elif pick < 0.17:
        other = rng.choice(sorted(files))
        files[name], files[other] = files[other], files[name]
    elif pick < 0.25:
        files[name] = _broken_bytes(files[name], rng)
    elif name.endswith(".json"):
        files[name] = _changed_json(files[name], rng)
    elif name.endswith(".safetensors"):
        files[name] = changed_shard(files[name], rng)


def _broken_bytes(content: bytes, rng: Random) -> bytes:
    if rng.random() < 0.4 or not content:
        return content[: rng.randrange(len(content) + 1)]
    changed = bytearray(content)
    end = rng.choice((8, 16, min(len(changed), 400), len(changed)))
    for _ in range(rng.choice((1, 1, 3))):
        changed[rng.randrange(min(end, len(changed)))] = rng.choice((0, 1, 0x7B, 0x7F, 0xFF, rng.getrandbits(8)))
    return bytes(changed)


def _changed_json(content: bytes, rng: Random) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if isinstance(value, dict) and rng.random() < 0.3:
        return json.dumps({**value, rng.choice(CONFIG_KEYS): any_json(rng)}).encode("utf-8", "surrogatepass")
    return broken_json(value, rng)


CONFIG_KEYS = (
    *("num_hidden_layers", "architectures", "tie_word_embeddings", "vocab_size", "quantization_config", "layer_types"),
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "dtype", "torch_dtype", "text_config"),
    *("num_experts", "num_nextn_predict_layers", "attention_bias", "mlp_bias", "is_encoder_decoder", "eos_token_id"),
    *("intermediate_size", "num_local_experts", "prefix_dense_intermediate_size", "sliding_window", "model_type"),
    *("weight_map", "metadata", "model", "added_tokens", "chat_template", "bos_token", "auto_map"),
)


def changed_shard(content: bytes, rng: Random) -> bytes:
    """A shard whose header lies: about its length, its offsets, its types, its shapes."""
    try:
        (nbytes,) = struct.unpack_from("<Q", content)
        table: Any = json.loads(content[8 : 8 + nbytes])
    except (struct.error, ValueError):
        return content
    data = content[8 + nbytes :]
    if not isinstance(table, dict):
        return content
    names = [name for name in table if name != "__metadata__"]
    pick = rng.random()
    if pick < 0.1:
        return struct.pack("<Q", hostile.integer(rng) & (2**64 - 1)) + content[8:]
    if pick < 0.4:
        head = broken_json(table, rng)
    elif names:
        name = rng.choice(names)
        row = table[name]
        change = rng.randrange(7)
        if change == 0:
            del table[name]
        elif change == 1:
            table[_name(rng)] = table.pop(name)
        elif change == 2 and isinstance(row, dict):
            row["dtype"] = rng.choice(
                ("F32", "BF16", "F16", "F64", "I8", "U8", "BOOL", "F8_E4M3", "C64", "F4", "x", "", 1)
            )
        elif change == 3 and isinstance(row, dict):
            row["shape"] = [hostile.integer(rng) for _ in range(rng.choice((0, 1, 2, 5)))]
        elif change == 4 and isinstance(row, dict):
            row["data_offsets"] = [hostile.integer(rng) for _ in range(rng.choice((2, 2, 2, 1, 3)))]
        elif change == 5:
            table["__metadata__"] = any_json(rng)
        elif isinstance(row, dict) and isinstance(row.get("shape"), list):
            row["shape"] = row["shape"][::-1]
        head = json.dumps(table).encode("utf-8", "surrogatepass")
    else:
        head = b"{}"
    if rng.random() < 0.5:
        head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + data


def _name(rng: Random) -> str:
    if rng.random() < 0.5:
        pieces = (
            "model",
            "layers",
            "0",
            "1",
            "99999999999",
            "-1",
            "experts",
            "self_attn",
            "q_proj",
            "weight",
            "bias",
            "",
        )
        return ".".join(rng.choice(pieces) for _ in range(rng.choice((1, 3, 5))))
    return hostile.text(rng).decode("utf-8", "surrogateescape")
