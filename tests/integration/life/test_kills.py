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
from ..stage import Stage, lock_name, resource

#: Below the ttl of 20 s: Celery itself may see a child's death as late as 5 s after, and the machine may be busy.
SOON = 12.0
#: Celery 5.6 tells a task nothing of its hard limit.
HOOKS_AFTER_A_HARD_LIMIT = hasattr(Task, "retry_on_worker_lost")


@pytest.fixture(scope="module")
def worker(stage: Stage) -> Worker:
    """A prefork worker of one child: with more of them Celery itself may see a child's death as late as 5 s after."""
    return stage.start_worker(concurrency=1)


def _killed(stage: Stage, name: str, how: Any) -> float:
    """Kills the run of ``name`` by ``how(pid, task id)``; when that was."""
    first = stage.begun(name)
    holder = stage.holder(name)
    assert holder is not None
    assert holder.token == first["token"]
    at = time.time()
    how(first["pid"], first["task_id"])
    return at


def _kill(pid: int, _: str) -> None:
    os.kill(pid, signal.SIGKILL)


def _still(stage: Stage, name: str, taken: Taken | None) -> None:
    """The resource is held as ``taken`` says, and not by anybody else since."""
    now = stage.holder(name)
    assert now is not None
    assert taken is not None
    assert (now.token, now.fence) == (taken.token, taken.fence)


class TestGivenBack:
    """The message comes back, and runs at once."""

    @pytest.mark.parametrize("task", ["late", "late_skip"])
    def test_sigkill(self, stage: Stage, worker: Worker, name: str, task: str) -> None:
        """B15: SIGKILL (or the kernel for lack of memory): the redelivered message runs long before the ttl is over."""
        result = getattr(stage.tasks, task).delay(name, 60)
        at = _killed(stage, name, _kill)
        again = stage.begun(name)
        print(f"started {again['at'] - at:.2f} s after the kill, ttl 20 s")
        assert again["at"] - at < SOON
        assert again["task_id"] == result.id
        assert result.get(timeout=15) == 2
        assert stage.runs(name) == 2
        assert stage.noted(f"signal:lock_skipped:{result.id}") == []
        eventually(lambda: stage.holder(name) is None)

    def test_retry_on_worker_lost(self, stage: Stage, worker: Worker, name: str) -> None:
        """B15: with task_retry_on_worker_lost Celery sends a retry of its own; it finds the lock free."""
        if not hasattr(Task, "retry_on_worker_lost"):
            pytest.skip("since Celery 5.7")
        result = stage.tasks.retried.delay(name, 60)
        at = _killed(stage, name, _kill)
        again = stage.begun(name)
        assert again["at"] - at < SOON
        assert again["retries"] == 1
        assert result.get(timeout=15) == 2

    def test_hard_limit(self, stage: Stage, worker: Worker, name: str) -> None:
        """B15: a hard limit with acks_on_failure_or_timeout=False: delivered again before the child is dead."""
        result = stage.tasks.kept.apply_async([name, 60], time_limit=1)
        first = stage.begun(name)
        again = stage.begun(name)
        assert again["at"] - first["at"] < 1 + SOON
        eventually(lambda: stage.app.AsyncResult(result.id).state == "SUCCESS")
        assert stage.runs(name) == 2


class TestOver:
    """The message is over, and the resource is free."""

    def test_hard_limit(self, stage: Stage, worker: Worker, name: str) -> None:
        """B15: FAILURE, and the next task runs long before the ttl is over."""
        result = stage.tasks.early.apply_async([name, 60], time_limit=1)
        stage.begun(name)
        with pytest.raises(Exception, match="TimeLimitExceeded"):
            result.get(timeout=15)
        eventually(lambda: stage.holder(name) is None, SOON)
        assert stage.tasks.early.delay(name).get(timeout=15) == 2

    @pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGKILL"])
    def test_revoke(self, stage: Stage, worker: Worker, name: str, signal_name: str) -> None:
        """B37: revoke(terminate=True): REVOKED; the body may unwind with TERM and cannot with KILL."""
        result = stage.tasks.early.delay(name, 60)
        _killed(stage, name, lambda _, task_id: stage.app.control.revoke(task_id, terminate=True, signal=signal_name))
        eventually(lambda: stage.holder(name) is None, SOON)
        eventually(lambda: result.state == "REVOKED")
        assert stage.tasks.early.delay(name).get(timeout=15) == 2
        assert stage.notes.get(f"unwound:{name}") == (None if signal_name == "SIGKILL" else "1")

    def test_sigkill_without_redelivery(self, stage: Stage, worker: Worker, name: str) -> None:
        """B15: acknowledged early: WorkerLostError, and the resource is free."""
        result = stage.tasks.early.delay(name, 60)
        _killed(stage, name, _kill)
        with pytest.raises(Exception, match="exited prematurely"):
            result.get(timeout=15)
        eventually(lambda: stage.holder(name) is None, SOON)

    def test_resting(self, stage: Stage, worker: Worker, name: str) -> None:
        """at_least holds for a killed run, too: the resource rests, for others."""
        stage.tasks.resting.delay(name, 60)
        _killed(stage, name, _kill)
        eventually(lambda: (found := stage.holder(name)) is not None and found.resting)
        taken = stage.holder(name)
        assert taken is not None
        assert taken.remaining is not None
        assert 0 < taken.remaining <= 2
        stage.go(name)
        eventually(lambda: stage.holder(name) is None)


class TestNotOurs:
    """What the parent leaves alone."""

    def test_another_owner(self, stage: Stage, worker: Worker, name: str) -> None:
        """B15: another owner has the resource when the child dies: its lock stays as it is."""
        result = stage.tasks.early.delay(name, 60)
        pid = stage.begun(name)["pid"]
        stage.take_away(name)
        with stage.outsider(resource(name)):
            mine = stage.holder(name)
            _kill(pid, "")
            with pytest.raises(Exception, match="exited prematurely"):
                result.get(timeout=30)  # it is stored when the parent has looked at the lock
            _still(stage, name, mine)

    def test_another_owner_before_the_hooks(self, stage: Stage, worker: Worker, name: str) -> None:
        """B15: a hard limit strikes and another owner takes the resource while the parent runs the task's hooks.

        They have no lease there; the lock always has an expiry of its ttl at most; the new owner's lock stays."""
        result = stage.tasks.lingers.apply_async([name, 60], time_limit=3)  # it is renewed once by then
        first = stage.begun(name)
        while not (over := stage.noted(f"over:{name}")):
            assert 0 < stage.locks.pttl(lock_name(resource(name))) <= 6_000
            time.sleep(0.005)
        assert over == [{"pid": worker.pid, "lease": None}]
        hooks = ["on_failure", "after_return"] if HOOKS_AFTER_A_HARD_LIMIT else []
        assert stage.noted(f"hook:{name}") == [{"hook": hook, "pid": worker.pid, "lease": None} for hook in hooks]
        assert result.state == "FAILURE"
        threads = psutil.Process(worker.pid).num_threads()
        stage.take_away(name)
        with stage.outsider(resource(name)):
            mine = stage.holder(name)
            stage.notes.rpush(f"end:{name}", 1)
            eventually(lambda: first["pid"] not in worker.children())
            eventually(lambda: psutil.Process(worker.pid).num_threads() <= threads, message="the look at the lock")
            _still(stage, name, mine)

    @pytest.mark.slow
    def test_switched_off(self, stage: Stage, name: str) -> None:
        """singleton_lock_free_killed=False: the redelivered message waits for the lease's end (ttl 7 s)."""
        stage.start_worker(conf={"singleton_lock_free_killed": False}, args=["-Q", "off"], concurrency=1)
        stage.tasks.lasting.apply_async([name, 60], queue="off")
        first = stage.begun(name)
        _kill(first["pid"], "")
        again = stage.begun(name)
        assert stage.noted(f"signal:lock_waiting:{first['task_id']}") != []
        assert again["fence"] > first["fence"]

    @pytest.mark.slow
    def test_whole_worker(self, stage: Stage, name: str) -> None:
        """B15: with the parent dead as well, the redelivered message waits for the lease's end, then runs."""
        doomed = stage.start_worker(args=["-Q", "doomed"], concurrency=1)
        result = stage.tasks.short.apply_async([name, 60], queue="doomed")
        first = stage.begun(name)
        doomed.kill()
        stage.redeliver()
        stage.start_worker(args=["-Q", "doomed"], concurrency=1)
        again = stage.begun(name)
        assert again["fence"] > first["fence"]
        assert result.get(timeout=15) == 2
