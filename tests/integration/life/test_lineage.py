"""Taken is not the same as duplicate: what may have begun is neither skipped nor failed, whoever holds the lock."""

from __future__ import annotations

import time

import pytest

from celery_singleton_lock import is_skipped

from ...support.waiting import eventually
from ...support.worker import Worker
from .life import Life


@pytest.fixture(scope="module")
def worker(life: Life) -> Worker:
    """A worker of many slots."""
    return life.start_worker(pool="threads", concurrency=8)


def test_behind_itself_and_then_behind_a_stranger(life: Life, worker: Worker, key: str) -> None:
    """B06: a redelivery waits behind its first run; that fails, a stranger takes the lock: it waits on, and runs."""
    result = life.tasks.falls.delay(key)
    life.begun(key)
    life.redeliver()
    life.waited(result.id)
    life.take_away(key)
    with life.outsider(key):
        life.go(key)
        life.waited(result.id, 5)
        assert life.runs(key) == 1
        assert life.noted(f"lock_skipped:{result.id}") == []
    eventually(lambda: life.runs(key) == 2)
    eventually(lambda: life.app.AsyncResult(result.id).state == "SUCCESS")


def test_a_stranger_is_skipped_meanwhile(life: Life, worker: Worker, key: str) -> None:
    """In skip mode a new message is skipped at the same moment as a begun one waits."""
    with life.outsider(key):
        begun = life.tasks.falls.apply_async([key], retries=1)
        life.waited(begun.id)
        assert is_skipped(life.tasks.falls.delay(key).get(timeout=15))
    life.go(key)
    eventually(lambda: life.runs(key) == 1)
    time.sleep(0.5)
    assert life.runs(key) == 1


def test_one_look_at_a_time(life: Life, worker: Worker, key: str) -> None:
    """Waiters of a dead lineage look again soon after the lease's end, not after their backoff of a minute."""
    result = life.tasks.lasting_skip.delay(key, 60)
    life.begun(key)
    life.redeliver()
    life.waited(result.id, 1)
    notes = life.noted(f"lock_waiting:{result.id}")
    assert all(0 < note["countdown"] <= 3.1 for note in notes)
    life.go(key)
    assert result.get(timeout=15) == 1
    eventually(lambda: life.noted(f"lock_replayed:{result.id}"))
    assert life.runs(key) == 1
