"""A lease that is lost while its body runs: max_hold, on_lost, and a pool whose body does not yield."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
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


def _outlived(life: Life, worker: Worker, key: str, result: Any, wake: Callable[[], Any]) -> None:
    """The body of ``result`` cannot be heard until ``wake()``; before that, its lease ends and another has the lock.

    Then the body knows of it at once, a warning says so, and neither the other's lock nor a record is written."""
    first = life.begun(key)
    records = set(life.locks.keys("*:record:*"))
    eventually(lambda: life.holder(key) is None)
    with life.outsider(key) as outsider:
        wake()
        assert result.get(timeout=30) is True
        assert life.note(f"lease_lost:{result.id}")["reason"]
        worker.wait_for_log(f"[{result.id}]: the lease of lock {outsider.key_id} is LOST, another run may start")
        holder = life.holder(key)
        assert holder is not None
        assert outsider.lease is not None
        assert holder.token == outsider.lease.token
        assert holder.fence > first["fence"]
        assert set(life.locks.keys("*:record:*")) == records


def test_max_hold(life: Life, worker: Worker, key: str) -> None:
    """B40: after max_hold (1 s) the lease is not renewed any more, is told to be lost, and is free for others."""
    result = life.tasks.limited.delay(key, 30)
    began = life.begun(key)["at"]
    assert life.note(f"lease_lost:{result.id}")["reason"] == "max_hold is over"
    assert 0.6 < time.time() - began < 5
    eventually(lambda: life.holder(key) is None, 2)
    life.go(key)
    assert result.get(timeout=15) == 1


def test_abort(life: Life, worker: Worker, key: str) -> None:
    """B33: the body is ended by LeaseLost; autoretry_for=(Exception,) does not retry that; finally blocks have run."""
    result = life.tasks.aborted.apply_async([key, 30], link_error=life.tasks.told.s(where=f"error:{key}"))
    life.begun(key)
    assert life.take_away(key)
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
    assert life.take_away(key)
    assert result.get(timeout=15) == 2
    assert life.begun(key)["retries"] == 1


def test_no_abort_after_the_body(life: Life, worker: Worker, key: str) -> None:
    """A loss that is seen as the body ends ends nothing: 30 bodies lose their lease about when they return."""
    results = [life.tasks.aborted.delay(f"{key}-{n}", 0.15 + n / 200) for n in range(30)]
    taken = 0
    for n, result in enumerate(results):
        name = f"{key}-{n}"
        life.begun(name)
        taken += life.take_away(name)  # a body that is over has none left
        result.get(timeout=15, propagate=False)
        assert result.state in ("SUCCESS", "FAILURE")
        assert life.runs(name) == 1
    assert taken >= 10
    assert life.tasks.early.delay(key).get(timeout=15) == 1
    assert worker.running


def test_a_call_that_keeps_the_interpreter(life: Life, worker: Worker, key: str, tmp_path: Path) -> None:
    """B11: a C call of the body keeps the GIL for longer than the ttl: nothing renews, and the body knows after it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDWR), "wb", buffering=0) as pipe:
        result = life.tasks.stuck.delay(key, str(path))
        _outlived(life, worker, key, result, lambda: pipe.write(b"."))


def test_a_process_that_stands_still(life: Life, worker: Worker, key: str) -> None:
    """B11, B51: the body's process is stopped for longer than the ttl: when it goes on, the body knows."""
    result = life.tasks.knows.delay(key)
    pid = eventually(lambda: life.noted(f"begun:{key}"))[0]["pid"]
    os.kill(pid, signal.SIGSTOP)

    def wake() -> None:
        life.go(key)
        os.kill(pid, signal.SIGCONT)

    _outlived(life, worker, key, result, wake)


class TestOtherPools:
    """A pool whose bodies cannot be ended."""

    def test_abort_acts_as_warn(self, life: Life, other: tuple[str, Worker], key: str) -> None:
        """on_lost="abort" is said at start to act as "warn", with the tasks' names; the body ends in its own time."""
        pool, worker = other
        worker.wait_for_log('on_lost="abort" acts as "warn" in the')
        result = life.tasks.aborted.apply_async([key, 30], queue=pool)
        life.begun(key)
        assert life.take_away(key)
        life.note(f"lease_lost:{result.id}")
        life.go(key)
        assert result.get(timeout=15) == 1

    def test_a_body_that_does_not_yield(self, life: Life, other: tuple[str, Worker], key: str, tmp_path: Path) -> None:
        """B11: gevent, ttl 1.5 s, and the body spins: it knows of the loss when it looks. In a thread the lease lives.

        Another's lock stays."""
        pool, worker = other
        path = tmp_path / "end"
        result = life.tasks.spins.apply_async([key, str(path)], queue=pool)
        if pool == "gevent":
            _outlived(life, worker, key, result, path.touch)
            return
        first = life.begun(key)
        end = time.time() + 3
        while time.time() < end:
            holder = life.holder(key)
            assert holder is not None
            assert holder.token == first["token"]
            time.sleep(0.05)
        path.touch()
        assert result.get(timeout=15) is False
