"""The model card (README.md) of a converted checkpoint: metadata that the Hub understands, and what a reader asks."""

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gguf2st import __version__
from gguf2st.hub import terms
from gguf2st.hub.provenance import Provenance
from gguf2st.hub.reference import parse_reference
from gguf2st.report import human_bytes, human_count
from gguf2st.verification import Verification

CARD_FILE = "README.md"

_LEVELS = {
    "structural": "files, shard headers, index and config.json agree; every parameter is there once",
    "numerical": "every value equals gguf-py's dequantization of the GGUF",
    "model": "names and shapes are those of the class in transformers",
    "running": "transformers loads it with nothing missing, and it answers with finite numbers",
}
_AUTO_CLASSES = {
    "ForCausalLM": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
}
_SEAL = re.compile(r"<!-- gguf2st wrote this card \(([0-9a-f]{16})\); once edited, it is kept -->\n?\Z")


@dataclass(frozen=True)
class Card:
    """A card, and what its owner should know about it."""

    text: str
    notes: tuple[str, ...]


def make_card(repo: str, config: Mapping[str, Any], verification: Verification, provenance: Provenance | None) -> Card:
    """The card of a checkpoint.

    Args:
        repo: where it goes, `org/name`.
        config: its config.json.
        verification: of the checkpoint as it is now.
        provenance: what its conversion wrote; None for a checkpoint that says nothing about its origin.
    """
    from huggingface_hub import ModelCardData

    general = provenance.general if provenance else {}
    classes = config.get("architectures")
    hf_class = str(classes[0]) if isinstance(classes, list) and classes else ""
    parents, relation = terms.base_model(general, _home(provenance)[0])
    legal = terms.license_facts(general, parents[0] if parents else "")
    codes, other_languages = terms.languages(general)
    task = terms.task(general, hf_class)
    facts: dict[str, Any] = {
        "base_model": parents[0] if len(parents) == 1 else parents,
        "base_model_relation": relation,
    }
    facts |= {**legal, "language": codes, "library_name": "transformers", "pipeline_tag": task}
    facts["tags"] = terms.tags(general, task)
    data = ModelCardData(**{key: value for key, value in facts.items() if value})
    body = "\n".join(_body(repo, hf_class, config, verification, provenance, legal))
    lacking = [name for name, value in (("license", legal), ("base_model", parents)) if not value]
    notes = []
    if lacking:
        notes.append(
            f"the card names no {' and no '.join(lacking)}, as nothing here does: add it to {CARD_FILE} on the Hub, "
            "which later pushes keep"
        )
    if other_languages:
        notes.append(f"languages that are no codes are left out of the card: {', '.join(other_languages)}")
    return Card(_sealed(f"---\n{data.to_yaml()}\n---\n\n{body}\n\n"), tuple(notes))


def is_own(text: str) -> bool:
    """Whether a card is one that `make_card` wrote and nobody has edited."""
    text = text.replace("\r\n", "\n")  # as editors on the web leave it
    match = _SEAL.search(text)
    return match is not None and _digest(text[: match.start()]) == match[1]


def _sealed(text: str) -> str:
    return f"{text}<!-- gguf2st wrote this card ({_digest(text)}); once edited, it is kept -->\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _body(
    repo: str,
    hf_class: str,
    config: Mapping[str, Any],
    verification: Verification,
    provenance: Provenance | None,
    legal: Mapping[str, str],
) -> Iterator[str]:
    yield f"# {_text(repo.split('/')[-1])}\n"
    if provenance:
        yield from _origin(provenance)
    else:
        yield "A checkpoint in safetensors, as vLLM and transformers load it.\n"
    yield from _facts(hf_class, verification, provenance)
    yield "\n## Use\n"
    yield f"```sh\nvllm serve {shlex.quote(repo)}\n```\n"
    auto = next((auto for end, auto in _AUTO_CLASSES.items() if hf_class.endswith(end)), "AutoModel")
    trust = ", trust_remote_code=True" if config.get("auto_map") else ""
    yield f"```python\nfrom transformers import {auto}, AutoTokenizer\n"
    yield f'tokenizer = AutoTokenizer.from_pretrained("{repo}"{trust})'
    yield f'model = {auto}.from_pretrained("{repo}", dtype="auto"{trust})\n```'
    packed = config.get("quantization_config")
    if isinstance(packed, dict) and packed.get("quant_method") == "compressed-tensors":
        yield "\ntransformers needs the package `compressed-tensors` for it; vLLM brings its own."
    if provenance:
        yield from _weights(provenance)
    yield from _checked(verification, provenance)
    yield "\n## License\n"
    named = legal.get("license_name") or legal.get("license", "")
    link = legal.get("license_link")
    terms_of = f"[{_text(named)}]({link})" if named and link else _text(named)
    yield f"The weights keep the license of their model{f': {terms_of}' if named else ''}."


def _origin(provenance: Provenance) -> Iterator[str]:
    files = ", ".join(_code(name) for name in provenance.files[:3])
    more = f" and {len(provenance.files) - 3} more shards" if len(provenance.files) > 3 else ""
    repo, address = _home(provenance)
    home = f" of [{_text(repo)}]({address})" if repo else ""
    maker = provenance.general.get("general.quantized_by")
    by = f", quantized by {_text(maker)}," if isinstance(maker, str) and maker.strip() else ""
    yield (
        f"Converted from the GGUF {files}{more}{home}{by} to safetensors by gguf2st {_text(provenance.version)}. "
        "It loads in vLLM and transformers like any other checkpoint.\n"
    )
    if any(row.qtype not in ("F32", "F16", "BF16", "F64") for row in provenance.types):
        yield "The weights are those of the GGUF: what its quantization lost of the original model is lost here too.\n"


def _home(provenance: Provenance | None) -> tuple[str, str]:
    """(Hub repository of the GGUF, address of the page of the file); empty when it came from elsewhere."""
    reference = parse_reference(provenance.origin) if provenance and provenance.origin.startswith("hf://") else None
    if reference is None:
        return "", ""
    path = quote(f"{reference.repo}/blob/{reference.revision or 'main'}/{reference.path}")
    return reference.repo, f"https://huggingface.co/{path}"


def _facts(hf_class: str, verification: Verification, provenance: Provenance | None) -> Iterator[str]:
    rows = [("class", _code(hf_class)), ("parameters", human_count(verification.parameters))]
    rows += [("tensors", f"{verification.tensors:,}"), ("weights", human_bytes(verification.nbytes))]
    if provenance:
        rows.insert(0, ("GGUF architecture", _code(provenance.arch)))
        rows.append(("weights in the GGUF", human_bytes(provenance.source_nbytes)))
    yield "| | |\n|---|---|"
    yield from (f"| {name} | {value} |" for name, value in rows)


def _weights(provenance: Provenance) -> Iterator[str]:
    yield "\n## What became of the weights\n"
    yield "| in the GGUF | tensors | size | here | scheme | size | values |\n|---|---:|---:|---|---|---:|---|"
    for row in provenance.types:
        values = _text(row.result) + (f", rmse at most {row.worst_rel_rmse:.2g}" if row.worst_rel_rmse else "")
        before, after = human_bytes(row.nbytes), human_bytes(row.output_nbytes)
        cells = (_code(row.qtype), row.tensors, before, _code(row.dtype), _code(row.scheme), after, values)
        yield "| " + " | ".join(map(str, cells)) + " |"
    if provenance.dropped:
        yield "\nTensors of the GGUF that have no place in this class:\n"
        yield from (f"* {_code(name)}: {_text(reason)}" for name, reason in provenance.dropped.items())
    if provenance.notes:
        yield "\nNotes of the conversion:\n"
        yield from (f"* {_text(note)}" for note in provenance.notes)


def _checked(verification: Verification, provenance: Provenance | None) -> Iterator[str]:
    yield "\n## How it was made and checked\n"
    if provenance:
        yield f"```sh\n{_line(provenance.command)}\n```\n"
    levels = dict.fromkeys((*(provenance.checked if provenance else ()), *verification.levels))
    yield f"Checked by gguf2st {__version__} before it was uploaded:\n"
    yield from (f"* {level}: {_LEVELS[level]}" for level in levels if level in _LEVELS)
    if provenance:
        yield "\nTo compare every value with the GGUF yourself:\n"
        yield f"```sh\ngguf2st verify DOWNLOADED_FOLDER --against {shlex.quote(_line(provenance.files[0]))}\n```"


def _line(text: str) -> str:
    """One line of printable text that ends no code block."""
    return "".join(c if c.isprintable() else "?" for c in str(text)).replace("```", "'''")


def _text(text: object) -> str:
    """A stranger's text that Markdown and HTML show as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|~!&])", r"\\\1", _line(str(text)))


def _code(text: object) -> str:
    """The same as code; in a table a bar would end the cell."""
    return "`" + _line(str(text)).replace("`", "'").replace("|", "/") + "`"
