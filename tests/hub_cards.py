"""What the Hub says about the metadata block of a README.md (`/api/validate-yaml`)."""

import re
from typing import Any

import yaml

# The list in the Hub's own message about an unknown license, May 2026.
_LICENSES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl
lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0
openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
other
"""
LICENSES = frozenset(_LICENSES.split())
RELATIONS = ("adapter", "finetune", "merge", "quantized")
_BLOCK = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_MODEL = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?")
_LANGUAGE = re.compile(r"[a-z]{2,3}|code|multilingual|[a-z]{2,3}-[A-Za-z]{2,4}")


def check_card(text: str) -> tuple[list[str], list[str]]:
    """Errors, which forbid a commit, and warnings."""
    match = _BLOCK.match(text)
    if match is None:
        return [], ["empty or missing yaml metadata in repo card"]
    try:
        facts = yaml.safe_load(match[1])
    except yaml.YAMLError as err:
        return [f"YAML metadata cannot be read: {err}"], []
    if not isinstance(facts, dict):
        return ["YAML metadata is not a mapping"], []
    return _errors(facts), _warnings(facts)


def _errors(facts: dict[str, Any]) -> list[str]:
    errors = [f'"license" must be one of the known ones, not {x!r}' for x in _listed(facts, "license") - LICENSES]
    for key, pattern in (("base_model", _MODEL), ("language", _LANGUAGE)):
        wrong = [x for x in _listed(facts, key) if not isinstance(x, str) or not pattern.fullmatch(x)]
        errors += [f'"{key}" with value {x!r} is not valid' for x in wrong]
    if facts.get("base_model_relation", "quantized") not in RELATIONS:
        errors.append(f'"base_model_relation" must be one of {RELATIONS}')
    for key in ("tags", "datasets"):
        if key in facts and not (isinstance(facts[key], list) and all(isinstance(x, str) for x in facts[key])):
            errors.append(f'"{key}" must be an array of strings')
    for key in ("library_name", "pipeline_tag", "license_name", "license_link"):
        if key in facts and not isinstance(facts[key], str):
            errors.append(f'"{key}" must be a string')
    if isinstance(name := facts.get("license_name"), str) and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        errors.append('"license_name" must be lowercase letters, digits, dots and dashes')
    return errors


def _warnings(facts: dict[str, Any]) -> list[str]:
    if "other" in _listed(facts, "license") and not {"license_name", "license_link"} <= facts.keys():
        return ['"license: other" wants "license_name" and "license_link"']
    return []


def _listed(facts: dict[str, Any], key: str) -> set[Any]:
    value = facts.get(key, [])
    return set(value) if isinstance(value, list) else {value}
