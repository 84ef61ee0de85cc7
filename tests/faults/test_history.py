"""A short history of locks under random faults; `python -m benchmarks.history` makes a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.history import run


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_history(tmp_path: Path, seed: int) -> None:
    """Fences increase, and where two bodies overlap the older had been told or wrote nothing any more."""
    report = run(tmp_path, 800, seed)
    assert report.violations == []
    assert report.counts["acquisitions"] >= 800
    assert sum(count for name, count in report.counts.items() if name.startswith("fault")) >= 3
