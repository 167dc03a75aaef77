"""docs/quantized-formats.md says what the code does."""

import re
from pathlib import Path

from gguf2st.quants.layout import TYPES
from gguf2st.schemes import MODES, SCHEMES, is_exact, targets
from gguf2st.serving.hardware import KERNELS

PAGE = (Path(__file__).resolve().parent.parent / "docs/quantized-formats.md").read_text(encoding="utf-8")


def rows(title: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    lines = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return table[2:]


def test_every_type_and_mode() -> None:
    seen: dict[str, list[str]] = {}
    for types, *cells in rows("What each type becomes"):
        for qtype in types.split(", "):
            assert qtype not in seen
            seen[qtype] = cells
    assert seen.keys() == {name for name, kind in TYPES.items() if kind.block > 1}
    for qtype, cells in seen.items():
        for mode, cell in zip(MODES[1:], cells, strict=True):
            scheme = next(iter(targets(mode, qtype)), "")
            exact = bool(scheme) and is_exact(qtype, scheme)
            assert cell == (f"**{scheme}**" if exact else scheme or "-"), (qtype, mode)


def test_every_scheme_says_what_serves_it() -> None:
    table = {name: cells for names, *cells in rows("What serves them") for name in names.split(", ")}
    for scheme in SCHEMES:
        kernels, cpu, _ = table["gpt-oss' own" if scheme == "gpt_oss_mxfp4" else scheme]
        told = KERNELS[scheme]
        assert cpu == ("yes" if told.endswith("and CPUs") else "no"), scheme
        for word in ("Marlin", "Humming", "Machete", "FlashInfer"):
            assert (word in kernels) == (word in told), (scheme, word)
        least = re.search(r"(\d\.\d)", told)
        assert least is not None
        assert kernels.startswith(least[1]), scheme
