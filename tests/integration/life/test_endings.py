"""Ends that a body sees, and ends that are no end: limits, shutdowns, restarts. Nothing is left."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from ...support.waiting import eventually
from ...support.worker import Worker
from ..stage import Stage, resource

#: Below the ttl of 20 s, with room for a busy machine.
SOON = 12.0


@pytest.fixture(scope="module")
def worker(stage: Stage) -> Worker:
    """A prefork worker."""
    return stage.start_worker(concurrency=2)


def test_soft_limit(stage: Stage, worker: Worker, name: str) -> None:
    """B37: the body's own soft limit is its failure; the resource is free at once (ttl 20 s)."""
    result = stage.tasks.early.apply_async([name, 60], soft_time_limit=1)
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        result.get(timeout=15)
    eventually(lambda: stage.holder(name) is None, SOON)
    assert stage.tasks.early.delay(name).get(timeout=15) == 2


def test_caught_soft_limit(stage: Stage, worker: Worker, name: str) -> None:
    """B37: a body that catches its soft limit has a result like any other, and its lock is freed."""
    assert stage.tasks.cleans_up.apply_async([name, 60], soft_time_limit=1).get(timeout=15) == "cleaned up"
    assert stage.holder(name) is None


def test_soft_limit_during_a_wait(stage: Stage, worker: Worker, name: str) -> None:
    """B37: a message that waits is not counted by the limit; it ends as it would have without a wait."""
    with stage.outsider(resource(name)):
        result = stage.tasks.early.apply_async([name, 0], soft_time_limit=1)
        stage.until_waiting(result.id, 8)
    assert result.get(timeout=15) == 1


def test_warm_shutdown(stage: Stage, name: str) -> None:
    """B37: SIGTERM: renewal goes on until the body ends (ttl 1.5 s), no second run starts, nothing is left."""
    worker = stage.start_worker(concurrency=1, args=["-Q", name])
    result = stage.tasks.beside.apply_async([name, 60], queue=name)
    first = stage.begun(name)
    worker.send(signal.SIGTERM)
    end = time.time() + 2.5
    while time.time() < end:
        holder = stage.holder(name)
        assert holder is not None
        assert holder.token == first["token"]
        time.sleep(0.05)
    assert worker.running
    stage.go(name)
    assert result.get(timeout=15) == 1
    eventually(lambda: not worker.running)
    assert worker.exit_code == 0
    assert stage.holder(name) is None
    assert stage.noted(f"signal:lease_lost:{result.id}") == []


def test_cold_shutdown(stage: Stage, name: str) -> None:
    """B37: SIGQUIT: the body is ended, its lock is gone far before its ttl of 20 s, and the message runs elsewhere."""
    worker = stage.start_worker(concurrency=1, args=["-Q", name])
    stage.tasks.late.apply_async([name, 60], queue=name)
    stage.begun(name)
    worker.send(signal.SIGQUIT)
    eventually(lambda: not worker.running, 20)
    eventually(lambda: stage.holder(name) is None, SOON)
    stage.redeliver()
    stage.start_worker(concurrency=1, args=["-Q", name])
    assert stage.begun(name)["retries"] == 0
    assert stage.runs(name) == 2


@pytest.mark.slow
def test_soft_shutdown(stage: Stage, name: str) -> None:
    """B37: worker_soft_shutdown_timeout: the body has that long; then it is as above."""
    conf = {"worker_soft_shutdown_timeout": 1.0, "worker_enable_soft_shutdown_on_idle": True}
    worker = stage.start_worker(concurrency=1, args=["-Q", name], conf=conf)
    stage.tasks.late.apply_async([name, 60], queue=name)
    stage.begun(name)
    worker.send(signal.SIGQUIT)
    eventually(lambda: not worker.running, 20)
    eventually(lambda: stage.holder(name) is None, SOON)
    stage.redeliver()
    stage.start_worker(concurrency=1, args=["-Q", name])
    stage.begun(name)
    assert stage.runs(name) == 2


@pytest.mark.slow
def test_solo_shutdown(stage: Stage, name: str) -> None:
    """B37: SIGTERM in the solo pool: the body ends in peace, and nothing is left."""
    worker = stage.start_worker(pool="solo", args=["-Q", name])
    result = stage.tasks.short.apply_async([name, 2], queue=name)
    stage.begun(name)
    worker.send(signal.SIGTERM)
    assert result.get(timeout=15) == 1
    eventually(lambda: not worker.running)
    assert stage.holder(name) is None


def _cut_off(stage: Stage, worker: Worker) -> int:
    """The broker closes its connections to the worker's main process; how many."""
    ports = {connection.laddr.port for connection in psutil.Process(worker.pid).net_connections() if connection.laddr}
    with stage.server.client(0) as client:
        known = [each for each in client.client_list() if each["db"] == "0"]
        ids = [each["id"] for each in known if int(each["addr"].rpartition(":")[2]) in ports]
        return sum(client.client_kill_filter(_id=each) for each in ids)


def test_broker_loss(stage: Stage, name: str) -> None:
    """B37: worker_cancel_long_running_tasks_on_connection_loss: the body unwinds, its message comes back and runs.

    It does not wait for the lease (ttl 20 s): the body itself has freed it. No lock is left."""
    conf = {"worker_cancel_long_running_tasks_on_connection_loss": True, "singleton_lock_free_killed": False}
    worker = stage.start_worker(concurrency=1, args=["-Q", name], conf=conf)
    result = stage.tasks.late.apply_async([name, 60], queue=name)
    stage.begun(name)
    at = time.time()
    assert _cut_off(stage, worker) > 0
    again = stage.begun(name)
    assert again["task_id"] == result.id
    assert again["at"] - at < SOON
    eventually(lambda: result.state == "SUCCESS")
    assert result.result == 2
    assert stage.notes.get(f"unwound:{name}") == "1"
    assert stage.runs(name) == 2
    eventually(lambda: stage.holder(name) is None)


def test_max_tasks_per_child(stage: Stage, name: str) -> None:
    """B36: --max-tasks-per-child=1: each child ends after its task, leases or not; no lock is left."""
    worker = stage.start_worker(concurrency=2, args=["-Q", name, "--max-tasks-per-child", "1"])
    results = [stage.tasks.short.apply_async([f"{name}-{n}", 0.5], queue=name) for n in range(6)]
    assert [result.get(timeout=30) for result in results] == [1] * 6
    pids = {stage.begun(f"{name}-{n}")["pid"] for n in range(6)}
    assert len(pids) == 6
    assert stage.locks.keys(f"*:lock:res:{name}*") == []
    eventually(lambda: len(worker.children()) == 2 and not pids & set(worker.children()))
    worker.stop()


def test_revoked_before_it_starts(stage: Stage, worker: Worker, name: str) -> None:
    """B37, B53: a waiting message that is revoked never runs, and holds nothing."""
    with stage.outsider(resource(name)):
        result = stage.tasks.early.delay(name)
        stage.until_waiting(result.id)
        stage.app.control.revoke(result.id)
        eventually(lambda: result.state == "REVOKED")
    time.sleep(0.5)
    assert stage.runs(name) == 0
    assert stage.holder(name) is None
