"""Processes, threads, sockets and keys: none too many, none left, and none of another process."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest
from redis.client import Monitor

from ...support.waiting import eventually
from ...support.worker import Worker
from ..stage import Stage, lock_name, resource


@pytest.mark.slow
def test_a_client_used_before_the_fork(stage: Stage, name: str) -> None:
    """B36: the parent has used the store; 500 tasks in four children: no mixed replies, no lock left."""
    # At its own ttl of 0.3 s a call is bound to 75 ms, which may pass on a busy machine.
    conf = {"task_annotations": {stage.tasks.quick.name: {"lock_ttl": 4}}}
    worker = stage.start_worker(concurrency=4, args=["-Q", name], env={"TEST_USE_IN_PARENT": "1"}, conf=conf)
    results = [stage.tasks.quick.apply_async([n], queue=name) for n in range(500)]
    assert [result.get(timeout=60) for result in results] == list(range(500))
    assert stage.runs("in-the-parent") == 1
    log = worker.log()
    assert not [word for word in ("Protocol", "lock store cannot be used") if word in log]
    eventually(lambda: not stage.locks.keys("*:lock:*"), 3)
    worker.stop()


@pytest.fixture(scope="module")
def worker(stage: Stage) -> Worker:
    """A prefork worker of one child."""
    return stage.start_worker(concurrency=1, args=["-Q", "forks"])


def _held_by(stage: Stage, name: str, token: str) -> bool:
    holder = stage.holder(name)
    return holder is not None and holder.token == token


def _has_ended(pid: int) -> bool:
    """Nobody may have waited for it yet."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_body_that_forks(stage: Stage, worker: Worker, name: str, way: str) -> None:
    """B36: a forked process outlives the body: the body's lock is freed at its end and stays so.

    The process's own lock (ttl 1.5 s) is renewed; it neither renews, nor frees, nor loses the body's."""
    result = stage.tasks.forks.apply_async([name, way], queue="forks")
    first, child = stage.begun(name), stage.begun(f"{name}-child")
    assert first["pid"] != child["pid"]
    for _ in range(25):
        assert _held_by(stage, name, first["token"])
        assert _held_by(stage, f"{name}-child", child["token"])
        time.sleep(0.1)
    stage.go(name)
    assert result.get(timeout=15) is False
    for _ in range(12):
        assert stage.holder(name) is None
        assert _held_by(stage, f"{name}-child", child["token"])
        time.sleep(0.1)
    stage.go(f"{name}-child")
    eventually(lambda: _has_ended(child["pid"]))
    assert stage.holder(name) is None
    assert stage.holder(f"{name}-child") is None
    assert stage.noted(f"signal:lease_lost:{result.id}") == []


def test_a_forked_process_renews_its_own_alone(stage: Stage, worker: Worker, name: str) -> None:
    """B36: the body's process stands still: its lease ends by its ttl (1.5 s), though its forked child is awake."""
    result = stage.tasks.forks.apply_async([name, "fork"], queue="forks")
    first, child = stage.begun(name), stage.begun(f"{name}-child")
    os.kill(first["pid"], signal.SIGSTOP)
    try:
        eventually(lambda: stage.holder(name) is None, 15)
        assert _held_by(stage, f"{name}-child", child["token"])
    finally:
        stage.go(name)
        stage.go(f"{name}-child")
        os.kill(first["pid"], signal.SIGCONT)
    assert result.get(timeout=15) is True


def test_a_forked_process_that_leaves_the_call(stage: Stage, worker: Worker, name: str) -> None:
    """B36: the body forks, and the child returns through the locked call: the lock is still the parent's (ttl 20 s)."""
    result = stage.tasks.leaves_twice.apply_async([name], queue="forks")
    first = stage.begun(name)
    stage.note(f"left:{name}")
    assert _held_by(stage, name, first["token"])
    stage.go(name)
    assert result.get(timeout=15) is False
    assert stage.holder(name) is None


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_many_short_tasks(stage: Stage, name: str, pool: str) -> None:
    """B40: 5000 tasks of no length, ttl 0.3 s: afterwards no name, and no thread or socket more than before."""
    count = 5000 if pool == "prefork" else 1000
    worker = stage.start_worker(pool=pool, concurrency=1 if pool == "prefork" else 4, args=["-Q", name])
    stage.tasks.quick.apply_async([0], queue=name, ignore_result=False).get(timeout=20)
    pid, threads, files = stage.tasks.threads.apply_async(queue=name).get(timeout=20)
    with stage.app.producer_or_acquire() as producer:
        for number in range(count):
            stage.tasks.quick.apply_async([number], queue=name, ignore_result=True, producer=producer)
    again = stage.tasks.threads.apply_async(queue=name).get(timeout=120)
    eventually(lambda: not stage.locks.keys("*:lock:*"), 5)
    assert again[0] == pid
    assert again[1] <= threads + 5, "the pool's own threads, and one that renews"
    assert again[2] <= files + 8
    worker.stop(20)
    assert all(stage.locks.ttl(name) > 0 for name in stage.locks.keys("*"))


def _scripts(monitor: Monitor, lock: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each call of a script about ``lock`` until an ECHO: its arguments, and the commands and values it wrote there."""
    call: tuple[str, list[tuple[str, str]]] = ("", [])
    while True:
        seen = monitor.next_command()
        command, _, rest = seen["command"].partition(" ")
        if seen["client_type"] == "lua":
            name, _, value = rest.partition(" ")
            if name == lock and command in ("SET", "PEXPIRE", "DEL"):
                call[1].append((command, value))
        elif command.startswith("EVAL") or command == "ECHO":
            if lock in call[0]:
                yield call
            call = (rest, [])
            if command == "ECHO":
                return


@pytest.mark.slow
def test_one_key_in_a_row(stage: Stage, name: str) -> None:
    """B40: 500 runs on one name, one after the other (ttl 0.5 s), some of which end when they are about to be renewed.

    Each finds the lock free at once; whatever is written to it is by the run that holds it; nothing is left."""
    worker = stage.start_worker(concurrency=1, args=["-Q", name])
    lengths = [0.15 + n / 500 * 0.03 if n % 20 == 0 else n % 3 / 1000 for n in range(500)]
    with stage.server.client(2, timeout=30) as client, client.monitor() as monitor:
        results = [stage.tasks.at_once.apply_async([name, length], queue=name) for length in lengths]
        assert [result.get(timeout=60) for result in results] == lengths
        assert stage.holder(name) is None
        time.sleep(1)  # what was still renewed would be seen, and what was set again would be there
        assert stage.holder(name) is None
        stage.locks.echo("end")
        counts, holder, former = Counter[str](), "nobody", set[str]()
        for call, writes in _scripts(monitor, lock_name(resource(name))):
            counts["late"] += bool(former.intersection(re.findall(r"\b[0-9a-f]{32}\b", call)))
            for command, value in writes:
                counts[command] += 1
                if command == "SET":
                    holder = value.split(":")[1]
                assert holder in call, f"{command} by a run that does not hold it"
                if command == "DEL":
                    former.add(holder)
                    holder = "nobody"
    assert counts["SET"] == 500
    assert 0 < counts["PEXPIRE"] < 100
    assert counts["late"] <= 25, "more than the renewals that were on their way at a release"
    assert "LOST" not in worker.log()
    worker.stop()


@pytest.mark.slow
def test_several_workers_of_every_pool(stage: Stage, name: str) -> None:
    """Workers of four pools share one queue and few resources; the results are ignored: each run is alone."""
    workers = [
        stage.start_worker(pool=pool, concurrency=3, args=["-Q", name])
        for pool in ("prefork", "threads", "gevent", "solo")
    ]
    for _ in range(120):
        stage.tasks.counts.apply_async([name], queue=name, ignore_result=True)
    eventually(lambda: stage.notes.get(f"count:{name}") == "120", 60)
    assert stage.notes.get(f"most:{name}") in (None, "1")
    for worker in workers:
        worker.stop()
