"""The end of a test run says how many architectures it has proven by round trip: hooks for `tests/conftest.py`."""

import re
from collections import Counter, defaultdict
from typing import Any

PROPERTY = "arch map"
"""What the round-trip tests note of the case they ran: GGUF architecture and name of its map."""
WEIGHTS, LOGITS, LLAMA_CPP = (
    "test_every_tensor_comes_back_bit_for_bit",
    "test_transformers_computes_the_same_logits",
    "test_llama_cpp_computes_the_same_logits",
)
_CASE = re.compile(r"test_round_trip\.py::(\w+)\[(.+)\]")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line, where round trips were run."""
    maps: dict[str, tuple[str, str]] = {}
    passed: dict[str, set[str]] = defaultdict(set)
    failed: set[str] = set()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            match = _CASE.search(report.nodeid)
            if not match:
                continue
            test, case = match.groups()
            if noted := dict(report.user_properties).get(PROPERTY):
                maps[case] = tuple(noted)
            if outcome == "passed":
                passed[case].add(test)
            else:
                failed.add(case)
    if maps:
        terminalreporter.section("proven by round trip through llama.cpp's converter")
        terminalreporter.line(summary(maps, passed, failed))


def summary(maps: dict[str, tuple[str, str]], passed: dict[str, set[str]], failed: set[str]) -> str:
    """`97 of 97 architectures (115 of 115 maps): 90 with logits of llama.cpp, ...`.

    Args:
        maps: case -> its architecture and map.
        passed: case -> the tests that it passed.
        failed: cases that failed any.
    """
    from gguf2st.archmap.mapfile import all_maps

    best: dict[tuple[str, str], int] = {}
    for case, key in maps.items():
        if case not in failed and WEIGHTS in passed[case]:
            tests = passed[case]
            best[key] = max(best.get(key, 0), 2 if LLAMA_CPP in tests else 1 if LOGITS in tests else 0)
    known = all_maps()
    archs = {m.arch for m in known}
    counts = Counter(best.values())
    proven = {arch for arch, _ in best} & archs
    text = (
        f"{len(proven)} of {len(archs)} architectures ({len(best)} of {len(known)} arch maps):"
        f" {counts[2]} with the logits of llama.cpp, {counts[1]} with those of transformers alone,"
        f" {counts[0]} by weights and configuration"
    )
    lost = sorted({case for case in failed if case in maps})
    return f"{text}; failed: {', '.join(lost)}" if lost else text
