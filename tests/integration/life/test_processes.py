"""Processes, threads, sockets and keys: none too many, none left, and none of another process."""

from __future__ import annotations

import time

import pytest

from ...support.waiting import eventually
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


def test_a_body_that_forks(life: Life, key: str) -> None:
    """B36: a program and a forked process of the body: neither renews nor frees; the lease (ttl 1.5 s) lives on."""
    worker = life.start_worker(concurrency=1, args=["-Q", key])
    result = life.tasks.forks.apply_async([key, 2], queue=key)
    first = life.begun(key)
    for _ in range(15):
        holder = life.holder(key)
        assert holder is not None
        assert holder.token == first["token"]
        time.sleep(0.1)
    assert result.get(timeout=15) == [0, False, True]
    assert life.holder(key) is None
    worker.stop()


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
