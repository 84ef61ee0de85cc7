"""Records: a repeat is answered with the first result, or told why not, and never runs again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain

from celery_singleton_lock import IdempotencyMismatch, is_replayed, is_skipped

from ..support.waiting import eventually
from .stage import Stage, key_id, resource


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker of many threads."""
    with Stage(tmp_path_factory.mktemp("idempotency")) as stage:
        stage.start_worker(pool="threads", concurrency=8)
        yield stage


class TestReplay:
    """The same event again."""

    @pytest.mark.parametrize("value", [0, 0.0, False, None, "", [], {}, [None], "text", 10**20, {"a": [1, 2.5]}])
    def test_the_answer_is_the_first_result(self, stage: Stage, name: str, value: Any) -> None:
        """B49: a repeat gives what .get() gave, falsy values as they were; the body ran once."""
        first, second = (stage.tasks.pay.delay(name, "event-1", amount=value).get(timeout=15) for _ in range(2))
        for result in (first, second):
            assert result == value
            assert type(result) is type(value)
        assert stage.notes.get(f"runs:{name}") == "1"

    def test_a_result_of_another_type_is_as_get_gave_it(self, stage: Stage, name: str) -> None:
        """B49: what the serializer changes, it changes for both: bytes come back as bytes."""
        results = [stage.tasks.pay.delay(name, "event-1", "bytes").get(timeout=15) for _ in range(2)]
        assert results == [b"\xff\x00"] * 2
        assert stage.notes.get(f"runs:{name}") == "1"

    def test_a_repeat_is_told(self, stage: Stage, name: str) -> None:
        """B49: a replay is SUCCESS, with a signal that names the first run, and a line in the log."""
        (worker,) = stage.workers
        first, second = (stage.tasks.pay.delay(name, "event-1", amount=7) for _ in range(2))
        assert [first.get(timeout=15), second.get(timeout=5)] == [7, 7]
        first, second = sorted((first, second), key=lambda result: len(stage.heard("lock_replayed", result.id)))
        assert second.state == "SUCCESS"
        (heard,) = stage.heard("lock_replayed", second.id)
        assert heard["recorded_by"] == first.id
        assert heard["key_id"] == key_id(resource(name))
        (line,) = [
            line for line in worker.log().splitlines() if second.id in line and "answered from the record" in line
        ]
        assert first.id in line

    def test_a_big_result_is_done_but_not_kept(self, stage: Stage, name: str) -> None:
        """B49: 5 MB are the first caller's; a repeat gets a marker that says so, and the body runs once."""
        result = stage.tasks.pay.delay(name, "event-1", "big")
        assert len(result.get(timeout=15)) == 5_000_000
        answer = stage.tasks.pay.delay(name, "event-1", "big").get(timeout=15)
        assert answer == {"singleton_lock": "result not kept", "task_id": result.id, "key": key_id(resource(name))}
        assert is_replayed(answer)
        assert not is_skipped(answer)
        assert stage.notes.get(f"runs:{name}") == "1"

    @pytest.mark.parametrize("what", ["object", "set", "exception"])
    def test_a_result_that_cannot_be_stored_fails_as_celery_says(self, stage: Stage, name: str, what: str) -> None:
        """B49: the result is Celery's failure to store, also of a returned exception; the work is done, and once."""
        first = stage.tasks.pay.delay(name, "event-1", what)
        with pytest.raises(Exception, match="not JSON serializable"):
            first.get(timeout=15)
        assert first.state == "FAILURE"
        answer = stage.tasks.pay.delay(name, "event-1", what).get(timeout=15)
        assert answer == {"singleton_lock": "result not kept", "task_id": first.id, "key": key_id(resource(name))}
        assert is_replayed(answer)
        assert stage.notes.get(f"runs:{name}") == "1"

    def test_a_repeat_goes_on_in_a_chain(self, stage: Stage, name: str) -> None:
        """B49: what follows a replay receives the first result."""
        assert stage.tasks.pay.delay(name, "event-1", amount=7).get(timeout=15) == 7
        result = chain(stage.tasks.pay.si(name, "event-1", amount=7), stage.tasks.echo.s())()
        assert result.get(timeout=15) == 7

    def test_a_repeat_while_the_first_runs(self, stage: Stage, name: str) -> None:
        """B49: a repeat that meets the first run waits for it, and is answered with its result."""
        results = [stage.tasks.pay.delay(name, "event-1", "hold", 5) for _ in range(3)]
        stage.begun(name)
        eventually(lambda: sum(bool(stage.heard("lock_waiting", result.id)) for result in results) == 2)
        stage.go(name)
        assert [result.get(timeout=15) for result in results] == [5, 5, 5]
        assert stage.notes.get(f"runs:{name}") == "1"

    def test_recorded_wins_over_taken(self, stage: Stage, name: str) -> None:
        """B49: what is done is answered at once, though somebody else holds the resource."""
        assert stage.tasks.pay.delay(name, "event-1", amount=7).get(timeout=15) == 7
        with stage.outsider(resource(name)):
            result = stage.tasks.pay.delay(name, "event-1", amount=7)
            assert result.get(timeout=15) == 7
        assert stage.heard("lock_waiting", result.id) == []


class TestNoReplay:
    """What is not the same."""

    def test_another_payload_is_a_mismatch(self, stage: Stage, name: str) -> None:
        """B49: the same event with another amount fails with IdempotencyMismatch; the first result is not given."""
        first = stage.tasks.pay.delay(name, "event-1", amount=7)
        assert first.get(timeout=15) == 7
        result = stage.tasks.pay.delay(name, "event-1", amount=8)
        with pytest.raises(IdempotencyMismatch) as caught:
            result.get(timeout=15)
        assert caught.value.args == (key_id(resource(name)), first.id)
        assert result.state == "FAILURE"
        assert stage.notes.get(f"runs:{name}") == "1"

    def test_a_default_that_is_given_is_the_same_payload(self, stage: Stage, name: str) -> None:
        """B49: arguments equal to their defaults are left out of the comparison."""
        first = stage.tasks.pay.delay(name, "event-1").get(timeout=15)
        second = stage.tasks.pay.delay(resource=name, event="event-1", what="amount", amount=0).get(timeout=15)
        assert first == second == 0
        assert stage.notes.get(f"runs:{name}") == "1"

    def test_another_event_runs(self, stage: Stage, name: str) -> None:
        """B49: two events on one resource both run."""
        amounts = [stage.tasks.pay.delay(name, f"event-{n}", amount=n).get(timeout=15) for n in range(2)]
        assert amounts == [0, 1]
        assert stage.notes.get(f"runs:{name}") == "2"

    def test_another_task_does_not_get_the_answer(self, stage: Stage, name: str) -> None:
        """B49: ship never gets pay's answer, though resource and event are the same."""
        assert stage.tasks.pay.delay(name, "event-1", amount=7).get(timeout=15) == 7
        assert stage.tasks.ship.delay(name, "event-1").get(timeout=15) == "shipped"

    def test_a_failed_run_leaves_no_record(self, stage: Stage, name: str) -> None:
        """B49: after a failure the same event runs again."""
        with pytest.raises(ValueError, match="the first run fails"):
            stage.tasks.pay.delay(name, "event-1", "fail", 7).get(timeout=15)
        assert stage.tasks.pay.delay(name, "event-1", "fail", 7).get(timeout=15) == 7
        assert stage.notes.get(f"runs:{name}") == "2"

    def test_a_record_runs_out(self, stage: Stage, name: str) -> None:
        """B49: idempotency_ttl is how long a record answers; without a key its own resource is the event's."""
        first = stage.tasks.pay_briefly.delay(name, name).get(timeout=15)
        assert stage.tasks.pay_briefly.delay(name, name).get(timeout=15) == first
        assert 0 < max(stage.locks.pttl(key) for key in stage.locks.keys("*record:*pay_briefly*")) <= 1000
        eventually(lambda: stage.tasks.pay_briefly.delay(name, name).get(timeout=15) != first, 5)
        assert stage.notes.get(f"runs:{name}") == "2"

    def test_an_old_task_id_is_answered(self, stage: Stage, name: str) -> None:
        """A deliberate re-send under an old task id is a delivery of the old message: the log says how to run it."""
        (worker,) = stage.workers
        first = stage.tasks.keyless.delay(name, 1)
        assert first.get(timeout=15) == 1
        again = stage.tasks.keyless.apply_async([name, 2], task_id=first.id)
        eventually(lambda: stage.heard("lock_replayed", first.id))
        assert again.get(timeout=15) == 1
        assert stage.notes.get(f"runs:{name}") == "1"
        (line,) = [line for line in worker.log().splitlines() if first.id in line and "from the record" in line]
        assert "idempotency_key=False" in line


class TestHeader:
    """The idempotency key of one call."""

    def test_it_is_used_as_it_stands(self, stage: Stage, name: str) -> None:
        """B49: headers={"idempotency_key": ...} makes a call once-only, and the resource is the task's own."""
        send = stage.tasks.keyless.apply_async
        first = send([name, 1], headers={"idempotency_key": f"k-{name}"})
        assert first.get(timeout=15) == 1
        assert send([name, 1], headers={"idempotency_key": f"k-{name}"}).get(timeout=15) == 1
        assert stage.notes.get(f"runs:{name}") == "1"
        with pytest.raises(IdempotencyMismatch):
            send([name, 2], headers={"idempotency_key": f"k-{name}"}).get(timeout=15)
        assert send([name, 2], headers={"idempotency_key": f"other-{name}"}).get(timeout=15) == 2
        assert send([name, 3]).get(timeout=15) == 3
        with stage.outsider(resource(name)):
            result = send([name, 4], headers={"idempotency_key": f"new-{name}"})
            stage.until_waiting(result.id)
        assert result.get(timeout=15) == 4
        assert stage.notes.get(f"runs:{name}") == "4"

    def test_it_survives_a_lock_wait(self, stage: Stage, name: str) -> None:
        """B49: the header goes along when the message is sent again."""
        header = {"idempotency_key": f"k-{name}"}
        with stage.outsider(resource(name)):
            result = stage.tasks.keyless.apply_async([name, 1], headers=header)
            stage.until_waiting(result.id, 2)
        assert result.get(timeout=15) == 1
        assert stage.tasks.keyless.apply_async([name, 1], headers=header).get(timeout=15) == 1
        assert stage.notes.get(f"runs:{name}") == "1"

    @pytest.mark.parametrize("bad", ["", 5, ["a"]])
    def test_a_bad_one_is_refused(self, stage: Stage, name: str, bad: Any) -> None:
        """B49: an empty or wrong header is an error, not a run without a record."""
        with pytest.raises(Exception, match="idempotency_key"):
            stage.tasks.keyless.apply_async([name], headers={"idempotency_key": bad}).get(timeout=15)
        assert stage.notes.get(f"runs:{name}") is None
