"""One message, delivered twice: the second delivery neither runs beside the first nor is it dropped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from ..support.waiting import eventually
from .stage import Stage, resource


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A prefork worker."""
    with Stage(tmp_path_factory.mktemp("delivery")) as stage:
        stage.start_worker(pool="prefork", concurrency=4)
        yield stage


def redeliver(stage: Stage) -> None:
    """What kombu does at the visibility timeout: every message that is not acknowledged goes to its queue again."""
    with stage.app.connection(transport_options={"visibility_timeout": -1}) as connection:
        connection.default_channel.qos.restore_visible(interval=1)


class TestWhileTheFirstRunLives:
    """The visibility timeout has passed, the body goes on."""

    def test_the_second_delivery_is_answered(self, stage: Stage, name: str) -> None:
        """B06: in skip mode, too, it waits; the stored result stays the first run's, before and after its end."""
        result = stage.tasks.hold_late.delay(name)
        token = stage.begun(name)["token"]
        redeliver(stage)
        stage.until_waiting(result.id, 2)
        assert result.state in ("PENDING", "STARTED"), "a wait behind one's own delivery shows in the stored state"
        lock = stage.lock(resource(name))
        assert lock is not None
        assert lock.startswith(f"h:{token}:")
        assert stage.notes.get(f"runs:{name}") == "1"
        stage.go(name)
        assert result.get(timeout=15) == "held"
        eventually(lambda: stage.heard("lock_replayed", result.id))
        time.sleep(0.1)
        assert (result.state, result.result) == ("SUCCESS", "held")
        assert stage.notes.get(f"runs:{name}") == "1"
        assert stage.heard("lock_skipped", result.id) == []

    def test_the_second_delivery_comes_to_another_worker(self, stage: Stage, name: str) -> None:
        """B06: a second worker gets the copy while the first one is inside: at no time are both."""
        first, second = (
            stage.start_worker(pool="prefork", concurrency=1, args=["-Q", name], wait=False) for _ in range(2)
        )
        first.wait_until_ready()
        second.wait_until_ready()
        result = stage.tasks.hold_counted.apply_async([name], queue=name)
        stage.begun(name)
        redeliver(stage)
        eventually(lambda: all(result.id in worker.log() for worker in (first, second)), message="the second delivery")
        stage.until_waiting(result.id, 3)
        assert stage.notes.get(f"runs:{name}") == "1"
        stage.go(name)
        assert result.get(timeout=15) == "held"
        eventually(lambda: stage.heard("lock_replayed", result.id))
        assert [note["count"] for note in stage.noted(f"inside:{name}")] == [1]
        assert stage.notes.get(f"runs:{name}") == "1"
        assert (result.state, result.result) == ("SUCCESS", "held")
        assert stage.heard("lock_skipped", result.id) == []
        for worker in (first, second):
            worker.kill()

    def test_an_older_copy_ends_silently(self, stage: Stage, name: str) -> None:
        """B06: where the first delivery ended by its own retry, its copy is over: the newer message has the id."""
        result = stage.tasks.late_retry.delay(name)
        assert stage.begun(name)["retries"] == 0
        redeliver(stage)
        stage.until_waiting(result.id)
        stage.go(name)
        assert stage.begun(name)["retries"] == 1
        stage.go(name)
        assert result.get(timeout=15) == "second attempt"
        time.sleep(0.5)
        assert stage.notes.get(f"runs:{name}") == "2"
        assert (result.state, result.result) == ("SUCCESS", "second attempt")

    def test_copies_that_wait_for_a_stranger(self, stage: Stage, name: str) -> None:
        """B06: a message that is delivered twice while it waits runs once."""
        with stage.outsider(resource(name)):
            result = stage.tasks.hold_late.apply_async([name], retries=1)
            stage.until_waiting(result.id)
            redeliver(stage)
            stage.until_waiting(result.id, 4)
        stage.go(name, 2)
        assert result.get(timeout=15) == "held"
        eventually(lambda: stage.heard("lock_replayed", result.id))
        time.sleep(0.2)
        assert stage.notes.get(f"runs:{name}") == "1"
        assert (result.state, result.result) == ("SUCCESS", "held")


class TestAfterAKill:
    """The first run is dead, and its lock is still there."""

    @pytest.mark.slow  # Celery may take five seconds to find a dead child
    def test_a_killed_child_is_run_again(self, stage: Stage, name: str) -> None:
        """B15: a child dies by SIGKILL; its message comes back, meets the dead run's lock, and runs within its ttl."""
        result = stage.tasks.hold_late.delay(name)
        first = stage.begun(name)
        os.kill(first["pid"], signal.SIGKILL)
        stage.workers[0].wait_for_log("exited with 'signal 9", 10)
        found = time.monotonic()
        second = stage.begun(name)
        assert time.monotonic() - found <= 1 + 1
        assert second["fence"] > first["fence"]
        assert second["pid"] != first["pid"]
        stage.go(name)
        assert result.get(timeout=15) == "held"
        assert stage.notes.get(f"runs:{name}") == "2"
        assert stage.heard("lock_skipped", result.id) == []

    def test_a_killed_workers_message_is_run_again(self, stage: Stage, name: str) -> None:
        """B15: a whole worker dies; at the visibility timeout its message comes again, and is not skipped."""
        doomed = stage.start_worker(pool="solo", args=["-Q", "doomed"])
        result = stage.tasks.hold_late.apply_async([name], queue="doomed")
        first = stage.begun(name)
        doomed.kill()
        redeliver(stage)
        stage.start_worker(pool="solo", args=["-Q", "doomed"])
        second = stage.begun(name)
        assert second["fence"] > first["fence"]
        stage.go(name)
        assert result.get(timeout=15) == "held"
        assert stage.notes.get(f"runs:{name}") == "2"
        assert stage.heard("lock_skipped", result.id) == []
