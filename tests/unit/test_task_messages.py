"""A message that finds its lock taken: sent again as a whole, waits counted, nothing of a failure about it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, Task, chord
from kombu.exceptions import OperationalError

from celery_singleton_lock import Lock, LockTaken, single_instance
from celery_singleton_lock.tasks.message import HEADER

from .inline_worker import InlineWorker, make_charge


def test_waits_and_then_runs(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """A message waits while the lock is taken, in state RETRY, and runs once it is free."""
    sent = make_charge(app, ran).delay(7)
    outcome = worker.run()
    assert (outcome.task_id, outcome.state, outcome.acknowledged, worker.waiting()) == (sent.id, "RETRY", True, 1)
    assert isinstance(outcome.result, LockTaken)
    assert ran == []
    taken.release()
    assert worker.run().result == 7
    assert (ran, worker.waiting()) == ([7], 0)


def test_whole_message_is_kept(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """Everything of the message but its time is as it was: a wait is no new message (B31)."""
    charge = make_charge(app, ran)
    after, after_error = charge.si(8), charge.si(9)
    charge.apply_async(
        (7,),
        {"note": "x"},
        queue=app.conf.task_default_queue,
        priority=7,
        expires=datetime.now(timezone.utc) + timedelta(hours=1),
        time_limit=9,
        soft_time_limit=8,
        headers={"traceparent": "00-1"},
        link=[after],
        link_error=[after_error],
        shadow="shadow",
        argsrepr="<hidden>",
        kwargsrepr="<hidden>",
        correlation_id="correlated",
        reply_to="replies",
        ignore_result=True,
        compression="zlib",
        delivery_mode=1,
        parent_id="parent",
        root_id="root",
        group_id="group",
        group_index=3,
        stamped_headers=["stamp"],
        stamp="gold",
    )
    first = worker.take()
    original = {name: value for name, value in first.headers.items() if name != "eta"}
    own = ("delivery_tag", "expiration", "delivery_info")
    properties = {name: value for name, value in first.properties.items() if name not in own}
    again = first
    for waits in (1, 2):
        worker.run(again)
        taken_again = worker.take()
        again = taken_again
        headers = {**again.headers}
        state = headers.pop(HEADER)
        assert (state["v"], state["waits"], state["begun"]) == (1, waits, False)
        assert headers.pop("eta") is not None
        assert headers == original
        assert again.payload == first.payload
        assert {name: again.properties[name] for name in properties} == properties
        assert again.delivery_info["routing_key"] == first.delivery_info["routing_key"]
        assert int(again.properties["expiration"]) <= int(first.properties["expiration"])
    taken.release()
    worker.run(again)
    assert ran == [7]
    assert worker.waiting() == 1  # link, once


def test_root_stays_a_root(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """A message that nobody's task sent is not its own child after a wait, in headers or results (B31)."""
    sent = make_charge(app, ran).delay(7)
    worker.run()
    message = worker.take()
    assert (message.headers["parent_id"], message.headers["root_id"]) == (None, sent.id)
    assert not app.AsyncResult(sent.id).children


def test_members_of_a_chord_keep_their_chord(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """A chord's member that waits still belongs to its chord and its group (B31)."""
    charge = make_charge(app, ran)
    first_header = chord([charge.s(7), charge.s(8)], charge.si(9)).apply_async()
    assert first_header is not None
    first = worker.take()
    worker.run(first)
    worker.take()
    again = worker.take()
    assert again.payload[2]["chord"] == first.payload[2]["chord"] is not None
    assert (again.headers["group"], again.headers["group_index"]) == (
        first.headers["group"],
        first.headers["group_index"],
    )


def test_since_is_the_first_wait(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """The time of the first wait stays, and fields of a newer release are handed on."""
    charge = make_charge(app, ran)
    charge.apply_async((7,), headers={HEADER: {"v": 9, "waits": 4, "since": 1000.5, "begun": False, "colour": "red"}})
    worker.run()
    message = worker.take()
    assert message.headers[HEADER] == {"v": 1, "waits": 5, "since": 1000.5, "begun": False, "colour": "red"}


@pytest.mark.parametrize("state", ["x", 5, [], {"waits": "many", "since": "long", "begun": 1}, {"waits": -3}], ids=repr)
def test_strange_state_is_no_state(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock, state: Any) -> None:
    """A header that is none of ours counts as no wait yet."""
    make_charge(app, ran).apply_async((7,), headers={HEADER: state})
    worker.run()
    message = worker.take()
    again = message.headers[HEADER]
    assert (again["waits"], again["begun"]) == (1, False)
    assert again["since"] > 1.7e9


def test_countdown_is_the_backoff(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """The message comes back after the backoff of its wait."""
    charge = make_charge(app, ran, lock_retry_backoff=100, lock_retry_backoff_max=1000, lock_retry_jitter=False)
    charge.apply_async((7,), headers={HEADER: {"v": 1, "waits": 2, "since": 0}})
    worker.run()
    message = worker.take()
    delay = datetime.fromisoformat(message.headers["eta"]) - datetime.now(timezone.utc)
    assert 300 < delay.total_seconds() <= 400


@pytest.mark.parametrize("late", [True, False], ids=["acks_late", "acks_early"])
def test_broker_down_at_the_wait(
    app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that cannot be published gives the message back, or fails in sight; never a quiet success (B50)."""
    charge = make_charge(app, ran, acks_late=late)
    charge.delay(7)
    message = worker.take()

    def down(*_: Any, **__: Any) -> None:
        raise OperationalError("broker down")

    monkeypatch.setattr(Task, "apply_async", down)
    outcome = worker.run(message)
    if late:
        assert (outcome.requeued, outcome.acknowledged) == (True, False)
    else:
        assert outcome.state == "FAILURE"
        assert isinstance(outcome.result, LockTaken)


def test_nested_call_in_a_worker_is_direct(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """A call of the task inside its own body is no message: on a conflict it raises and sends nothing (B35)."""

    @app.task(lazy=False)
    @single_instance(key="order:{order_id}")
    def charge(order_id: int) -> str:
        if order_id == 8:
            with pytest.raises(LockTaken):
                charge(7)
            return "direct"
        return "held"

    charge.delay(8)
    assert worker.run().result == "direct"
    assert worker.waiting() == 0
