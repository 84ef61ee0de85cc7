"""A lease in a running task: renewed while the body runs, noticed when it is lost, never given back by mistake."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from celery_singleton_lock import is_skipped

from ..support.waiting import eventually
from .stage import Stage, fence_name, key_id, lock_name, resource

#: Seconds that a busy machine may add to what a test waits for.
SLACK = 2.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker, its locks on a server of their own."""
    with Stage(tmp_path_factory.mktemp("lease"), locks_apart=True) as stage:
        stage.start_worker(pool="threads", concurrency=6)
        yield stage


def _until_renewed(stage: Stage, name: str) -> None:
    """Returns when the lock's time goes up."""
    left = [stage.locks.pttl(lock_name(resource(name)))]

    def up() -> bool:
        left.append(stage.locks.pttl(lock_name(resource(name))))
        return bool(left[-1] > left[-2])

    eventually(up, message="a renewal")


class TestRenewal:
    """A body longer than its ttl."""

    @pytest.mark.parametrize(
        ("task", "ttl"), [("watch_brief", 0.4), pytest.param("watch_long", 1.5, marks=pytest.mark.slow)]
    )
    def test_a_body_of_ten_ttl_keeps_its_lease(self, stage: Stage, name: str, task: str, ttl: float) -> None:
        """B41: sampled all the time, the lock is the same, its PTTL never above the ttl, never without an end."""
        result = getattr(stage.tasks, task).delay(name, name)
        token = stage.begun(name)["token"]
        end = time.monotonic() + 10 * ttl
        samples = []
        while time.monotonic() < end:
            with stage.locks.pipeline() as pipe:
                value, left = pipe.get(lock_name(resource(name))).pttl(lock_name(resource(name))).execute()
            assert value is not None
            assert value.startswith(f"h:{token}:")
            samples.append(left)
            time.sleep(0.005)
        stage.notes.set(f"stop:{name}", 1)
        assert 0 < min(samples) <= max(samples) <= ttl * 1000
        assert sum(b > a for a, b in pairwise(samples)) >= 15, "renewals at a third of the ttl"
        assert result.get(timeout=15)["lost_at"] is None
        assert stage.lock(resource(name)) is None
        assert stage.heard("lease_lost", result.id) == []

    def test_script_flush_does_no_harm(self, stage: Stage, name: str) -> None:
        """B38: the server forgets every script between acquire, renewal and release: the lease lives, and is freed."""
        result = stage.tasks.watch.delay(name, name)
        stage.begun(name)
        value = stage.lock(resource(name))
        for _ in range(2):
            stage.locks.script_flush()
            _until_renewed(stage, name)
        assert stage.lock(resource(name)) == value
        stage.locks.script_flush()
        stage.notes.set(f"stop:{name}", 1)
        assert result.get(timeout=15)["lost_at"] is None
        assert stage.lock(resource(name)) is None
        stage.locks.script_flush()
        assert stage.tasks.watch.delay(name, name).get(timeout=15)["run"] == result.id  # the record was written


class TestLoss:
    """The lock goes away in mid-run."""

    def test_a_vanished_key_is_not_made_again(self, stage: Stage, name: str) -> None:
        """B07 (a): after DEL the body learns of it within one renewal period; nothing creates the key again."""
        result = stage.tasks.watch_slowly.delay(name, name)
        stage.begun(name)
        deleted = time.time()
        assert stage.locks.delete(lock_name(resource(name))) == 1
        lost = stage.note(f"lost:{name}")
        assert lost["at"] - deleted <= 6 / 3 + SLACK
        assert lost["remaining"] == 0
        end = time.monotonic() + 2.5  # the next renewal would have been after 2 s
        while time.monotonic() < end:
            assert stage.lock(resource(name)) is None
            time.sleep(0.01)
        stage.go(name)
        value = result.get(timeout=15)
        assert result.state == "SUCCESS"
        assert value["reason"] == "the server does not hold it any more"
        assert stage.lock(resource(name)) is None
        assert stage.heard("lease_lost", result.id) == [
            {
                "task": "locked.watch_slowly",
                "task_id": result.id,
                "key_id": key_id(resource(name)),
                "reason": "the server does not hold it any more",
            }
        ]
        eventually(lambda: [each["held"] for each in stage.heard("lock_released", result.id)] == [False])

    def test_another_owners_lock_is_left_alone(self, stage: Stage, name: str) -> None:
        """B07 (b): another token in the key keeps its value and its TTL, through renewals and the release."""
        (worker,) = stage.workers
        result = stage.tasks.watch.delay(name, name)
        stage.begun(name)
        other = f"h:{'ab' * 16}:99:[null,null,null,null]"
        stage.locks.set(lock_name(resource(name)), other, px=60_000)
        end = stage.locks.pexpiretime(lock_name(resource(name)))
        stage.note(f"lost:{name}")

        def untouched() -> None:
            assert stage.locks.pexpiretime(lock_name(resource(name))) == end
            assert stage.lock(resource(name)) == other

        for _ in range(50):
            untouched()
            time.sleep(0.01)
        stage.go(name)
        assert result.get(timeout=15)["lost_at"] is not None
        untouched()
        lines = [line for line in worker.log().splitlines() if key_id(resource(name)) in line]
        (warning,) = [line for line in lines if "LOST" in line]
        assert "WARNING" in warning
        assert result.id in warning
        assert not [line for line in lines if "ERROR" in line]

    def test_a_stale_owner_writes_no_record(self, stage: Stage, name: str) -> None:
        """B07 (b): once a newer fence was granted, the older run's result is its own, and no record's."""
        result = stage.tasks.watch.delay(name, "event-1")
        fence = stage.begun(name)["fence"]
        stage.locks.delete(lock_name(resource(name)))
        with stage.outsider(resource(name)) as newer:
            assert newer.lease is not None
            assert newer.lease.fence > fence
            stage.note(f"lost:{name}")
            stage.go(name)
            assert result.get(timeout=15)["run"] == result.id
            assert stage.lock(resource(name)) is not None
            assert int(stage.locks.get(fence_name(resource(name)))) == newer.lease.fence
            assert is_skipped(stage.tasks.watch.delay(name, "event-1").get(timeout=15))
        repeat = stage.tasks.watch.delay(name, "event-1", 0)
        assert repeat.get(timeout=15)["run"] == repeat.id, "it was answered from a stale owner's record"

    def test_the_record_is_written_where_nobody_came(self, stage: Stage, name: str) -> None:
        """B07 (a): the lock was gone, but no newer fence was granted: what the run did counts as done."""
        result = stage.tasks.watch.delay(name, "event-1")
        stage.begun(name)
        stage.locks.delete(lock_name(resource(name)))
        stage.note(f"lost:{name}")
        stage.go(name)
        assert result.get(timeout=15)["run"] == result.id
        assert stage.tasks.watch.delay(name, "event-1").get(timeout=15)["run"] == result.id
        assert stage.notes.get(f"runs:{name}") == "1"

    @pytest.mark.slow
    def test_a_silent_server_is_noticed_at_the_local_deadline(self, stage: Stage, name: str) -> None:
        """B07, B13: a server that stops answering: the body knows by its own clock, and its result is unchanged."""
        (worker,) = stage.workers
        result = stage.tasks.watch_slowly.delay(name, name)
        stage.begun(name)
        paused = time.time()
        stage.lock_server.pause()
        try:
            lost = stage.note(f"lost:{name}")
            # The first renewal fails 2 s after the grant, or by its bound of 1 s later: that is no loss yet.
            assert 6 - SLACK <= lost["at"] - paused <= 6 + SLACK
            stage.go(name)
            sent = time.monotonic()
            assert result.get(timeout=15)["reason"] == "it ran out before a renewal was confirmed"
            assert time.monotonic() - sent < 1 + SLACK, "the release was not bounded"
            assert result.state == "SUCCESS"
        finally:
            stage.lock_server.resume()
        assert len(stage.heard("lease_lost", result.id)) == 1
        (line,) = [line for line in worker.log().splitlines() if result.id in line and "was not released" in line]
        assert "WARNING" in line
        eventually(lambda: stage.lock(resource(name)) is None)
        again = stage.tasks.hold_retry.delay(name)
        stage.go(name)
        assert again.get(timeout=15) == "held"

    def test_an_emptied_server_is_noticed(self, stage: Stage, name: str) -> None:
        """B07: a failover to an empty server, as a restart: the lease is lost, and nothing is made again."""
        result = stage.tasks.watch_slowly.delay(name, name)
        stage.begun(name)
        stage.lock_server.restart()
        back = time.time()
        assert stage.note(f"lost:{name}")["at"] - back <= 6 / 3 + SLACK
        assert stage.lock(resource(name)) is None
        stage.go(name)
        assert result.get(timeout=15)["run"] == result.id
