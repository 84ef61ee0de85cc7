"""Ends that a body does not see (prefork): the parent frees the dead child's lock, and nobody else's."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
import pytest
from celery import Task

from celery_singleton_lock.locks.answers import Taken

from ...support.waiting import eventually
from ...support.worker import Worker
from .life import Life

#: Below the ttl of 20 s: Celery itself may see a child's death as late as 5 s after, and the machine may be busy.
SOON = 12.0
#: Celery 5.6 tells a task nothing of its hard limit.
HOOKS_AFTER_A_HARD_LIMIT = hasattr(Task, "retry_on_worker_lost")


@pytest.fixture(scope="module")
def worker(life: Life) -> Worker:
    """A prefork worker of one child: with more of them Celery itself may see a child's death as late as 5 s after."""
    return life.start_worker(concurrency=1)


def _killed(life: Life, key: str, how: Any) -> float:
    """Kills the run of ``key`` by ``how(pid, task id)``; when that was."""
    first = life.begun(key)
    holder = life.holder(key)
    assert holder is not None
    assert holder.token == first["token"]
    at = time.time()
    how(first["pid"], first["id"])
    return at


def _kill(pid: int, _: str) -> None:
    os.kill(pid, signal.SIGKILL)


def _still(life: Life, key: str, taken: Taken | None) -> None:
    """The resource is held as ``taken`` says, and not by anybody else since."""
    now = life.holder(key)
    assert now is not None
    assert taken is not None
    assert (now.token, now.fence) == (taken.token, taken.fence)


class TestGivenBack:
    """The message comes back, and runs at once."""

    @pytest.mark.parametrize("task", ["late", "late_skip"])
    def test_sigkill(self, life: Life, worker: Worker, key: str, task: str) -> None:
        """B15: SIGKILL (or the kernel for lack of memory): the redelivered message runs long before the ttl is over."""
        result = getattr(life.tasks, task).delay(key, 60)
        at = _killed(life, key, _kill)
        again = life.begun(key)
        print(f"started {again['at'] - at:.2f} s after the kill, ttl 20 s")
        assert again["at"] - at < SOON
        assert again["id"] == result.id
        assert result.get(timeout=15) == 2
        assert life.runs(key) == 2
        assert life.noted(f"lock_skipped:{result.id}") == []
        eventually(lambda: life.holder(key) is None)

    def test_retry_on_worker_lost(self, life: Life, worker: Worker, key: str) -> None:
        """B15: with task_retry_on_worker_lost Celery sends a retry of its own; it finds the lock free."""
        if not hasattr(Task, "retry_on_worker_lost"):
            pytest.skip("since Celery 5.7")
        result = life.tasks.retried.delay(key, 60)
        at = _killed(life, key, _kill)
        again = life.begun(key)
        assert again["at"] - at < SOON
        assert again["retries"] == 1
        assert result.get(timeout=15) == 2

    def test_hard_limit(self, life: Life, worker: Worker, key: str) -> None:
        """B15: a hard limit with acks_on_failure_or_timeout=False: delivered again before the child is dead."""
        result = life.tasks.kept.apply_async([key, 60], time_limit=1)
        first = life.begun(key)
        again = life.begun(key)
        assert again["at"] - first["at"] < 1 + SOON
        eventually(lambda: life.app.AsyncResult(result.id).state == "SUCCESS")
        assert life.runs(key) == 2


class TestOver:
    """The message is over, and the resource is free."""

    def test_hard_limit(self, life: Life, worker: Worker, key: str) -> None:
        """B15: FAILURE, and the next task runs long before the ttl is over."""
        result = life.tasks.early.apply_async([key, 60], time_limit=1)
        life.begun(key)
        with pytest.raises(Exception, match="TimeLimitExceeded"):
            result.get(timeout=15)
        eventually(lambda: life.holder(key) is None, SOON)
        assert life.tasks.early.delay(key).get(timeout=15) == 2

    @pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
    def test_revoke(self, life: Life, worker: Worker, key: str, name: str) -> None:
        """B37: revoke(terminate=True): REVOKED; the body may unwind with TERM and cannot with KILL."""
        result = life.tasks.early.delay(key, 60)
        _killed(life, key, lambda _, task_id: life.app.control.revoke(task_id, terminate=True, signal=name))
        eventually(lambda: life.holder(key) is None, SOON)
        eventually(lambda: result.state == "REVOKED")
        assert life.tasks.early.delay(key).get(timeout=15) == 2
        assert life.notes.get(f"unwound:{key}") == (None if name == "SIGKILL" else "1")

    def test_sigkill_without_redelivery(self, life: Life, worker: Worker, key: str) -> None:
        """B15: acknowledged early: WorkerLostError, and the resource is free."""
        result = life.tasks.early.delay(key, 60)
        _killed(life, key, _kill)
        with pytest.raises(Exception, match="exited prematurely"):
            result.get(timeout=15)
        eventually(lambda: life.holder(key) is None, SOON)

    def test_resting(self, life: Life, worker: Worker, key: str) -> None:
        """at_least holds for a killed run, too: the resource rests, for others."""
        life.tasks.resting.delay(key, 60)
        _killed(life, key, _kill)
        taken = eventually(lambda: (found := life.holder(key)) and found.resting and found)
        assert 0 < taken.remaining <= 2
        life.go(key)
        eventually(lambda: life.holder(key) is None)


class TestNotOurs:
    """What the parent leaves alone."""

    def test_another_owner(self, life: Life, worker: Worker, key: str) -> None:
        """B15: another owner has the resource when the child dies: its lock stays as it is."""
        result = life.tasks.early.delay(key, 60)
        pid = life.begun(key)["pid"]
        life.take_away(key)
        with life.outsider(key):
            mine = life.holder(key)
            _kill(pid, "")
            with pytest.raises(Exception, match="exited prematurely"):
                result.get(timeout=30)  # it is stored when the parent has looked at the lock
            _still(life, key, mine)

    def test_another_owner_before_the_hooks(self, life: Life, worker: Worker, key: str) -> None:
        """B15: a hard limit strikes and another owner takes the resource while the parent runs the task's hooks.

        They have no lease there; the lock always has an expiry of its ttl at most; the new owner's lock stays."""
        result = life.tasks.lingers.apply_async([key, 60], time_limit=3)  # it is renewed once by then
        first = life.begun(key)
        while not (over := life.noted(f"over:{key}")):
            assert 0 < life.locks.pttl(life.lock(key)) <= 6_000
            time.sleep(0.005)
        assert over == [{"pid": worker.pid, "lease": None}]
        hooks = ["on_failure", "after_return"] if HOOKS_AFTER_A_HARD_LIMIT else []
        assert life.noted(f"hook:{key}") == [{"hook": name, "pid": worker.pid, "lease": None} for name in hooks]
        assert result.state == "FAILURE"
        threads = psutil.Process(worker.pid).num_threads()
        life.take_away(key)
        with life.outsider(key):
            mine = life.holder(key)
            life.notes.rpush(f"end:{key}", 1)
            eventually(lambda: first["pid"] not in worker.children())
            eventually(lambda: psutil.Process(worker.pid).num_threads() <= threads, message="the look at the lock")
            _still(life, key, mine)

    @pytest.mark.slow
    def test_switched_off(self, life: Life, key: str) -> None:
        """singleton_lock_free_killed=False: the redelivered message waits for the lease's end (ttl 7 s)."""
        life.start_worker(conf={"singleton_lock_free_killed": False}, args=["-Q", "off"], concurrency=1)
        life.tasks.lasting.apply_async([key, 60], queue="off")
        first = life.begun(key)
        _kill(first["pid"], "")
        again = life.begun(key)
        assert life.noted(f"lock_waiting:{first['id']}") != []
        assert again["fence"] > first["fence"]

    @pytest.mark.slow
    def test_whole_worker(self, life: Life, key: str) -> None:
        """B15: with the parent dead as well, the redelivered message waits for the lease's end, then runs."""
        doomed = life.start_worker(args=["-Q", "doomed"], concurrency=1)
        result = life.tasks.short.apply_async([key, 60], queue="doomed")
        first = life.begun(key)
        doomed.kill()
        life.redeliver()
        life.start_worker(args=["-Q", "doomed"], concurrency=1)
        again = life.begun(key)
        assert again["fence"] > first["fence"]
        assert result.get(timeout=15) == 2
