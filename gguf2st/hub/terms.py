"""What the Hub understands in the metadata of a model card: licenses, languages, tasks, relations between models."""

import re
from collections.abc import Mapping
from typing import Any

# The identifiers of https://huggingface.co/docs/hub/repositories-licenses; a card with another one is refused.
_LICENSES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m afl-3.0
artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0
cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0
epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research
intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openrail++ osl-3.0 postgresql
ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1
llama3.2 llama3.3 llama4 grok2-community gemma unknown other
"""
LICENSES = frozenset(_LICENSES.split())

TASKS = frozenset(
    {
        "text-generation",
        "feature-extraction",
        "sentence-similarity",
        "text-classification",
        "text-ranking",
        "fill-mask",
        "translation",
        "summarization",
    }
)
"""Tasks (`pipeline_tag`) of models that read text only."""

_TASK_OF_CLASS = {"ForCausalLM": "text-generation", "ForSequenceClassification": "text-classification"}
"""End of the class's name -> task; any other class gives vectors."""

FORMAT_TAGS = frozenset({"gguf", "ggml", "llama.cpp", "llama-cpp", "llamacpp", "gguf-my-repo", "imatrix", "quantized"})
"""Tags that say what the GGUF was: a safetensors checkpoint is not."""

MAX_TAGS = 40
_REPO_URL = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+?)/?(?:[?#].*)?")
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[\w.-]+")


def license_facts(general: Mapping[str, Any], base_model: str) -> dict[str, str]:
    """`license`, and for what is not in the Hub's list `license_name` and `license_link`; {} when none is named.

    Args:
        general: the GGUF's general.* keys.
        base_model: repository to which a link such as LICENSE belongs; empty when not known.
    """
    said = _text(general.get("general.license")).strip()
    name, link = (_text(general.get(f"general.license.{key}")).strip() for key in ("name", "link"))
    if said.lower() in LICENSES - {"other"} and not name:
        return {"license": said.lower()}
    if not said and not name:
        return {}
    slug = re.sub(r"[^a-z0-9.]+", "-", (name or said).lower()).strip("-.")
    if base_model and re.fullmatch(r"[\w./-]+", link):  # a file beside the original model
        link = f"https://huggingface.co/{base_model}/blob/main/{link.lstrip('./')}"
    if not re.fullmatch(r"https?://[^\s()<>\"']+", link):
        link = ""
    facts = {"license": "other", "license_name": slug if slug != "other" else "", "license_link": link}
    return {key: value for key, value in facts.items() if value}


def languages(general: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(codes that the Hub takes, what the GGUF says besides)."""
    codes: dict[str, None] = {}
    others = []
    for word in _listed(general.get("general.languages")):
        code = re.split("[-_]", word.strip().lower())[0]
        if re.fullmatch(r"[a-z]{2,3}|code|multilingual", code):
            codes[code] = None
        else:
            others.append(word)
    return list(codes), others


def task(general: Mapping[str, Any], hf_class: str) -> str:
    """The card's `pipeline_tag`: what the GGUF's tags say, as converters put it there, else what the class does."""
    said = [tag for tag in _listed(general.get("general.tags")) if tag in TASKS]
    generates = hf_class.endswith("ForCausalLM")
    for tag in said:
        if generates == (tag in ("text-generation", "translation", "summarization")):
            return tag
    ends = (name for end, name in _TASK_OF_CLASS.items() if hf_class.endswith(end))
    return next(ends, "feature-extraction")


def tags(general: Mapping[str, Any], pipeline_tag: str) -> list[str]:
    """The GGUF's tags without those that the Hub sets itself or that describe a GGUF, and `gguf2st`."""
    kept: dict[str, None] = {}
    for tag in map(str.strip, _listed(general.get("general.tags"))):
        # What has a colon is the Hub's own (license:mit, region:us), but for papers.
        own = ":" in tag and not tag.startswith("arxiv:")
        if tag and tag.isprintable() and not own and tag.lower() not in FORMAT_TAGS | TASKS | {pipeline_tag}:
            kept[tag] = None
    return [*list(kept)[:MAX_TAGS], "gguf2st"]


def base_model(general: Mapping[str, Any], repo: str) -> tuple[list[str], str]:
    """The Hub repositories that the model comes from, and the relation to them; ([], "") when none is known.

    The model itself, where the GGUF names it, goes before the repository of the GGUF, and that before what the model
    was trained from. A copy of a model in another precision is filed under `quantized` on the Hub.

    Args:
        general: the GGUF's general.* keys.
        repo: where the GGUF was downloaded from; empty for a local file.
    """
    named = _text(general.get("general.source.huggingface.repository"))
    itself = [named] if _REPO.fullmatch(named) else []
    itself += filter(None, (_repo(general.get(f"general.{key}")) for key in ("source.repo_url", "source.url")))
    name = _letters(general.get("general.name"))
    parents = []
    for i in range(min(16, _number(general.get("general.base_model.count")))):
        parent = {key: general.get(f"general.base_model.{i}.{key}") for key in ("name", "repo_url", "url")}
        found = _repo(parent["repo_url"]) or _repo(parent["url"])
        if found:
            parents.append(found)
            # Who only quantizes a model gives that model as the base.
            if name and name in (_letters(parent["name"]), _letters(found.split("/")[1])):
                itself.append(found)
    itself += filter(None, (_repo(general.get(f"general.{key}")) for key in ("repo_url", "url")))
    if itself or repo:
        return [(itself or [repo])[0]], "quantized"
    parents = list(dict.fromkeys(parents))
    return parents, {0: "", 1: "finetune"}.get(len(parents), "merge")


def _repo(value: Any) -> str:
    match = _REPO_URL.fullmatch(_text(value).strip())
    return match[1] if match and not match[1].startswith(("datasets/", "spaces/", "docs/", "papers/")) else ""


def _letters(value: Any) -> str:
    return re.sub(r"[^a-z0-9]", "", _text(value).lower())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _listed(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, str)]
