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
from ..stage import Stage, resource


@pytest.fixture(scope="module", params=["prefork", "solo"])
def worker(request: pytest.FixtureRequest, stage: Stage) -> Any:
    """A worker whose bodies run in the main thread."""
    worker = stage.start_worker(pool=request.param, concurrency=1)
    yield worker
    worker.kill()


@pytest.fixture(scope="module", params=["threads", "gevent"])
def other(request: pytest.FixtureRequest, stage: Stage) -> Any:
    """A worker whose bodies cannot be ended, with a queue of its own."""
    worker = stage.start_worker(pool=request.param, concurrency=4, args=["-Q", request.param])
    yield request.param, worker
    worker.kill()


def _outlived(stage: Stage, worker: Worker, name: str, result: Any, wake: Callable[[], Any]) -> None:
    """The body of ``result`` cannot be heard until ``wake()``; before that, its lease ends and another has the lock.

    Then the body knows of it at once, a warning says so, and neither the other's lock nor a record is written."""
    first = stage.begun(name)
    records = set(stage.locks.keys("*:record:*"))
    eventually(lambda: stage.holder(name) is None)
    with stage.outsider(resource(name)) as outsider:
        wake()
        assert result.get(timeout=30) is True
        assert stage.note(f"signal:lease_lost:{result.id}")["reason"]
        worker.wait_for_log(f"[{result.id}]: the lease of lock {outsider.key_id} is LOST, another run may start")
        holder = stage.holder(name)
        assert holder is not None
        assert outsider.lease is not None
        assert holder.token == outsider.lease.token
        assert holder.fence > first["fence"]
        assert set(stage.locks.keys("*:record:*")) == records


def test_max_hold(stage: Stage, worker: Worker, name: str) -> None:
    """B40: after max_hold (1 s) the lease is not renewed any more, is told to be lost, and is free for others."""
    result = stage.tasks.limited.delay(name, 30)
    began = stage.begun(name)["at"]
    assert stage.note(f"signal:lease_lost:{result.id}")["reason"] == "max_hold is over"
    assert 0.6 < time.time() - began < 5
    eventually(lambda: stage.holder(name) is None, 2)
    stage.go(name)
    assert result.get(timeout=15) == 1


def test_abort(stage: Stage, worker: Worker, name: str) -> None:
    """B33: the body is ended by LeaseLost; autoretry_for=(Exception,) does not retry that; finally blocks have run."""
    result = stage.tasks.aborted.apply_async([name, 30], link_error=stage.tasks.told.s(where=f"error:{name}"))
    stage.begun(name)
    assert stage.take_away(name)
    with pytest.raises(LeaseLost):
        result.get(timeout=15)
    assert stage.note(f"error:{name}")["error"] == "LeaseLost"
    assert stage.notes.get(f"unwound:{name}") == "1"
    assert stage.runs(name) == 1
    assert stage.holder(name) is None
    assert stage.tasks.aborted.delay(name).get(timeout=15) == 2  # the same process goes on


def test_abort_that_is_retried(stage: Stage, worker: Worker, name: str) -> None:
    """B33: with LeaseLost named in autoretry_for the message runs again."""
    result = stage.tasks.named.delay(name, 30)
    stage.begun(name)
    assert stage.take_away(name)
    assert result.get(timeout=15) == 2
    assert stage.begun(name)["retries"] == 1


def test_no_abort_after_the_body(stage: Stage, worker: Worker, name: str) -> None:
    """A loss that is seen as the body ends ends nothing: 30 bodies lose their lease about when they return."""
    results = [stage.tasks.aborted.delay(f"{name}-{n}", 0.15 + n / 200) for n in range(30)]
    taken = 0
    for n, result in enumerate(results):
        one = f"{name}-{n}"
        stage.begun(one)
        taken += stage.take_away(one)  # a body that is over has none left
        result.get(timeout=15, propagate=False)
        assert result.state in ("SUCCESS", "FAILURE")
        assert stage.runs(one) == 1
    assert taken >= 10
    assert stage.tasks.early.delay(name).get(timeout=15) == 1
    assert worker.running


def test_a_call_that_keeps_the_interpreter(stage: Stage, worker: Worker, name: str, tmp_path: Path) -> None:
    """B11: a C call of the body keeps the GIL for longer than the ttl: nothing renews, and the body knows after it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDWR), "wb", buffering=0) as pipe:
        result = stage.tasks.stuck.delay(name, str(path))
        _outlived(stage, worker, name, result, lambda: pipe.write(b"."))


def test_a_process_that_stands_still(stage: Stage, worker: Worker, name: str) -> None:
    """B11, B51: the body's process is stopped for longer than the ttl: when it goes on, the body knows."""
    result = stage.tasks.knows.delay(name)
    pid = eventually(lambda: stage.noted(f"begun:{name}"))[0]["pid"]
    os.kill(pid, signal.SIGSTOP)

    def wake() -> None:
        stage.go(name)
        os.kill(pid, signal.SIGCONT)

    _outlived(stage, worker, name, result, wake)


class TestOtherPools:
    """A pool whose bodies cannot be ended."""

    def test_abort_acts_as_warn(self, stage: Stage, other: tuple[str, Worker], name: str) -> None:
        """on_lost="abort" is said at start to act as "warn", with the tasks' names; the body ends in its own time."""
        pool, worker = other
        worker.wait_for_log('on_lost="abort" acts as "warn" in the')
        result = stage.tasks.aborted.apply_async([name, 30], queue=pool)
        stage.begun(name)
        assert stage.take_away(name)
        stage.note(f"signal:lease_lost:{result.id}")
        stage.go(name)
        assert result.get(timeout=15) == 1

    def test_a_body_that_does_not_yield(
        self, stage: Stage, other: tuple[str, Worker], name: str, tmp_path: Path
    ) -> None:
        """B11: gevent, ttl 1.5 s, and the body spins: it knows of the loss when it looks. In a thread the lease lives.

        Another's lock stays."""
        pool, worker = other
        path = tmp_path / "end"
        result = stage.tasks.spins.apply_async([name, str(path)], queue=pool)
        if pool == "gevent":
            _outlived(stage, worker, name, result, path.touch)
            return
        first = stage.begun(name)
        end = time.time() + 3
        while time.time() < end:
            holder = stage.holder(name)
            assert holder is not None
            assert holder.token == first["token"]
            time.sleep(0.05)
        path.touch()
        assert result.get(timeout=15) is False
