"""Ends that a body sees, and ends that are no end: limits, shutdowns, restarts. Nothing is left."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from ...support.waiting import eventually
from ...support.worker import Worker
from .life import Life

#: Below the ttl of 20 s, with room for a busy machine.
SOON = 12.0


@pytest.fixture(scope="module")
def worker(life: Life) -> Worker:
    """A prefork worker."""
    return life.start_worker(concurrency=2)


def test_soft_limit(life: Life, worker: Worker, key: str) -> None:
    """B37: the body's own soft limit is its failure; the resource is free at once (ttl 20 s)."""
    result = life.tasks.early.apply_async([key, 60], soft_time_limit=1)
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        result.get(timeout=15)
    eventually(lambda: life.holder(key) is None, SOON)
    assert life.tasks.early.delay(key).get(timeout=15) == 2


def test_caught_soft_limit(life: Life, worker: Worker, key: str) -> None:
    """B37: a body that catches its soft limit has a result like any other, and its lock is freed."""
    assert life.tasks.cleans_up.apply_async([key, 60], soft_time_limit=1).get(timeout=15) == "cleaned up"
    assert life.holder(key) is None


def test_soft_limit_during_a_wait(life: Life, worker: Worker, key: str) -> None:
    """B37: a message that waits is not counted by the limit; it ends as it would have without a wait."""
    with life.outsider(key):
        result = life.tasks.early.apply_async([key, 0], soft_time_limit=1)
        life.waited(result.id, 8)
    assert result.get(timeout=15) == 1


def test_warm_shutdown(life: Life, key: str) -> None:
    """B37: SIGTERM: renewal goes on until the body ends (ttl 1.5 s), no second run starts, nothing is left."""
    worker = life.start_worker(concurrency=1, args=["-Q", key])
    result = life.tasks.beside.apply_async([key, 60], queue=key)
    first = life.begun(key)
    worker.send(signal.SIGTERM)
    end = time.time() + 2.5
    while time.time() < end:
        holder = life.holder(key)
        assert holder is not None
        assert holder.token == first["token"]
        time.sleep(0.05)
    assert worker.running
    life.go(key)
    assert result.get(timeout=15) == 1
    eventually(lambda: not worker.running)
    assert worker.exit_code == 0
    assert life.holder(key) is None
    assert life.noted(f"lease_lost:{result.id}") == []


def test_cold_shutdown(life: Life, key: str) -> None:
    """B37: SIGQUIT: the body is ended, its lock is gone far before its ttl of 20 s, and the message runs elsewhere."""
    worker = life.start_worker(concurrency=1, args=["-Q", key])
    life.tasks.late.apply_async([key, 60], queue=key)
    life.begun(key)
    worker.send(signal.SIGQUIT)
    eventually(lambda: not worker.running, 20)
    eventually(lambda: life.holder(key) is None, SOON)
    life.redeliver()
    life.start_worker(concurrency=1, args=["-Q", key])
    assert life.begun(key)["retries"] == 0
    assert life.runs(key) == 2


@pytest.mark.slow
def test_soft_shutdown(life: Life, key: str) -> None:
    """B37: worker_soft_shutdown_timeout: the body has that long; then it is as above."""
    conf = {"worker_soft_shutdown_timeout": 1.0, "worker_enable_soft_shutdown_on_idle": True}
    worker = life.start_worker(concurrency=1, args=["-Q", key], conf=conf)
    life.tasks.late.apply_async([key, 60], queue=key)
    life.begun(key)
    worker.send(signal.SIGQUIT)
    eventually(lambda: not worker.running, 20)
    eventually(lambda: life.holder(key) is None, SOON)
    life.redeliver()
    life.start_worker(concurrency=1, args=["-Q", key])
    life.begun(key)
    assert life.runs(key) == 2


@pytest.mark.slow
def test_solo_shutdown(life: Life, key: str) -> None:
    """B37: SIGTERM in the solo pool: the body ends in peace, and nothing is left."""
    worker = life.start_worker(pool="solo", args=["-Q", key])
    result = life.tasks.short.apply_async([key, 2], queue=key)
    life.begun(key)
    worker.send(signal.SIGTERM)
    assert result.get(timeout=15) == 1
    eventually(lambda: not worker.running)
    assert life.holder(key) is None


def _cut_off(life: Life, worker: Worker) -> int:
    """The broker closes its connections to the worker's main process; how many."""
    ports = {connection.laddr.port for connection in psutil.Process(worker.pid).net_connections() if connection.laddr}
    with life.server.client(0) as client:
        known = [each for each in client.client_list() if each["db"] == "0"]
        ids = [each["id"] for each in known if int(each["addr"].rpartition(":")[2]) in ports]
        return sum(client.client_kill_filter(_id=each) for each in ids)


def test_broker_loss(life: Life, key: str) -> None:
    """B37: worker_cancel_long_running_tasks_on_connection_loss: the body unwinds, its message comes back and runs.

    It does not wait for the lease (ttl 20 s): the body itself has freed it. No lock is left."""
    conf = {"worker_cancel_long_running_tasks_on_connection_loss": True, "singleton_lock_free_killed": False}
    worker = life.start_worker(concurrency=1, args=["-Q", key], conf=conf)
    result = life.tasks.late.apply_async([key, 60], queue=key)
    life.begun(key)
    at = time.time()
    assert _cut_off(life, worker) > 0
    again = life.begun(key)
    assert again["id"] == result.id
    assert again["at"] - at < SOON
    eventually(lambda: result.state == "SUCCESS")
    assert result.result == 2
    assert life.notes.get(f"unwound:{key}") == "1"
    assert life.runs(key) == 2
    eventually(lambda: life.holder(key) is None)


def test_max_tasks_per_child(life: Life, key: str) -> None:
    """B36: --max-tasks-per-child=1: each child ends after its task, leases or not; no lock is left."""
    worker = life.start_worker(concurrency=2, args=["-Q", key, "--max-tasks-per-child", "1"])
    results = [life.tasks.short.apply_async([f"{key}-{n}", 0.5], queue=key) for n in range(6)]
    assert [result.get(timeout=30) for result in results] == [1] * 6
    pids = {life.begun(f"{key}-{n}")["pid"] for n in range(6)}
    assert len(pids) == 6
    assert life.locks.keys(f"*:lock:res:{key}*") == []
    eventually(lambda: len(worker.children()) == 2 and not pids & set(worker.children()))
    worker.stop()


def test_revoked_before_it_starts(life: Life, worker: Worker, key: str) -> None:
    """B37, B53: a waiting message that is revoked never runs, and holds nothing."""
    with life.outsider(key):
        result = life.tasks.early.delay(key)
        life.waited(result.id)
        life.app.control.revoke(result.id)
        eventually(lambda: result.state == "REVOKED")
    time.sleep(0.5)
    assert life.runs(key) == 0
    assert life.holder(key) is None
