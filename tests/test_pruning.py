"""The cache of tiny models keeps what is used, and loses the rest after two days."""

import os
import time
from pathlib import Path

import pytest
from filelock import FileLock

from tests.oracle.pruning import prune_daily

DAY_S = 86_400


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Entries by their age in days; `old-used` is in use."""
    for name, days in (("old", 3), ("old-used", 3), ("new", 1), ("gone-half", 0), ("locks", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        age(tmp_path / name, days)
    return tmp_path


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def names(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


def test_what_nobody_used_for_two_days_goes(cache: Path) -> None:
    assert prune_daily(cache, lambda: [cache / "old-used", cache / "not-made-yet"]) == ["gone-half", "old"]
    assert names(cache) == {"old-used", "new", "locks"}
    assert (cache / "old-used/file").exists()


def test_what_was_used_is_kept_for_two_days_more(cache: Path) -> None:
    prune_daily(cache, lambda: [cache / "old-used"])
    age(cache / "new", 2.5)
    age(cache / "locks/.pruned", 1.5)
    assert prune_daily(cache, list) == ["new"]
    assert names(cache) == {"old-used", "locks"}


def test_once_a_day_is_enough(cache: Path) -> None:
    prune_daily(cache, list)
    age(cache / "new", 9)

    def used() -> list[Path]:
        raise AssertionError("which takes seconds")

    assert prune_daily(cache, used) == []
    assert (cache / "new").exists()


def test_one_process_does_it(cache: Path) -> None:
    before = names(cache)
    with FileLock(cache / "locks/.pruned.lock"):
        assert prune_daily(cache, list) == []
    assert names(cache) == before
