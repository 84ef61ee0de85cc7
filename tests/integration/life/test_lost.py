"""A lease that is lost while its body runs: max_hold, on_lost, and a pool whose body does not yield."""

from __future__ import annotations

import time
from typing import Any

import pytest

from celery_singleton_lock import LeaseLost

from ...support.waiting import eventually
from ...support.worker import Worker
from .life import Life


@pytest.fixture(scope="module", params=["prefork", "solo"])
def worker(request: pytest.FixtureRequest, life: Life) -> Any:
    """A worker whose bodies run in the main thread."""
    worker = life.start_worker(pool=request.param, concurrency=1)
    yield worker
    worker.kill()


@pytest.fixture(scope="module", params=["threads", "gevent"])
def other(request: pytest.FixtureRequest, life: Life) -> Any:
    """A worker whose bodies cannot be ended, with a queue of its own."""
    worker = life.start_worker(pool=request.param, concurrency=4, args=["-Q", request.param])
    yield request.param, worker
    worker.kill()


def _lose(life: Life, key: str) -> None:
    """Takes the lock away from the body that holds it."""
    assert life.locks.delete(*life.locks.keys(f"*:lock:res:{key}")) == 1


def test_max_hold(life: Life, worker: Worker, key: str) -> None:
    """B40: after max_hold (1 s) the lease is not renewed any more, is told to be lost, and is free for others."""
    result = life.tasks.limited.delay(key, 30)
    began = life.begun(key)["at"]
    assert life.note(f"lease_lost:{result.id}")["reason"] == "max_hold is over"
    assert 0.9 < time.time() - began < 3
    eventually(lambda: life.holder(key) is None, 2)
    life.go(key)
    assert result.get(timeout=15) == 1


def test_abort(life: Life, worker: Worker, key: str) -> None:
    """B33: the body is ended by LeaseLost; autoretry_for=(Exception,) does not retry that; finally blocks have run."""
    result = life.tasks.aborted.apply_async([key, 30], link_error=life.tasks.told.s(where=f"error:{key}"))
    life.begun(key)
    _lose(life, key)
    with pytest.raises(LeaseLost):
        result.get(timeout=15)
    assert life.note(f"error:{key}")["error"] == "LeaseLost"
    assert life.notes.get(f"unwound:{key}") == "1"
    assert life.runs(key) == 1
    assert life.holder(key) is None
    assert life.tasks.aborted.delay(key).get(timeout=15) == 2  # the same process goes on


def test_abort_that_is_retried(life: Life, worker: Worker, key: str) -> None:
    """B33: with LeaseLost named in autoretry_for the message runs again."""
    result = life.tasks.named.delay(key, 30)
    life.begun(key)
    _lose(life, key)
    assert result.get(timeout=15) == 2
    assert life.begun(key)["retries"] == 1


def test_no_abort_after_the_body(life: Life, worker: Worker, key: str) -> None:
    """A loss that is seen as the body ends ends nothing: 30 bodies lose their lease about when they return."""
    results = [life.tasks.aborted.delay(f"{key}-{n}", 0.15 + n / 200) for n in range(30)]
    for n, result in enumerate(results):
        name = f"{key}-{n}"
        life.begun(name)
        _lose(life, name)
        result.get(timeout=15, propagate=False)
        assert result.state in ("SUCCESS", "FAILURE")
        assert life.runs(name) == 1
    assert life.tasks.early.delay(key).get(timeout=15) == 1
    assert worker.running


class TestOtherPools:
    """A pool whose bodies cannot be ended."""

    def test_abort_acts_as_warn(self, life: Life, other: tuple[str, Worker], key: str) -> None:
        """on_lost="abort" is said at start to act as "warn", with the tasks' names; the body ends in its own time."""
        pool, worker = other
        worker.wait_for_log('on_lost="abort" acts as "warn" in the')
        result = life.tasks.aborted.apply_async([key, 30], queue=pool)
        life.begun(key)
        _lose(life, key)
        life.note(f"lease_lost:{result.id}")
        life.go(key)
        assert result.get(timeout=15) == 1

    def test_a_body_that_does_not_yield(self, life: Life, other: tuple[str, Worker], key: str) -> None:
        """B11: gevent, ttl 0.5 s, the body spins for 1.5 s: it knows of the loss when it looks; another's lock stays.

        In a thread the lease lives on."""
        pool, _ = other
        result = life.tasks.spins.apply_async([key, 1.5], queue=pool)
        first = life.begun(key)
        if pool == "threads":
            assert result.get(timeout=15) is False
            return
        eventually(lambda: life.holder(key) is None)
        with life.outsider(key) as outsider:
            assert result.get(timeout=15) is True
            life.note(f"lease_lost:{result.id}")
            holder = life.holder(key)
            assert holder is not None
            assert outsider.lease is not None
            assert holder.token == outsider.lease.token
            assert holder.fence > first["fence"]
