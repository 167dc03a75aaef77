"""Write the generated parts of README.md and docs/, between `<!-- generated: NAME -->` and `<!-- end -->`, or check."""

import re
import sys
from collections import Counter
from pathlib import Path

from gguf2st.archmap.mapfile import all_maps
from gguf2st.archmap.proofs import LEVELS, NO_PROOF, read_proofs
from gguf2st.quants.layout import DECODABLE, TYPES
from gguf2st.tokenizer.files import KINDS
from gguf2st.tokenizer.pretokenizers import SUPPORTED

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def support() -> str:
    maps = all_maps()
    archs = sorted({m.arch for m in maps})
    types = ", ".join(name for name in TYPES if name in DECODABLE)
    return (
        f"**{len(archs)} GGUF architectures**, by {len(maps)} arch maps "
        f"([table](docs/architectures.md), with the Hugging Face class and the proof of each): {', '.join(archs)}.\n\n"
        f"**Tensor types:** {types}.\n\n"
        f"**Tokenizers:** `tokenizer.ggml.model` {', '.join(KINDS)}; of `gpt2`, {len(SUPPORTED)} pre-tokenizers "
        f"([list](docs/tokenizers.md)).\n"
    )


def architectures() -> str:
    proofs = read_proofs()
    rows = ["| GGUF architecture | Hugging Face class | proof | arch map | when |", "|---|---|---|---|---|"]
    for m in all_maps():
        when = "" if m.when.text == "True" else f"`{m.when.text}`"
        classes = ", ".join(f"`{c}`" for c in m.constants.get("architectures", [])) or "by the file"
        proof = proofs.get(m.name, NO_PROOF)
        models = f" ({proof.models})" if proof.models else ""
        link = f"[{m.name}](../arch_maps/{m.name}.toml)"
        rows.append(f"| `{m.arch}` | {classes} | {proof.level}{models} | {link} | {when} |")
    return "\n".join(rows) + "\n"


def levels() -> str:
    maps, proofs = all_maps(), read_proofs()
    count = Counter(proofs.get(m.name, NO_PROOF).level for m in maps)
    rows = [f"| {level} | {what} | {count[level]} |" for level, what in LEVELS.items()]
    return "\n".join(["| proof | what it says | maps |", "|---|---|---|", *rows]) + "\n"


def pretokenizers() -> str:
    return f"{', '.join(f'`{n}`' for n in sorted(SUPPORTED))}.\n"


PARTS = {"support": support, "architectures": architectures, "levels": levels, "pretokenizers": pretokenizers}


def main() -> None:
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = _PART.sub(lambda m: m[1] + PARTS[m[2]]() + m[3], text)
        if new != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.exit(f"{', '.join(stale)}: out of date, run `make docs`")


if __name__ == "__main__":
    main()
