"""Whatever base, wrapper or way of sending: the lock is there, once, and the body has its own request."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_singleton_lock import LeaseLost, LockTaken, is_skipped

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


class TestNoise:
    """autoretry_for=(Exception,) with two retries, a base that reports errors, and an error tracker around the call."""

    def _deliveries(self, life: Life, result: AsyncResult) -> int:
        return life.workers[0].log().count(f"[{result.id}] received")

    def _reports(self, life: Life, key: str) -> tuple[list[str], list[str]]:
        """What the base has seen, and what the tracker."""
        return life.noted(f"reported:{key}"), life.noted(f"tracked:{key}")

    def test_skip(self, life: Life, key: str) -> None:
        """B33: a skipped message has one attempt, no run, and no report."""
        with life.outsider(key):
            result = life.app.tasks["noise.skips"].delay(key)
            assert is_skipped(result.get(timeout=15))
        assert life.runs(key) == 0
        assert self._deliveries(life, result) == 1
        assert self._reports(life, key) == ([], [])

    def test_raise(self, life: Life, key: str) -> None:
        """B33: a refused message fails at its one attempt, without a run: its base sees nothing of that."""
        with life.outsider(key):
            result = life.app.tasks["noise.raises"].delay(key)
            with pytest.raises(LockTaken):
                result.get(timeout=15)
        assert life.runs(key) == 0
        assert self._deliveries(life, result) == 1
        assert self._reports(life, key) == ([], ["LockTaken"])

    def test_waits(self, life: Life, key: str) -> None:
        """B33: more waits than retries: no report, no run; then one run, which has all its retries before it."""
        with life.outsider(key):
            result = life.app.tasks["noise.waits"].delay(key)
            eventually(lambda: self._deliveries(life, result) > 4)
            assert life.runs(key) == 0
        assert result.get(timeout=15) == "ran"
        assert life.noted(f"begun:{key}") == [{"retries": 0}]
        assert self._deliveries(life, result) == 1 + life.workers[0].log().count(f"[{result.id}]: sent again in")
        assert self._reports(life, key) == ([], [])

    def test_giving_up(self, life: Life, key: str) -> None:
        """B33: after retry_limit (3) waits LockTaken is the message's failure, once, and not its body's."""
        with life.outsider(key):
            result = life.app.tasks["noise.gives_up"].delay(key)
            with pytest.raises(LockTaken):
                result.get(timeout=15)
        assert life.runs(key) == 0
        assert self._deliveries(life, result) == 4
        assert self._reports(life, key) == ([], ["LockTaken"])

    def test_abort(self, life: Life, key: str) -> None:
        """B33: on_lost="abort" ends the body past its autoretry and its base: one run, which fails with LeaseLost."""
        result = life.app.tasks["noise.aborted"].delay(key)
        life.begun(key)
        life.take_away(key)
        with pytest.raises(LeaseLost):
            result.get(timeout=15)
        assert life.runs(key) == 1
        assert self._deliveries(life, result) == 1
        assert self._reports(life, key) == ([], ["LeaseLost"])

    def test_a_loss_that_the_body_raises(self, life: Life, key: str) -> None:
        """B33: ensure_held() raises in the body: an error of its own, which it retries twice, and then fails with."""
        result = life.app.tasks["noise.ensures"].delay(key)
        for retries in range(3):
            assert life.begun(key) == {"retries": retries}
            life.take_away(key)
        with pytest.raises(LeaseLost):
            result.get(timeout=15)
        assert life.runs(key) == 3
        assert self._reports(life, key)[0] == ["Retry", "Retry", "LeaseLost"]

    def test_a_conflict_that_the_body_raises(self, life: Life, key: str) -> None:
        """B33, B35: a locked task that the body calls finds its lock taken: an error of the body's own, as above."""
        with life.outsider(f"{key}-inner"):
            result = life.app.tasks["noise.calls"].delay(key)
            with pytest.raises(LockTaken):
                result.get(timeout=15)
        assert life.runs(key) == 3
        assert life.runs(f"{key}-inner") == 0
        assert self._deliveries(life, result) == 3
        assert self._reports(life, key)[0] == ["Retry", "Retry", "LockTaken"]
        assert life.holder(key) is None


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
