"""Whatever base, wrapper or way of sending: the lock is there, once, and the body has its own request."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from celery import Celery

from celery_singleton_lock import LockTaken, is_skipped

from ...support.waiting import eventually
from .life import Life

NAMES = [
    "Abortable",
    "AbortableLast",
    "Classy",
    "Reporting",
    "ReportingLast",
    "annotated",
    "both",
    "own_call",
    "shared_before_the_app",
    "tracked_task",
]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """A worker of the app with a task for every base."""
    life = Life(tmp_path_factory.mktemp("bases"), "bases")
    life.start_worker(pool="prefork", concurrency=2)
    yield life
    life.close()


def test_every_task_is_tested(life: Life) -> None:
    """The list above is the app's."""
    assert [f"bases.{name}" for name in NAMES] == life.tasks.NAMES


@pytest.mark.parametrize("name", NAMES)
def test_locked_once(life: Life, key: str, name: str) -> None:
    """B52: it waits for a stranger, then holds the lock in each of its two attempts, with its own id and retries."""
    sender = Celery("stranger", broker=life.env["TEST_BROKER_URL"], backend=life.env["TEST_BACKEND_URL"])
    with life.outsider(key):
        result = sender.send_task(f"bases.{name}", [key])  # from an app that does not know the task
        time.sleep(0.3)
        assert life.noted(f"leases:{key}") == []
    try:
        assert result.get(timeout=15) == [f"res:{key}", result.id]
    finally:
        result.backend = None
        sender.close()
    first, second = life.noted(f"leases:{key}")
    assert first[0] == second[0] == f"res:{key}"
    assert first[1] != second[1], "each execution has a token of its own"
    assert (first[2:], second[2:]) == ([result.id, 0], [result.id, 1])
    eventually(lambda: life.holder(key) is None)


def test_conflicts_are_no_noise(life: Life, key: str) -> None:
    """B33: autoretry_for=(Exception,) and a base that reports errors never see a conflict; each message comes once."""
    life.notes.delete("reported", "tracked")
    with life.outsider(key):
        assert is_skipped(life.app.tasks["noise.skipped"].delay(key).get(timeout=15))
        result = life.app.tasks["noise.retried"].delay(key)
        with pytest.raises(LockTaken):
            result.get(timeout=15)
    assert life.notes.get(f"runs:{key}") is None
    assert life.noted("reported") == []
    assert life.workers[0].log().count(f"noise.retried[{result.id}] received") == 1


def test_beat_by_name(life: Life, key: str) -> None:
    """B53: beat knows only a name; the worker's task has its lock."""
    script = (
        "import sys; from celery import Celery; from celery.beat import ScheduleEntry, Scheduler\n"
        f"app = Celery(broker={life.env['TEST_BROKER_URL']!r}, set_as_current=False)\n"
        "entry = ScheduleEntry(name='tick', task='bases.own_call', schedule=1.0, args=(sys.argv[1],), app=app)\n"
        "Scheduler(app, lazy=True).apply_async(entry, advance=False)\n"
    )
    subprocess.run([sys.executable, "-c", script, key], check=True, timeout=60)
    eventually(lambda: len(life.noted(f"leases:{key}")) == 2)
