"""Whose connections they are: threads and forked children never read each other's replies."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from celery_singleton_lock import open_store
from celery_singleton_lock.locks.answers import Holder

from ..support.locks import Owner
from ..support.servers import Server

ROOT = Path(__file__).parents[2]


def test_threads_never_mix_replies(valkey: Server) -> None:
    """Eight threads on one store each read the answers to their own questions."""
    store = open_store(valkey.url(), timeout=5.0)
    wrong: list[object] = []

    def work(number: int) -> None:
        one = Owner(store, f"{number}", Holder(f"task-{number}"), key=f"order:{number}")
        for _ in range(50):
            fence = one.granted()
            taken = store.peek(one.names)
            if taken is None or (taken.holder, taken.fence) != (one.holder, fence) or not one.renew():
                wrong.append(taken)
            if not one.release():
                wrong.append(one)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    store.close()


FORK = """
import os, sys
from celery_singleton_lock import Lock, open_store

store = open_store(sys.argv[1], timeout=5.0)
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


def test_forked_children_have_connections_of_their_own(valkey: Server) -> None:
    """A store used before a fork mixes no replies in the children, and they free nothing of their parent's (B36)."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, valkey.url()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
