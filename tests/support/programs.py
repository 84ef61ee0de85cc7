"""Python programs of tests, each in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: A store, at the URLs that are given, is used before a fork and after it, here and in four children.
FORK = """
import os, sys
from celery_singleton_lock import Lock, open_store

store = open_store(sys.argv[1:], timeout=5.0)
parent = Lock(store, "parent", ttl=60)
parent.acquire()
children = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        ok = parent.release() is False  # the lease is its parent's
        for turn in range(100):
            with Lock(store, f"child:{number}:{turn}", ttl=60) as lease:
                ok = ok and lease.fence > 0 and Lock(store, "parent").locked()
        os._exit(0 if ok else 1)
    children.append(pid)
for turn in range(100):
    with Lock(store, f"own:{turn}", ttl=60):
        assert parent.owned()
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
assert parent.release() is True
"""


def run_python(*args: str, cwd: Path = ROOT, **env: str) -> str:
    """The output of ``python *args``, which must succeed within a minute; it finds what this process finds."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
