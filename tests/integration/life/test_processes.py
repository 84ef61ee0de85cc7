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
from .life import Life


@pytest.mark.slow
def test_a_client_used_before_the_fork(life: Life, key: str) -> None:
    """B36: the parent has used the store; 500 tasks in four children: no mixed replies, no lock left."""
    worker = life.start_worker(concurrency=4, args=["-Q", key], env={"TEST_USE_IN_PARENT": "1"})
    results = [life.tasks.quick.apply_async([n], queue=key) for n in range(500)]
    assert [result.get(timeout=60) for result in results] == list(range(500))
    assert life.runs("in-the-parent") == 1
    log = worker.log()
    assert "Protocol" not in log
    assert "lock store cannot be used" not in log
    eventually(lambda: not life.locks.keys("*:lock:*"), 3)
    worker.stop()


@pytest.fixture(scope="module")
def worker(life: Life) -> Worker:
    """A prefork worker of one child."""
    return life.start_worker(concurrency=1, args=["-Q", "forks"])


def _held_by(life: Life, key: str, token: str) -> bool:
    holder = life.holder(key)
    return holder is not None and holder.token == token


def _has_ended(pid: int) -> bool:
    """Nobody may have waited for it yet."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_body_that_forks(life: Life, worker: Worker, key: str, way: str) -> None:
    """B36: a forked process outlives the body: the body's lock is freed at its end and stays so.

    The process's own lock (ttl 1.5 s) is renewed; it neither renews, nor frees, nor loses the body's."""
    result = life.tasks.forks.apply_async([key, way], queue="forks")
    first, child = life.begun(key), life.begun(f"{key}-child")
    assert first["pid"] != child["pid"]
    for _ in range(25):
        assert _held_by(life, key, first["token"])
        assert _held_by(life, f"{key}-child", child["token"])
        time.sleep(0.1)
    life.go(key)
    assert result.get(timeout=15) is False
    for _ in range(12):
        assert life.holder(key) is None
        assert _held_by(life, f"{key}-child", child["token"])
        time.sleep(0.1)
    life.go(f"{key}-child")
    eventually(lambda: _has_ended(child["pid"]))
    assert life.holder(key) is None
    assert life.holder(f"{key}-child") is None
    assert life.noted(f"lease_lost:{result.id}") == []


def test_a_forked_process_renews_its_own_alone(life: Life, worker: Worker, key: str) -> None:
    """B36: the body's process stands still: its lease ends by its ttl (1.5 s), though its forked child is awake."""
    result = life.tasks.forks.apply_async([key, "fork"], queue="forks")
    first, child = life.begun(key), life.begun(f"{key}-child")
    os.kill(first["pid"], signal.SIGSTOP)
    try:
        eventually(lambda: life.holder(key) is None, 15)
        assert _held_by(life, f"{key}-child", child["token"])
    finally:
        life.go(key)
        life.go(f"{key}-child")
        os.kill(first["pid"], signal.SIGCONT)
    assert result.get(timeout=15) is True


def test_a_forked_process_that_leaves_the_call(life: Life, worker: Worker, key: str) -> None:
    """B36: the body forks, and the child returns through the locked call: the lock is still the parent's (ttl 20 s)."""
    result = life.tasks.leaves_twice.apply_async([key], queue="forks")
    first = life.begun(key)
    life.note(f"left:{key}")
    assert _held_by(life, key, first["token"])
    life.go(key)
    assert result.get(timeout=15) is False
    assert life.holder(key) is None


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_many_short_tasks(life: Life, key: str, pool: str) -> None:
    """B40: 5000 tasks of no length, ttl 0.3 s: afterwards no key, and no thread or socket more than before."""
    count = 5000 if pool == "prefork" else 1000
    worker = life.start_worker(pool=pool, concurrency=1 if pool == "prefork" else 4, args=["-Q", key])
    life.tasks.quick.apply_async([0], queue=key, ignore_result=False).get(timeout=20)
    pid, threads, files = life.tasks.threads.apply_async(queue=key).get(timeout=20)
    with life.app.producer_or_acquire() as producer:
        for number in range(count):
            life.tasks.quick.apply_async([number], queue=key, ignore_result=True, producer=producer)
    again = life.tasks.threads.apply_async(queue=key).get(timeout=120)
    eventually(lambda: not life.locks.keys("*:lock:*"), 5)
    assert again[0] == pid
    assert again[1] <= threads + 5, "the pool's own threads, and one that renews"
    assert again[2] <= files + 8
    worker.stop(20)
    assert all(life.locks.ttl(name) > 0 for name in life.locks.keys("*"))


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
def test_one_key_in_a_row(life: Life, key: str) -> None:
    """B40: 500 runs on one key, one after the other (ttl 0.5 s), some of which end when they are about to be renewed.

    Each finds the lock free at once; whatever is written to it is by the run that holds it; nothing is left."""
    worker = life.start_worker(concurrency=1, args=["-Q", key])
    lengths = [0.15 + n / 500 * 0.03 if n % 20 == 0 else n % 3 / 1000 for n in range(500)]
    with life.server.client(2, timeout=30) as client, client.monitor() as monitor:
        results = [life.tasks.at_once.apply_async([key, length], queue=key) for length in lengths]
        assert [result.get(timeout=60) for result in results] == lengths
        assert life.holder(key) is None
        time.sleep(1)  # what was still renewed would be seen, and what was set again would be there
        assert life.holder(key) is None
        life.locks.echo("end")
        counts, holder, former = Counter[str](), "nobody", set()
        for call, writes in _scripts(monitor, life.lock(key)):
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
def test_several_workers_of_every_pool(life: Life, key: str) -> None:
    """Workers of four pools share one queue and few resources; the results are ignored: each run is alone."""
    workers = [
        life.start_worker(pool=pool, concurrency=3, args=["-Q", key])
        for pool in ("prefork", "threads", "gevent", "solo")
    ]
    for _ in range(120):
        life.tasks.counts.apply_async([key], queue=key, ignore_result=True)
    eventually(lambda: life.notes.get(f"count:{key}") == "120", 60)
    assert life.notes.get(f"most:{key}") in (None, "1")
    for worker in workers:
        worker.stop()
