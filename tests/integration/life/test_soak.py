"""The soak of benchmarks/soak.py in its short form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ...support.worker import ROOT


@pytest.mark.slow
def test_short_soak(tmp_path: Path) -> None:
    """700 tasks on 20 resources while children and workers die: no overlap, none lost, none booked twice, none left."""
    argv = [sys.executable, "-m", "benchmarks.soak", "--tasks", "700", "--resources", "20", "--seed", "7"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
