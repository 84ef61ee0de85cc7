"""Records: a repeat is answered with the first result, a redelivery is not run twice, another payload is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import IdempotencyMismatch, LockKeyError, is_replayed, single_instance
from celery_singleton_lock.keys.names import key_id
from celery_singleton_lock.locks.protocol import Store

from ..support.locks import own_lease
from .inline_worker import InlineWorker

FALSY: list[Any] = [0, False, None, "", [], {}, 0.0]


def charge_of(app: Celery, ran: list[Any], result: Any = None, **lock: Any) -> Any:
    """A task that notes its runs and returns ``result``."""
    lock = {"key": "order:{order_id}", "idempotency_key": "{event_id}", **lock}

    @app.task(name="shop.charge", lazy=False)
    @single_instance(**lock)
    def charge(order_id: int, event_id: str, amount: int = 10) -> Any:
        ran.append((order_id, event_id, amount))
        return result() if callable(result) else result

    return charge


def test_repeat_is_answered(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """A second call under the same key gets the first result, whichever way it comes, and no body runs."""
    charge = charge_of(app, ran, result={"booked": [1, 2]})
    charge.delay(7, "event")
    assert worker.run().result == {"booked": [1, 2]}
    charge.delay(7, event_id="event", amount=10)
    assert worker.run().result == {"booked": [1, 2]}
    assert charge.apply((7, "event")).get() == {"booked": [1, 2]}
    assert charge(7, "event") == {"booked": [1, 2]}
    assert ran == [(7, "event", 10)]
    charge(7, "another")
    assert len(ran) == 2


@pytest.mark.parametrize("result", FALSY, ids=repr)
def test_falsy_results_are_results(app: Celery, worker: InlineWorker, ran: list[Any], result: Any) -> None:
    """A falsy result is replayed as it was, of the same type, and is not taken for none (B49)."""
    charge = charge_of(app, ran, result=result)
    charge.delay(7, "event")
    charge.delay(7, "event")
    first, second = worker.run(), worker.run()
    assert [first.state, second.state] == ["SUCCESS", "SUCCESS"]
    assert (second.result, type(second.result)) == (first.result, type(first.result)) == (result, type(result))
    assert len(ran) == 1


def test_replay_is_what_get_gives(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """A replay is the result as `.get()` gave it, through the serialiser: a tuple is a list (B49)."""
    charge = charge_of(app, ran, result=lambda: (1, {2: "x"}))
    charge.delay(7, "event")
    first = worker.run().result
    assert charge(7, "event") == first == json.loads(json.dumps((1, {2: "x"})))


def test_other_payload_is_a_mismatch(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """The same key with other arguments is an error that shows none of them; the record stays (B49)."""
    charge = charge_of(app, ran, result="first")
    charge(7, "event-tok_abc")
    with pytest.raises(IdempotencyMismatch) as caught:
        charge(7, "event-tok_abc", amount=11)
    assert caught.value.key_id == key_id("order:7")
    assert "tok_abc" not in str(caught.value)
    charge.delay(7, "event-tok_abc", 12)
    assert isinstance(worker.run().result, IdempotencyMismatch)
    assert charge(7, "event-tok_abc") == "first"
    assert len(ran) == 1


def test_large_result_is_done_but_not_kept(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """A result above the limit reaches its caller; a repeat gets a marker with the first run's id (B49)."""
    charge = charge_of(app, ran, result="x" * 5_000_000)
    sent = charge.delay(7, "event")
    assert len(worker.run().result) == 5_000_000
    charge.delay(7, "event")
    result = worker.run().result
    assert is_replayed(result)
    assert result == {"singleton_lock": "result not kept", "task_id": sent.id, "key": key_id("order:7")}
    assert len(ran) == 1


def test_the_limit_is_an_option(app: Celery, ran: list[Any]) -> None:
    """`idempotency_max_bytes` bounds the encoded result: at the limit it is kept, above it is not."""
    assert charge_of(app, ran, result="xxx", idempotency_max_bytes=5)(7, "event") == "xxx"
    assert app.tasks["shop.charge"](7, "event") == "xxx"


@pytest.mark.parametrize(
    "make", [object, lambda: ValueError("tok_abc"), lambda: {1, 2}], ids=["object", "error", "set"]
)
def test_unserialisable_result(app: Celery, ran: list[Any], make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A result that cannot be stored does not undo the work: the call has its result, a repeat a replay (B49)."""
    charge = charge_of(app, ran, result=make)
    first = charge(7, "event")
    assert type(first) is type(make())
    second = charge(7, "event")
    assert is_replayed(second) or second == json.loads(json.dumps(list(make())))
    assert len(ran) == 1
    assert "tok_abc" not in caplog.text


def test_failed_run_leaves_no_record(app: Celery, ran: list[Any]) -> None:
    """A body that raised runs again under the same key."""

    def fail() -> None:
        raise ZeroDivisionError

    charge = charge_of(app, ran, result=fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            charge(7, "event")
    assert len(ran) == 2


def test_key_of_the_call(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """`headers={"idempotency_key": ...}` names the record of one call, the resource unchanged."""
    keys: list[str] = []

    def note() -> int:
        keys.append(own_lease().key)
        return len(keys)

    charge = charge_of(app, ran, result=note, idempotency_key=None)
    for _ in range(2):
        charge.apply_async((7, "event"), headers={"idempotency_key": "from the caller"})
        assert worker.run().result == 1
    charge.apply_async((7, "event"), headers={"idempotency_key": "another"})
    assert worker.run().result == 2
    assert charge.apply((7, "event"), headers={"idempotency_key": "another"}).get() == 2
    assert keys == ["order:7", "order:7"]


@pytest.mark.parametrize("value", ["", 5, ["x"], False], ids=repr)
def test_bad_key_of_the_call(app: Celery, worker: InlineWorker, ran: list[Any], value: Any) -> None:
    """A header that is no text is an error, not no key (B25)."""
    charge_of(app, ran).apply_async((7, "event"), headers={"idempotency_key": value})
    outcome = worker.run()
    assert isinstance(outcome.result, LockKeyError)
    assert "idempotency_key" in str(outcome.result)
    assert ran == []


def test_without_a_key_the_record_names_the_resource(app: Celery, store: Store) -> None:
    """With an `idempotency_key` and no `key` the resource is the task's name and the idempotency key."""

    @app.task(name="shop.charge", lazy=False)
    @single_instance(idempotency_key="{event_id}")
    def charge(order_id: int, event_id: str) -> str:
        return own_lease().key

    key = charge(7, "a")
    assert key.startswith("shop.charge:")
    with pytest.raises(IdempotencyMismatch):
        charge(8, "a")
    assert charge(7, "b") != key


def test_tasks_do_not_answer_for_each_other(app: Celery, ran: list[Any]) -> None:
    """Two tasks that share a resource and an idempotency key have records of their own."""

    @app.task(name="shop.ship", lazy=False)
    @single_instance(key="order:{order_id}", idempotency_key="{event_id}")
    def ship(order_id: int, event_id: str) -> str:
        return "shipped"

    charge = charge_of(app, ran, result="charged")
    assert [charge(7, "event"), ship(7, "event"), charge(7, "event"), ship(7, "event")] == [
        "charged",
        "shipped",
        "charged",
        "shipped",
    ]
