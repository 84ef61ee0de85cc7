"""The lock server is gone or silent: what a task does then is the option on_unavailable, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from celery_singleton_lock import StoreUnavailable

from ..support.waiting import eventually
from .stage import Stage, resource

#: Seconds that a busy machine may add to what a test waits for.
SLACK = 3.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker, its locks on a server of their own."""
    with Stage(tmp_path_factory.mktemp("unavailable"), locks_apart=True) as stage:
        stage.start_worker(pool="threads", concurrency=6)
        yield stage


@pytest.fixture(params=["gone", "silent"])
def outage(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Callable[[], None]]:
    """Begins an outage; after the test the server is back."""
    server = stage.lock_server
    yield server.kill if request.param == "gone" else server.pause
    server.resume()
    if not server.process.running:
        server.restart()


def back(stage: Stage) -> None:
    """Ends the outage."""
    stage.lock_server.resume()
    if not stage.lock_server.process.running:
        stage.lock_server.restart()


class TestAtAcquire:
    """The outage is there when the task starts."""

    def test_retry_waits_for_the_server(self, stage: Stage, name: str, outage: Callable[[], None]) -> None:
        """B13: on_unavailable="retry" is closed: the message waits, as for a lock, from a quarter of the ttl (of 3 s)
        at the latest, and runs when the server is back."""
        outage()
        start = time.monotonic()
        result = stage.tasks.hold_retry.delay(name)
        stage.until_waiting(result.id)
        assert time.monotonic() - start <= 3 / 4 + SLACK
        stage.until_waiting(result.id, 2)
        eventually(lambda: result.state == "RETRY" and isinstance(result.result, StoreUnavailable))
        assert stage.notes.get(f"runs:{name}") is None
        back(stage)
        assert stage.begun(name)["retries"] == 0
        stage.go(name)
        assert result.get(timeout=15) == "held"
        heard = stage.heard("lock_unavailable", result.id)
        assert len(heard) >= 2
        assert all(each["unlocked"] is False for each in heard)

    def test_retry_counts_as_a_lock_wait(self, stage: Stage, name: str, outage: Callable[[], None]) -> None:
        """At retry_limit the task fails, with the reason."""
        outage()
        result = stage.tasks.hold_limited.delay(name)
        with pytest.raises(StoreUnavailable):
            result.get(timeout=15)
        assert len(stage.heard("lock_waiting", result.id)) == 2

    def test_raise_fails_at_once(self, stage: Stage, name: str, outage: Callable[[], None]) -> None:
        """B13: on_unavailable="raise" fails with StoreUnavailable, within a quarter of the ttl (of 3 s)."""
        outage()
        start = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            stage.tasks.open_raise.delay(name).get(timeout=15)
        assert time.monotonic() - start <= 3 / 4 + SLACK
        assert caught.value.denied is False
        assert stage.notes.get(f"runs:{name}") is None

    def test_run_is_loud_and_has_no_fence(self, stage: Stage, name: str, outage: Callable[[], None]) -> None:
        """B13: on_unavailable="run" runs without a lock, from a quarter of the ttl (of 3 s) at the latest: an ERROR in
        the log, a signal, no lease in the body."""
        (worker,) = stage.workers
        outage()
        start = time.monotonic()
        result = stage.tasks.open_run.delay(name)
        begun = stage.begun(name)
        assert time.monotonic() - start <= 3 / 4 + SLACK
        assert (begun["token"], begun["fence"]) == (None, None)
        stage.go(name)
        assert result.get(timeout=15) == "held"
        (heard,) = stage.heard("lock_unavailable", result.id)
        assert heard["unlocked"] is True
        (line,) = [line for line in worker.log().splitlines() if result.id in line and "WITHOUT a lock" in line]
        assert "ERROR" in line

    def test_a_late_request_leaves_nothing(self, stage: Stage, name: str) -> None:
        """A server that wakes up carries out the old request and its undo: nothing stays taken."""
        stage.tasks.one_of_many.delay(1).get(timeout=15)  # there is a connection: the request will be in its buffer
        stage.lock_server.pause()
        try:
            with pytest.raises(StoreUnavailable):
                stage.tasks.open_raise.delay(name).get(timeout=15)
        finally:
            stage.lock_server.resume()
        eventually(lambda: stage.locks.keys(f"*tombstone*{name}*"), message="the undo of the late request")
        assert stage.lock(resource(name)) is None


class TestAtRelease:
    """The outage begins while the body runs."""

    def test_the_result_is_unchanged(self, stage: Stage, name: str, outage: Callable[[], None]) -> None:
        """B49: what the body returned is the result, in bounded time, and it ran once; a WARNING says that the lock
        was not freed."""
        (worker,) = stage.workers
        result = stage.tasks.hold_retry.delay(name)
        stage.begun(name)
        outage()
        stage.go(name)
        start = time.monotonic()
        assert result.get(timeout=15) == "held"
        assert time.monotonic() - start <= 3 / 4 + SLACK
        assert result.state == "SUCCESS"
        (line,) = [line for line in worker.log().splitlines() if result.id in line and "was not released" in line]
        assert "WARNING" in line
        back(stage)
        eventually(lambda: stage.lock(resource(name)) is None, message="the end of the lock that was not freed")
        self._ran_once(stage, name, result.id)

    def _ran_once(self, stage: Stage, name: str, task_id: str) -> None:
        assert task_id not in stage.notes.lrange("published", 0, -1), "it was sent again"
        assert stage.notes.get(f"runs:{name}") == "1"

    def test_an_error_is_unchanged(self, stage: Stage, name: str, outage: Callable[[], None]) -> None:
        """B49: what the body raised is the result, too, and it ran once."""
        result = stage.tasks.fails.delay(name)
        stage.begun(name)
        outage()
        stage.go(name)
        with pytest.raises(ValueError, match="the body's own"):
            result.get(timeout=15)
        self._ran_once(stage, name, result.id)
