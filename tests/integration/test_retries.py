"""Lock waits and a task's own retries: neither is taken for the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from uuid import uuid4

import pytest

from celery_singleton_lock import LockTaken

from ..support.waiting import eventually
from .stage import PREFIX, Stage, key_id, lock_name, resource


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two workers of many threads."""
    with Stage(tmp_path_factory.mktemp("retries")) as stage:
        for _ in range(2):
            stage.start_worker(pool="threads", concurrency=30, wait=False)
        for worker in stage.workers:
            worker.wait_until_ready()
        yield stage


class TestOwnRetry:
    """A retry is in the queue before the run that sent it has freed the lock."""

    @pytest.mark.parametrize("task", ["retries_itself", "retried_by_celery"])
    def test_a_retry_is_never_a_duplicate(self, stage: Stage, task: str) -> None:
        """B02: all of 50 tasks run their second attempt in skip mode, though it arrives while the first one holds."""
        names = [uuid4().hex for _ in range(50)]
        stage.notes.delete("marker")
        results = [getattr(stage.tasks, task).delay(name) for name in names]
        assert [result.get(timeout=20) for result in results] == ["second attempt"] * 50
        assert sorted(stage.notes.lrange("marker", 0, -1)) == sorted(names)
        waits = [stage.heard("lock_waiting", result.id) for result in results]
        assert any(waits), "no retry met its own lock: the test has tested nothing"
        assert not [told for result in results for told in stage.heard("lock_skipped", result.id)]

    def test_a_retry_of_another_task_waits_in_skip_mode(self, stage: Stage, name: str) -> None:
        """B02: a second attempt is not skipped either when a stranger has the resource by then."""
        with stage.outsider(resource(name)) as outsider:
            result = stage.tasks.retries_itself.apply_async([name], retries=1)
            stage.until_waiting(result.id, 2)
            outsider.release()
        assert result.get(timeout=15) == "second attempt"

    def test_no_lock_is_left_during_a_countdown(self, stage: Stage, name: str) -> None:
        """B29: while a retry of its own waits for its countdown, a task holds nothing, and others may run."""
        stage.tasks.retried_later.delay(name)
        stage.begun(name)
        eventually(lambda: stage.lock(resource(name)) is None)
        other = stage.tasks.hold_raise.delay(name, "other")
        stage.go(name)
        assert other.get(timeout=15) == "other"

    @pytest.mark.slow  # the thread that renews goes after five seconds without a lease
    def test_nothing_goes_on_during_a_countdown(self, stage: Stage, name: str) -> None:
        """B29: while its retry waits, a worker has no lock, lists none as held, and no thread of it renews."""

        def listed() -> bool:
            keys = stage.locks.keys(f"{PREFIX}:1:*:index")
            return any(stage.locks.zscore(key, resource(name)) is not None for key in keys)

        def threads() -> int:
            return int(stage.tasks.renewal_threads.apply_async(queue=name).get(timeout=15))

        with stage.outsider(resource(name)):
            assert listed()
        worker = stage.start_worker(pool="threads", concurrency=2, args=["-Q", name])
        result = stage.tasks.retried_later.apply_async([name, 60], queue=name)
        stage.begun(name)
        eventually(lambda: result.state == "RETRY")
        assert stage.lock(resource(name)) is None
        assert not listed()
        eventually(lambda: threads() == 0, message="the thread's end")
        assert stage.lock(resource(name)) is None
        assert not listed()
        assert result.state == "RETRY"
        assert stage.notes.get(f"runs:{name}") == "1"
        worker.kill()

    def test_the_waits_of_one_attempt_are_forgotten(self, stage: Stage, name: str) -> None:
        """B05: the second attempt's first lock wait is a first one again, with the shortest backoff."""
        with stage.outsider(resource(name)):
            result = stage.tasks.retried_later.delay(name, 3)
            stage.until_waiting(result.id, 4)
        stage.begun(name)
        eventually(lambda: stage.lock(resource(name)) is None)
        with stage.outsider(resource(name)):
            stage.until_waiting(result.id, 6)
        assert result.get(timeout=15) == "second attempt"
        waits = [heard["waits"] for heard in stage.heard("lock_waiting", result.id)]
        assert waits[:4] == [1, 2, 3, 4]
        second = waits[waits.index(1, 1) :]
        assert second == list(range(1, len(second) + 1))
        assert waits[: -len(second)] == list(range(1, len(waits) - len(second) + 1))


class TestFailureBudget:
    """Lock waits do not count as failures."""

    def test_waits_leave_the_retries_alone(self, stage: Stage, name: str) -> None:
        """B05: four lock waits, then a failure, then success: max_retries=1 has been enough."""
        with stage.outsider(resource(name)):
            result = stage.tasks.flaky.delay(name, 1)
            stage.until_waiting(result.id, 4)
        assert result.get(timeout=15) == 1
        assert [note["retries"] for note in stage.noted(f"begun:{name}")] == [0, 1]

        def hooks() -> Counter[tuple[str, str | None]]:
            return Counter((note["hook"], note.get("error")) for note in stage.noted(f"hooks:{result.id}"))

        failure, success = ("on_retry", "ValueError"), ("on_success", None)
        eventually(lambda: {failure, success} <= hooks().keys(), message="both hooks")  # two threads call them
        assert hooks() == {("on_retry", "LockTaken"): hooks()["on_retry", "LockTaken"], failure: 1, success: 1}

    def test_no_limit_means_no_limit(self, stage: Stage, name: str) -> None:
        """B05: with retry_limit=None a task waits on, well past any default of Celery's."""
        with stage.outsider(resource(name)):
            result = stage.tasks.flaky_unlimited.delay(name, 1)
            stage.until_waiting(result.id, 12)
        assert result.get(timeout=15) == 1
        assert stage.notes.get(f"runs:{name}") == "2"

    def test_endless_retries_stay_endless(self, stage: Stage, name: str) -> None:
        """B05: max_retries=None on the task goes beyond Celery's default of 3 failures, lock waits or not."""
        with stage.outsider(resource(name)):
            result = stage.tasks.flaky_endless.delay(name, 6)
            stage.until_waiting(result.id, 4)
        assert result.get(timeout=15) == 6

    def test_a_real_failure_is_celerys_own(self, stage: Stage, name: str) -> None:
        """B05: when the body fails once too often, the task ends with the body's own error, not with a lock's."""
        with stage.outsider(resource(name)):
            result = stage.tasks.flaky.delay(name, 2)
            stage.until_waiting(result.id, 3)
        with pytest.raises(ValueError, match="not yet"):
            result.get(timeout=15)
        assert stage.notes.get(f"runs:{name}") == "2"


class TestLimits:
    """retry_limit and retry_timeout."""

    def test_the_limit_ends_in_lock_taken(self, stage: Stage, name: str) -> None:
        """B05: at retry_limit the task fails with LockTaken (key id, holder, waited), which link_error sees, too."""
        with stage.outsider(resource(name)):
            result = stage.tasks.hold_limited.apply_async(
                [name], link_error=stage.tasks.noted_error.s(where=f"error:{name}")
            )
            with pytest.raises(LockTaken) as caught:
                result.get(timeout=15)
            error = caught.value
            assert (error.key_id, error.holder) == (key_id(resource(name)), "an-outsider")
            assert 0.1 < error.waited < 5
            assert error.remaining is not None
            assert 20 < error.remaining <= 30
            seen = stage.note(f"error:{name}")
            assert seen == {
                "error": "LockTaken",
                "key_id": error.key_id,
                "holder": "an-outsider",
                "waited": error.waited,
                "remaining": error.remaining,
            }
            assert stage.noted(f"error:{name}") == [], "link_error was called twice"
            assert len(stage.heard("lock_waiting", result.id)) == 2
            assert len(stage.heard("lock_refused", result.id)) == 1
            hooks = [note["hook"] for note in stage.noted(f"hooks:{result.id}")]
            assert hooks == ["on_retry", "on_retry", "on_failure"]
        assert stage.notes.get(f"runs:{name}") is None

    def test_the_time_limit_of_waits_ends_in_lock_taken(self, stage: Stage, name: str) -> None:
        """B05: at retry_timeout (0.5 s since the first wait) the task fails with LockTaken."""
        with stage.outsider(resource(name)):
            with pytest.raises(LockTaken) as caught:
                stage.tasks.hold_until.delay(name).get(timeout=15)
            assert 0.5 <= caught.value.waited < 3

    def test_a_message_that_has_begun_waits_beyond_the_limit(self, stage: Stage, name: str) -> None:
        """B05: a task's second attempt is not failed for a lock: it waits past retry_limit, then runs."""
        with stage.outsider(resource(name)) as outsider:
            result = stage.tasks.hold_limited.apply_async([name, "ran"], retries=1)
            stage.until_waiting(result.id, 4)
            outsider.release()
        stage.go(name)
        assert result.get(timeout=15) == "ran"

    def test_nothing_is_left_of_a_wait(self, stage: Stage, name: str) -> None:
        """B05: once the outsider has gone, a task that gave up has left no lock."""
        with stage.outsider(resource(name)), pytest.raises(LockTaken):
            stage.tasks.hold_limited.delay(name).get(timeout=15)
        assert stage.locks.exists(lock_name(resource(name))) == 0
