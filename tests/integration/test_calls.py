"""Calling a locked task as a function, inside a worker: it takes the lock too, frees it, and never publishes."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from celery_singleton_lock import LockTaken

from .stage import Stage, key_id, resource


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker of many threads."""
    with Stage(tmp_path_factory.mktemp("calls")) as stage:
        stage.start_worker(pool="threads", concurrency=4)
        yield stage


@pytest.fixture
def name(stage: Stage) -> Iterator[str]:
    """A name that no other test uses; at the end, no worker has published anything."""
    stage.notes.delete("published")
    yield uuid4().hex
    assert stage.notes.lrange("published", 0, -1) == []
    assert stage.broker.llen("celery") == 0


class TestInsideALockedBody:
    """A body that calls another locked task."""

    def test_another_key_is_held_and_freed(self, stage: Stage, name: str) -> None:
        """B35: the inner call has a lease of its own, which ends with it; the outer one's goes on."""
        other = f"{name}-other"
        result = stage.tasks.outer.delay(name, other)
        stage.note(f"called:{name}")
        assert stage.lock(resource(other)) is None
        outer_lock = stage.lock(resource(name))
        stage.go(name)
        before, during, after = result.get(timeout=15)
        assert before == after
        assert before["key"] == resource(name)
        assert during["key"] == resource(other)
        assert during["held"]
        assert during["token"] != before["token"]
        assert outer_lock is not None
        assert outer_lock.startswith(f"h:{before['token']}:")
        assert stage.lock(resource(name)) is None

    def test_the_same_key_runs_under_the_outer_lease(self, stage: Stage, name: str) -> None:
        """B35: where the body holds the key already, the inner call runs under its lease and frees nothing."""
        result = stage.tasks.outer.delay(name, name)
        stage.note(f"called:{name}")
        held = stage.lock(resource(name))
        stage.go(name)
        before, during, after = result.get(timeout=15)
        assert before == after
        assert {name: during[name] for name in before} == before
        assert held is not None
        assert held.startswith(f"h:{before['token']}:")
        assert stage.lock(resource(name)) is None

    def test_a_taken_key_is_a_plain_exception(self, stage: Stage, name: str) -> None:
        """B35: a conflict of the inner call is LockTaken in the body, not Celery's Retry; the body may go on."""
        other = f"{name}-other"
        with stage.outsider(resource(other)):
            result = stage.tasks.outer.delay(name, other)
            assert stage.note(f"called:{name}") == {"during": {"error": "LockTaken", "holder": "an-outsider"}}
            stage.go(name)
            assert result.get(timeout=15)[1]["error"] == "LockTaken"
            assert stage.lock(resource(other)) is not None

    def test_a_taken_key_in_skip_mode_is_the_marker(self, stage: Stage, name: str) -> None:
        """B35: a task that skips gives its skip result to a caller as well."""
        other = f"{name}-other"
        with stage.outsider(resource(other)):
            result = stage.tasks.outer.delay(name, other, "hold_skip")
            during = stage.note(f"called:{name}")["during"]
            stage.go(name)
            assert result.get(timeout=15)[1] == during
        assert during == {"singleton_lock": "skipped", "task_id": "an-outsider", "key": key_id(resource(other))}

    def test_a_task_that_calls_itself(self, stage: Stage, name: str) -> None:
        """B35: t inside t's own body, with the same arguments, runs under the same lease, twice over."""
        states = stage.tasks.nested.delay(name, 2).get(timeout=15)
        assert states == [states[0]] * 5
        assert states[0]["key"] == resource(name)
        assert stage.lock(resource(name)) is None

    def test_a_task_that_calls_itself_with_other_arguments(self, stage: Stage, name: str) -> None:
        """B35: with another key, t inside t's own body takes another lock, and frees it."""
        other = f"{name}-other"
        outside, inside, again = stage.tasks.nested.delay(name, 1, other).get(timeout=15)
        assert outside == again
        assert (outside["key"], inside["key"]) == (resource(name), resource(other))
        assert inside["held"]
        assert stage.lock(resource(other)) is None
        assert stage.lock(resource(name)) is None


class TestInsideAnUnlockedBody:
    """A task without a lock that calls a locked one."""

    @pytest.mark.parametrize("how", ["call", "apply"])
    def test_the_lock_is_taken_and_freed(self, stage: Stage, name: str, how: str) -> None:
        """B34, B35: a direct and an eager call hold the lock while they run, and not afterwards."""
        during = stage.tasks.unlocked_caller.delay(name, "inner", how).get(timeout=15)
        assert during["key"] == resource(name)
        assert during["held"]
        assert stage.lock(resource(name)) is None

    @pytest.mark.parametrize("how", ["call", "apply"])
    def test_a_taken_key_fails_the_caller(self, stage: Stage, name: str, how: str) -> None:
        """B34, B35: on conflict the caller gets LockTaken at once, and fails with it; it is not retried."""
        with stage.outsider(resource(name)):
            result = stage.tasks.unlocked_caller.delay(name, "inner", how)
            with pytest.raises(LockTaken) as caught:
                result.get(timeout=15)
            assert caught.value.holder == "an-outsider"
            assert result.state == "FAILURE"
            assert stage.lock(resource(name)) is not None

    def test_run_is_the_bare_body(self, stage: Stage, name: str) -> None:
        """B35: task.run(...) takes no lock."""
        with stage.outsider(resource(name)):
            assert stage.tasks.unlocked_caller.delay(name, "inner", "run").get(timeout=15)["key"] is None

    def test_wait_mode_waits_in_a_call(self, stage: Stage, name: str) -> None:
        """B35: a direct call of a task that waits blocks until wait_timeout."""
        with stage.outsider(resource(name)):
            result = stage.tasks.unlocked_caller.delay(name, "hold_briefly")
            with pytest.raises(LockTaken) as caught:
                result.get(timeout=15)
        assert caught.value.waited >= 0.3
