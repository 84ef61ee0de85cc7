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
from ..stage import Stage, resource

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
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A worker of the app with a task for every base."""
    stage = Stage(tmp_path_factory.mktemp("bases"), "bases")
    stage.start_worker(pool="prefork", concurrency=2)
    yield stage
    stage.close()


def test_every_task_is_tested(stage: Stage) -> None:
    """The list above is the app's."""
    assert [f"bases.{name}" for name in NAMES] == stage.app_module.NAMES


@pytest.mark.parametrize("task", NAMES)
def test_locked_once(stage: Stage, name: str, task: str) -> None:
    """B52: it waits for a stranger, then holds the lock in each of its two attempts, with its own id and retries."""
    sender = Celery("stranger", broker=stage.env["TEST_BROKER_URL"], backend=stage.env["TEST_BACKEND_URL"])
    with stage.outsider(resource(name)):
        result = sender.send_task(f"bases.{task}", [name])  # from an app that does not know the task
        time.sleep(0.3)
        assert stage.noted(f"leases:{name}") == []
    try:
        assert result.get(timeout=15) == [f"res:{name}", result.id]
    finally:
        result.backend = None
        sender.close()
    first, second = stage.noted(f"leases:{name}")
    assert first[0] == second[0] == f"res:{name}"
    assert first[1] != second[1], "each execution has a token of its own"
    assert (first[2:], second[2:]) == ([result.id, 0], [result.id, 1])
    eventually(lambda: stage.holder(name) is None)


class TestNoise:
    """autoretry_for=(Exception,) with two retries, a base that reports errors, and an error tracker around the call."""

    def _deliveries(self, stage: Stage, result: AsyncResult) -> int:
        return stage.workers[0].log().count(f"[{result.id}] received")

    def _reports(self, stage: Stage, name: str) -> tuple[list[str], list[str]]:
        """What the base has seen, and what the tracker."""
        return stage.noted(f"reported:{name}"), stage.noted(f"tracked:{name}")

    def test_skip(self, stage: Stage, name: str) -> None:
        """B33: a skipped message has one attempt, no run, and no report."""
        with stage.outsider(resource(name)):
            result = stage.app.tasks["noise.skips"].delay(name)
            assert is_skipped(result.get(timeout=15))
        assert stage.runs(name) == 0
        assert self._deliveries(stage, result) == 1
        assert self._reports(stage, name) == ([], [])

    def test_raise(self, stage: Stage, name: str) -> None:
        """B33: a refused message fails at its one attempt, without a run: its base sees nothing of that."""
        with stage.outsider(resource(name)):
            result = stage.app.tasks["noise.raises"].delay(name)
            with pytest.raises(LockTaken):
                result.get(timeout=15)
        assert stage.runs(name) == 0
        assert self._deliveries(stage, result) == 1
        assert self._reports(stage, name) == ([], ["LockTaken"])

    def test_waits(self, stage: Stage, name: str) -> None:
        """B33: more waits than retries: no report, no run; then one run, which has all its retries before it."""
        with stage.outsider(resource(name)):
            result = stage.app.tasks["noise.waits"].delay(name)
            eventually(lambda: self._deliveries(stage, result) > 4)
            assert stage.runs(name) == 0
        assert result.get(timeout=15) == "ran"
        assert stage.noted(f"begun:{name}") == [{"retries": 0}]
        assert self._deliveries(stage, result) == 1 + stage.workers[0].log().count(f"[{result.id}]: sent again in")
        assert self._reports(stage, name) == ([], [])

    def test_giving_up(self, stage: Stage, name: str) -> None:
        """B33: after retry_limit (3) waits LockTaken is the message's failure, once, and not its body's."""
        with stage.outsider(resource(name)):
            result = stage.app.tasks["noise.gives_up"].delay(name)
            with pytest.raises(LockTaken):
                result.get(timeout=15)
        assert stage.runs(name) == 0
        assert self._deliveries(stage, result) == 4
        assert self._reports(stage, name) == ([], ["LockTaken"])

    def test_abort(self, stage: Stage, name: str) -> None:
        """B33: on_lost="abort" ends the body past its autoretry and its base: one run, which fails with LeaseLost."""
        result = stage.app.tasks["noise.aborted"].delay(name)
        stage.begun(name)
        stage.take_away(name)
        with pytest.raises(LeaseLost):
            result.get(timeout=15)
        assert stage.runs(name) == 1
        assert self._deliveries(stage, result) == 1
        assert self._reports(stage, name) == ([], ["LeaseLost"])

    def test_a_loss_that_the_body_raises(self, stage: Stage, name: str) -> None:
        """B33: ensure_held() raises in the body: an error of its own, which it retries twice, and then fails with."""
        result = stage.app.tasks["noise.ensures"].delay(name)
        for retries in range(3):
            assert stage.begun(name) == {"retries": retries}
            stage.take_away(name)
        with pytest.raises(LeaseLost):
            result.get(timeout=15)
        assert stage.runs(name) == 3
        assert self._reports(stage, name)[0] == ["Retry", "Retry", "LeaseLost"]

    def test_a_conflict_that_the_body_raises(self, stage: Stage, name: str) -> None:
        """B33, B35: a locked task that the body calls finds its lock taken: an error of the body's own, as above."""
        with stage.outsider(resource(f"{name}-inner")):
            result = stage.app.tasks["noise.calls"].delay(name)
            with pytest.raises(LockTaken):
                result.get(timeout=15)
        assert stage.runs(name) == 3
        assert stage.runs(f"{name}-inner") == 0
        assert self._deliveries(stage, result) == 3
        assert self._reports(stage, name)[0] == ["Retry", "Retry", "LockTaken"]
        assert stage.holder(name) is None


def test_beat_by_name(stage: Stage, name: str) -> None:
    """B53: beat knows only a name; the worker's task has its lock."""
    script = (
        "import sys; from celery import Celery; from celery.beat import ScheduleEntry, Scheduler\n"
        f"app = Celery(broker={stage.env['TEST_BROKER_URL']!r}, set_as_current=False)\n"
        "entry = ScheduleEntry(name='tick', task='bases.own_call', schedule=1.0, args=(sys.argv[1],), app=app)\n"
        "Scheduler(app, lazy=True).apply_async(entry, advance=False)\n"
    )
    subprocess.run([sys.executable, "-c", script, name], check=True, timeout=60)
    eventually(lambda: len(stage.noted(f"leases:{name}")) == 2)
