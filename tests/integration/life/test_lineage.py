"""Taken is not the same as duplicate: what may have begun is neither skipped nor failed, whoever holds the lock."""

from __future__ import annotations

import time

import pytest

from celery_singleton_lock import is_skipped

from ...support.waiting import eventually
from ...support.worker import Worker
from ..stage import Stage, resource


@pytest.fixture(scope="module")
def worker(stage: Stage) -> Worker:
    """A worker of many slots."""
    return stage.start_worker(pool="threads", concurrency=8)


def test_behind_itself_and_then_behind_a_stranger(stage: Stage, worker: Worker, name: str) -> None:
    """B06: a redelivery waits behind its first run; that fails, a stranger takes the lock: it waits on, and runs."""
    result = stage.tasks.falls.delay(name)
    stage.begun(name)
    stage.redeliver()
    stage.until_waiting(result.id)
    stage.take_away(name)
    with stage.outsider(resource(name)):
        stage.go(name)
        stage.until_waiting(result.id, 5)
        assert stage.runs(name) == 1
        assert stage.noted(f"signal:lock_skipped:{result.id}") == []
    eventually(lambda: stage.runs(name) == 2)
    eventually(lambda: stage.app.AsyncResult(result.id).state == "SUCCESS")


def test_a_stranger_is_skipped_meanwhile(stage: Stage, worker: Worker, name: str) -> None:
    """In skip mode a new message is skipped at the same moment as a begun one waits."""
    with stage.outsider(resource(name)):
        begun = stage.tasks.falls.apply_async([name], retries=1)
        stage.until_waiting(begun.id)
        assert is_skipped(stage.tasks.falls.delay(name).get(timeout=15))
    stage.go(name)
    eventually(lambda: stage.runs(name) == 1)
    time.sleep(0.5)
    assert stage.runs(name) == 1


def test_one_look_at_a_time(stage: Stage, worker: Worker, name: str) -> None:
    """Waiters of a dead lineage look again soon after the lease's end, not after their backoff of a minute."""
    result = stage.tasks.lasting_skip.delay(name, 60)
    stage.begun(name)
    stage.redeliver()
    stage.until_waiting(result.id, 1)
    notes = stage.noted(f"signal:lock_waiting:{result.id}")
    assert all(0 < note["countdown"] <= 3.1 for note in notes)
    stage.go(name)
    assert result.get(timeout=15) == 1
    eventually(lambda: stage.noted(f"signal:lock_replayed:{result.id}"))
    assert stage.runs(name) == 1
