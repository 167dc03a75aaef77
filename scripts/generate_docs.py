"""Write the generated parts of README.md (between `<!-- generated: NAME -->` and `<!-- end -->`), or check them."""

import re
import sys
from pathlib import Path

from gguf2st.mapfile import all_maps
from gguf2st.quants.layout import DECODABLE, TYPES
from gguf2st.tokenizer.files import KINDS
from gguf2st.tokenizer.pretokenizers import SUPPORTED

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def support() -> str:
    rows = ["| GGUF architecture | Hugging Face class | arch map |", "|---|---|---|"]
    for m in all_maps():
        when = "" if m.when.text == "True" else f" (when `{m.when.text}`)"
        classes = ", ".join(f"`{c}`" for c in m.constants["architectures"])
        rows.append(f"| `{m.arch}`{when} | {classes} | [{m.name}.toml](arch_maps/{m.name}.toml) |")
    types = ", ".join(name for name in TYPES if name in DECODABLE)
    rows += [
        "",
        f"**Tensor types:** {types}.",
        "",
        f"**Tokenizers:** `tokenizer.ggml.model` {', '.join(f'`{k}`' for k in KINDS)}; for `gpt2`, "
        f"`tokenizer.ggml.pre` {', '.join(f'`{n}`' for n in sorted(SUPPORTED))}.",
    ]
    return "\n".join(rows) + "\n"


PARTS = {"support": support}


def main() -> None:
    text = README.read_text(encoding="utf-8")
    new = _PART.sub(lambda m: m[1] + PARTS[m[2]]() + m[3], text)
    if "--check" in sys.argv:
        if new != text:
            sys.exit("README.md is out of date: run `make docs`")
        return
    README.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
