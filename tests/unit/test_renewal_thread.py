"""The renewal thread: one per process, gone when it is not needed, and not in a forked child."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.lease import Lease
from celery_singleton_lock.locks.protocol import HeldLock
from celery_singleton_lock.locks.renewal import Renewer
from celery_singleton_lock.stores.memory import MemoryStore

from ..support.locks import held_guard, lock_of
from ..support.programs import run_python


class WatchedStore(MemoryStore):
    """Tells of its renewals: ``renewed`` counts them, and `wait_for` waits until there were so many."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed = 0
        self._more = threading.Condition()

    def renew(self, locks: Sequence[HeldLock], timeout: float) -> list[bool | None]:
        answers = super().renew(locks, timeout)
        with self._more:
            self.renewed += 1
            self._more.notify_all()
        return answers

    def wait_for(self, count: int) -> bool:
        """Whether there were ``count`` renewals within 20 seconds."""
        with self._more:
            return self._more.wait_for(lambda: self.renewed >= count, 20)


def held(store: MemoryStore, renewer: Renewer, key: str, ttl: float = 3.0, **options: Any) -> Guard:
    """A guard whose lease is renewed; by default for far longer than a slow machine stands still."""
    return held_guard(store, key, ttl, renewer=renewer, **options)


def renewal_threads() -> list[threading.Thread]:
    """The threads of all renewers of this process."""
    return [thread for thread in threading.enumerate() if thread.name == "singleton-lock-renewal"]


@pytest.fixture
def known() -> list[threading.Thread]:
    """The renewal threads that other tests left running: the process's own renewer may be idle."""
    return renewal_threads()


def test_one_thread_for_all_leases_and_none_when_idle(known: list[threading.Thread]) -> None:
    """A hundred leases are renewed by one thread, which ends once no lease has been held for a while (B40)."""
    store, renewer = WatchedStore(), Renewer(idle=0.05)
    guards = [held(store, renewer, f"order:{number}") for number in range(100)]
    (thread,) = [thread for thread in renewal_threads() if thread not in known]
    assert store.wait_for(2)
    assert [one for one in renewal_threads() if one not in known] == [thread]
    assert all(one.release() for one in guards)
    thread.join(20)
    assert not thread.is_alive()


def test_thread_comes_back(known: list[threading.Thread]) -> None:
    """After it ended, the next lease starts the thread again."""
    store, renewer = WatchedStore(), Renewer(idle=0.0)
    for count in (1, 2):
        guard = held(store, renewer, "order:7", ttl=1.5)
        assert store.wait_for(count)
        (thread,) = [thread for thread in renewal_threads() if thread not in known]
        guard.release()
        thread.join(20)
        assert not thread.is_alive()


def test_short_lease_wakes_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short lease that comes while the thread waits for a long one is renewed in time."""
    store, renewer, looked = WatchedStore(), Renewer(idle=0.0), threading.Event()
    tick = renewer.tick

    def look() -> float | None:
        pause = tick()
        looked.set()  # the next that it does is to wait
        return pause

    monkeypatch.setattr(renewer, "tick", look)
    long = held(store, renewer, "long", ttl=3600)
    assert looked.wait(20)
    short = held(store, renewer, "short", ttl=3.0)
    assert store.wait_for(2)
    assert short.release()
    assert long.release()


def test_thread_is_a_daemon(known: list[threading.Thread]) -> None:
    """The thread keeps no process from ending."""
    store, renewer = WatchedStore(), Renewer(idle=0.0)
    guard = held(store, renewer, "order:7")
    assert all(thread.daemon for thread in renewal_threads())
    guard.release()


@pytest.mark.parametrize("fault", [RuntimeError, SystemExit])
def test_observers_fault_does_not_end_the_thread(fault: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """An observer that raises, even SystemExit, does not end the thread that the other leases live by."""
    told = threading.Event()

    def broken(_: Lease) -> None:
        told.set()
        raise fault("observer")

    store, renewer = WatchedStore(), Renewer(idle=0.0)
    lost = held(store, renewer, "lost", ttl=1.0, on_lost=broken)
    kept = held(store, renewer, "kept", ttl=3.0)
    store.release(lock_of(lost))
    assert told.wait(20)
    assert store.wait_for(store.renewed + 2)
    assert kept.release()


FORK = """
import os, sys, threading
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.protocol import HeldLock
from celery_singleton_lock.locks.renewal import Renewer, default_renewer
from celery_singleton_lock.stores.memory import MemoryStore

store = MemoryStore()
own, shared = Renewer(idle=60), default_renewer()
guards = [Guard(store, "own", ttl=3, renewer=own), Guard(store, "shared", ttl=3)]
for guard in guards:
    guard.acquire()
assert threading.active_count() == 3
pid = os.fork()
if pid == 0:
    ok = (
        threading.active_count() == 1
        and (len(own), len(shared)) == (0, 0)
        and [guard.release() for guard in guards] == [False, False]
        and all(store.renew([guard.lock], 1.0) == [True] for guard in guards)  # not released: still held
    )
    fresh = Guard(store, "fresh", ttl=3)
    fresh.acquire()
    ok = ok and threading.active_count() == 2 and len(shared) == 1 and fresh.release()
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child"
assert (len(own), len(shared)) == (1, 1)
assert all(guard.release() for guard in guards), "the parent"
"""


@pytest.mark.skipif(not hasattr(sys, "getdlopenflags"), reason="there is no fork here")
def test_forked_child_neither_renews_nor_releases() -> None:
    """A forked child has no renewal thread, frees nothing of its parent's, and can hold locks of its own (B36)."""
    run_python("-c", FORK)
