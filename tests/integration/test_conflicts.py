"""What a task does when another one has its resource, and that it leaves the other's lock alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_singleton_lock import LockKeyError, LockTaken, is_skipped

from ..support.waiting import eventually
from .stage import Stage, key_id, lock_name, resource


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker of many threads."""
    with Stage(tmp_path_factory.mktemp("conflicts")) as stage:
        stage.start_worker(pool="threads", concurrency=12)
        yield stage


class TestTheWinnersLock:
    """What the losers do never reaches it."""

    def test_losers_leave_it_alone(self, stage: Stage, name: str) -> None:
        """B10: A holds; whatever B does about it, C conflicts as well, and the lock is A's until A ends."""
        holder = stage.tasks.hold_retry.delay(name)
        token = stage.begun(name)["token"]
        value = stage.lock(resource(name))
        assert value is not None
        assert value.startswith(f"h:{token}:")

        def still_held() -> None:
            assert stage.lock(resource(name)) == value
            assert 0 < stage.locks.pttl(lock_name(resource(name))) <= 3000

        for _ in range(2):  # B, then C
            assert is_skipped(stage.tasks.hold_skip.delay(name).get(timeout=15))
            still_held()
            with pytest.raises(LockTaken):
                stage.tasks.hold_raise.delay(name).get(timeout=15)
            still_held()
            with pytest.raises(LockTaken):
                stage.tasks.hold_briefly.delay(name).get(timeout=15)
            still_held()
            with pytest.raises(LockTaken):
                stage.tasks.hold_limited.delay(name).get(timeout=15)
            still_held()
        assert stage.notes.get(f"runs:{name}") == "1"
        stage.go(name)
        assert holder.get(timeout=15) == "held"
        eventually(lambda: stage.lock(resource(name)) is None)

    def test_a_key_that_cannot_be_built_frees_nothing(self, stage: Stage, name: str) -> None:
        """B10: B fails while its key is built: with LockKeyError, before anything of the server was touched."""
        with stage.outsider(resource(name)) as outsider:
            value = stage.lock(resource(name))
            orders: tuple[Any, ...] = ({}, None)
            for order in orders:
                with pytest.raises(LockKeyError) as caught:
                    stage.tasks.from_order.delay(order).get(timeout=15)
                assert caught.value.field == "key"
            assert is_skipped(stage.tasks.from_order.delay({"id": name}).get(timeout=15))
            assert stage.lock(resource(name)) == value
            assert outsider.release()

    def test_a_waiter_that_is_revoked_frees_nothing(self, stage: Stage, name: str) -> None:
        """B10: B is revoked while it waits for its next look: A's lock stays, and B never runs."""
        with stage.outsider(resource(name)):
            value = stage.lock(resource(name))
            waiter = stage.tasks.hold_retry.delay(name)
            stage.until_waiting(waiter.id)
            waiter.revoke()
            eventually(lambda: waiter.state == "REVOKED")
            assert stage.lock(resource(name)) == value
        assert stage.notes.get(f"runs:{name}") is None
        assert stage.lock(resource(name)) is None

    def test_a_waiter_that_is_killed_in_its_slot_frees_nothing(self, stage: Stage, name: str) -> None:
        """B10: revoke(terminate=True) strikes B while it blocks a slot for A's resource: A's lock stays."""
        stage.start_worker(pool="prefork", concurrency=2, args=["-Q", "slots"])

        def asked() -> int:
            return int(stage.locks.info("commandstats")["cmdstat_evalsha"]["calls"])

        with stage.outsider(resource(name)):
            value = stage.lock(resource(name))
            for how in ("SIGTERM", "SIGKILL"):
                before = asked()
                waiter = stage.tasks.hold_wait.apply_async([name], queue="slots")
                eventually(lambda: waiter.state == "STARTED")  # noqa: B023
                # It looks again every 0.1 s at most; what others ask meanwhile, a renewal say, are one or two calls.
                eventually(lambda: asked() >= before + 6, message="the waiter's requests")  # noqa: B023
                waiter.revoke(terminate=True, signal=how)
                eventually(lambda: waiter.state == "REVOKED")  # noqa: B023
                assert stage.lock(resource(name)) == value
        assert stage.notes.get(f"runs:{name}") is None


class TestEachWay:
    """on_conflict."""

    def test_retry_runs_after_the_holder(self, stage: Stage, name: str) -> None:
        """B30: a trigger that comes while the first one runs is run after it, and reads what the first one missed."""
        first = stage.tasks.reads_first.delay(name)
        assert stage.begun(name)["task_id"] == first.id
        stage.notes.set(f"value:{name}", 1)
        second = stage.tasks.reads_first.delay(name)
        stage.until_waiting(second.id, 2)
        eventually(lambda: second.state == "RETRY" and isinstance(second.result, LockTaken))
        assert stage.notes.get(f"runs:{name}") == "1"
        stage.go(name)
        assert first.get(timeout=15) == 0
        assert stage.begun(name)["task_id"] == second.id
        stage.go(name)
        assert second.get(timeout=15) == 1
        assert stage.notes.get(f"runs:{name}") == "2"

    def test_skip_drops_the_trigger(self, stage: Stage, name: str) -> None:
        """B30: in skip mode the second trigger is answered at once, and never runs."""
        stage.tasks.hold_skip.delay(name)
        first = stage.begun(name)["task_id"]
        marker = {"singleton_lock": "skipped", "task_id": first, "key": key_id(resource(name))}
        assert stage.tasks.hold_skip.delay(name).get(timeout=15) == marker
        stage.go(name)
        assert AsyncResult(first, app=stage.app).get(timeout=15) == "held"
        assert stage.notes.get(f"runs:{name}") == "1"

    def test_a_falsy_skip_result_is_kept(self, stage: Stage, name: str) -> None:
        """B03: skip_result may be anything, 0 too."""
        with stage.outsider(resource(name)):
            assert stage.tasks.skip_with_zero.delay(name).get(timeout=15) == 0

    def test_wait_blocks_until_the_holder_ends(self, stage: Stage, name: str) -> None:
        """A task that waits in its slot runs as soon as the resource is free, and was never sent again."""
        with stage.outsider(resource(name)) as outsider:
            result = stage.tasks.hold_wait.delay(name)
            with pytest.raises(LockTaken):
                stage.tasks.hold_briefly.delay(name).get(timeout=15)
            assert stage.notes.get(f"runs:{name}") is None
            outsider.release()
            stage.begun(name)
        stage.go(name)
        assert result.get(timeout=15) == "held"
        assert stage.heard("lock_waiting", result.id) == []

    def test_wait_ends_in_lock_taken(self, stage: Stage, name: str) -> None:
        """B05: after wait_timeout the task fails with LockTaken, which says how long it has waited."""
        with stage.outsider(resource(name)), pytest.raises(LockTaken) as caught:
            stage.tasks.hold_briefly.delay(name).get(timeout=15)
        assert (caught.value.key_id, caught.value.holder) == (key_id(resource(name)), "an-outsider")
        assert 0.3 <= caught.value.waited < 3

    def test_raise_fails_at_once(self, stage: Stage, name: str) -> None:
        """on_conflict="raise" is a failure that Celery's hooks see."""
        with stage.outsider(resource(name)):
            result = stage.tasks.hold_raise.delay(name)
            with pytest.raises(LockTaken):
                result.get(timeout=15)
        assert stage.heard("lock_waiting", result.id) == []
        eventually(lambda: stage.noted(f"hooks:{result.id}") == [{"hook": "on_failure", "error": "LockTaken"}])


class TestBegunMessages:
    """A message whose work may have begun is neither skipped nor failed."""

    @pytest.mark.parametrize("task", ["hold_skip", "hold_raise", "hold_briefly", "hold_retry"])
    def test_they_wait_whatever_on_conflict_says(self, stage: Stage, name: str, task: str) -> None:
        """B02: a second attempt waits for a stranger's lock, and runs."""
        with stage.outsider(resource(name)) as outsider:
            result = getattr(stage.tasks, task).apply_async([name, "ran"], retries=1)
            stage.until_waiting(result.id, 2)
            outsider.release()
        stage.go(name)
        assert result.get(timeout=15) == "ran"
        assert stage.heard("lock_skipped", result.id) == stage.heard("lock_refused", result.id) == []

    def test_a_child_of_the_holder_is_not_skipped(self, stage: Stage, name: str) -> None:
        """A task sent by the body that holds its resource is no duplicate: in skip mode it waits, then runs."""
        parent = stage.tasks.sends_child.delay(name)
        stage.begun(name)
        child = eventually(lambda: stage.notes.get(f"child:{name}"))
        stage.until_waiting(child)
        stage.go(name)
        assert parent.get(timeout=15) == child
        assert stage.begun(name)["parent_id"] == parent.id
        stage.go(name)
        assert AsyncResult(child, app=stage.app).get(timeout=15) == "child"


class TestVisibility:
    """A conflict can be seen."""

    def test_a_skip_says_who_holds_what(self, stage: Stage, name: str) -> None:
        """B26: one INFO line with task, key id, holder and time left; a signal; the marker; no argument in them."""
        worker = stage.workers[0]
        stage.tasks.hold_skip.delay(name)
        holder = stage.begun(name)["task_id"]
        result = stage.tasks.hold_skip.delay(name)
        assert is_skipped(result.get(timeout=15))
        pattern = (
            rf"\[.*INFO/MainProcess\] task locked\.hold_skip\[{result.id}\]: skipped, lock {key_id(resource(name))} "
            rf"is held by task {holder} on \S*{re.escape(f'{worker.log_file.stem}@localhost')}, [0-3]\.\d s left"
        )
        lines = [line for line in worker.log().splitlines() if result.id in line and "celery_singleton" not in line]
        said = [line for line in lines if re.fullmatch(pattern, line)]
        assert len(said) == 1, lines
        assert [line for line in lines if "skipped," in line] == said
        assert stage.heard("lock_skipped", result.id) == [
            {"task": "locked.hold_skip", "task_id": result.id, "key_id": key_id(resource(name)), "holder": holder}
        ]
        stage.go(name)

    def test_a_wait_is_an_event(self, stage: Stage, name: str) -> None:
        """B26: `celery events` shows a wait as task-retried with LockTaken, and a skip as task-succeeded."""
        stage.start_worker(pool="solo", args=["-Q", "watched", "-E"])
        events: list[dict[str, Any]] = []
        with stage.app.connection() as connection:
            receiver = stage.app.events.Receiver(connection, handlers={"*": events.append})
            consuming = receiver.itercapture(limit=None, timeout=10, wakeup=False)
            next(consuming)
            with stage.outsider(resource(name)):
                skipped = stage.tasks.hold_skip.apply_async([name], queue="watched")
                skipped.get(timeout=15)
                waiting = stage.tasks.hold_retry.apply_async([name], queue="watched")
                stage.until_waiting(waiting.id)
            stage.go(name)
            waiting.get(timeout=15)
            for _ in consuming:
                if [each for each in events if each.get("uuid") == waiting.id and each["type"] == "task-succeeded"]:
                    break
        said = [(each["uuid"], each["type"]) for each in events if "uuid" in each]
        assert (skipped.id, "task-succeeded") in said
        retried = [each for each in events if each["type"] == "task-retried"]
        assert {each["uuid"] for each in retried} == {waiting.id}
        assert all("LockTaken" in each["exception"] for each in retried)
        assert not [each for each in events if each["type"] == "task-failed"]

    def test_a_stranger_is_named_by_its_host(self, stage: Stage, name: str) -> None:
        """B26: where a plain Lock holds the resource, the line says so, with its host."""
        worker = stage.workers[0]
        with stage.outsider(resource(name), task_id=None):
            result = stage.tasks.hold_skip.delay(name)
            assert result.get(timeout=15)["task_id"] is None
        (line,) = [line for line in worker.log().splitlines() if result.id in line and ": skipped," in line]
        assert "called directly on outside-host" in line
