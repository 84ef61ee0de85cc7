"""The record of a delivery: what a broker hands out twice is answered and not run twice."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.exceptions import Retry

from celery_singleton_lock import single_instance
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.tasks.locked_task import LockedTask

from ..support.locks import is_held, own_lease
from .conftest import MakeApp
from .inline_worker import Delivery, InlineWorker, charge_of
from .test_idempotency import FALSY

LATE = {"acks_late": True}


@pytest.mark.parametrize("result", [*FALSY, "x"], ids=repr)
def test_redelivery_is_answered(app: Celery, worker: InlineWorker, ran: list[Any], result: Any) -> None:
    """The same message delivered again after it succeeded gets the same result, and no body runs (B06, B49)."""
    charge = charge_of(app, result, ran, LATE)
    charge.delay(7)
    message = worker.take()
    first = worker.run(message)
    second = worker.run(message, redelivered=True)
    assert (first.state, first.result) == (second.state, second.result) == ("SUCCESS", result)
    assert len(ran) == 1


def test_no_record_where_nothing_is_delivered_twice(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """A message acknowledged before it runs leaves no record: the broker cannot deliver it again."""
    charge = charge_of(app, ran=ran)
    charge.delay(7)
    message = worker.take()
    worker.run(message)
    worker.run(message)
    assert len(ran) == 2


def test_record_id_is_known_to_every_body(app: Celery, worker: InlineWorker) -> None:
    """A body knows its record id whether or not a record is kept, for the once-only helper."""

    @app.task(lazy=False)
    @single_instance(key="order")
    def charge() -> str | None:
        return own_lease().record_id

    charge.delay()
    message = worker.take()
    first, second = worker.run(message).result, worker.run(message).result
    assert len(first) == 32
    assert first == second
    charge.delay()
    assert worker.run().result != first


def test_records_switched_off(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """`idempotency_key=False` keeps no record: an old task id runs again on purpose."""
    charge = charge_of(app, ran=ran, celery=LATE, idempotency_key=False)
    charge.apply_async((7,), task_id="old")
    worker.run()
    charge.apply_async((7,), task_id="old")
    worker.run()
    assert len(ran) == 2


def test_hint_for_an_old_id(
    app: Celery, worker: InlineWorker, ran: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A replay of a delivery says in the log how to run an old id on purpose."""
    caplog.set_level("INFO")
    charge = charge_of(app, ran=ran, celery=LATE)
    for _ in range(2):
        charge.apply_async((7,), task_id="old")
        worker.run()
    assert "idempotency_key=False" in caplog.text


def test_second_delivery_while_the_first_runs(app: Celery, worker: InlineWorker, ran: list[Any], store: Store) -> None:
    """A copy delivered while the first run is alive does not run beside it: it waits, then gets the record (B06)."""
    outcomes: list[Delivery] = []
    message: Any = None

    def deliver_again() -> str:
        if not outcomes:
            thread = threading.Thread(target=lambda: outcomes.append(worker.run(message, redelivered=True)))
            thread.start()
            thread.join(20)
            assert is_held(store)
            own_lease().ensure_held()
        return "once"

    charge = charge_of(app, deliver_again, ran, {**LATE, "track_started": True})
    charge.delay(7)
    message = worker.take()
    assert worker.run(message).result == "once"
    assert [outcome.state for outcome in outcomes] == ["STARTED"]  # the stored state is the first run's
    assert worker.run().result == "once"
    assert len(ran) == 1


@pytest.mark.parametrize("options", [{}, {"idempotency_key": "charge-{order_id}"}], ids=["delivery", "idempotency key"])
def test_older_copies_of_a_retried_message_end(
    app: Celery, worker: InlineWorker, ran: list[Any], options: dict[str, Any]
) -> None:
    """A run that ended by publishing its retry leaves a mark: an older copy ends silently, the retry runs."""

    @app.task(bind=True, lazy=False, acks_late=True, name="shop.charge")
    @single_instance(key="order:{order_id}", **options)
    def charge(self: Any, order_id: int) -> str:
        ran.append(self.request.retries)
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return "done"

    charge.delay(7)
    message = worker.take()
    assert worker.run(message).state == "RETRY"
    copy = worker.run(message, redelivered=True)
    assert (copy.state, copy.acknowledged) == ("RETRY", True)
    retry = worker.take()
    assert worker.run(retry).result == "done"
    assert worker.run(message, redelivered=True).result == "done"
    assert worker.run(retry, redelivered=True).result == "done"
    assert ran == [0, 1]
    assert worker.waiting() == 0


@pytest.mark.parametrize("options", [{}, {"idempotency_key": "charge-{order_id}"}], ids=["delivery", "idempotency key"])
def test_a_failed_tasks_id_is_sent_anew(
    app: Celery, worker: InlineWorker, ran: list[Any], options: dict[str, Any]
) -> None:
    """The marks of retries that are over end no new message of the same id, but copies of the old one."""

    @app.task(bind=True, lazy=False, acks_late=True, max_retries=1, name="shop.charge")
    @single_instance(key="order:{order_id}", **options)
    def charge(self: Any, order_id: int) -> str:
        ran.append(self.request.retries)
        if len(ran) < 3:
            raise self.retry(exc=OSError("the gateway is away"), countdown=0)
        return "done"

    task_id = uuid4().hex
    charge.apply_async((7,), task_id=task_id)
    message = worker.take()
    assert [worker.run(message).state, worker.run().state] == ["RETRY", "FAILURE"]
    assert worker.run(message, redelivered=True).state == "FAILURE"
    assert ran == [0, 1]
    charge.apply_async((7,), task_id=task_id)
    assert worker.run().result == "done"
    assert ran == [0, 1, 0]


@pytest.mark.parametrize("options", [{}, {"idempotency_key": "charge-{order_id}"}], ids=["delivery", "idempotency key"])
def test_a_retried_task_replaces_itself(
    app: Celery, worker: InlineWorker, ran: list[Any], options: dict[str, Any]
) -> None:
    """The replacement has the id and no retries: it is no older copy, and runs."""

    @app.task(bind=True, lazy=False, acks_late=True, name="shop.charge")
    @single_instance(key="order:{order_id}", **options)
    def charge(self: Any, order_id: int, page: int = 0) -> str:
        ran.append((self.request.retries, page))
        if len(ran) == 1:
            raise self.retry(countdown=0)
        if page == 0:
            raise self.replace(self.s(order_id, page=1))
        return "done"

    charge.delay(7)
    for _ in range(3):
        outcome = worker.run()
    assert ran == [(0, 0), (1, 0), (0, 1)]
    assert outcome.result == "done"


def test_a_retry_by_hand_leaves_no_mark(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """`raise Retry()` sends nothing: the delivery that ends so is to be done again."""

    @app.task(lazy=False, acks_late=True, name="shop.charge")
    @single_instance(key="order:{order_id}")
    def charge(order_id: int) -> str:
        ran.append(order_id)
        if len(ran) == 1:
            raise Retry("by hand")
        return "done"

    charge.delay(7)
    message = worker.take()
    assert worker.run(message).state == "RETRY"
    assert worker.run(message, redelivered=True).result == "done"


def test_a_mark_answers_no_other_message(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """Two messages of one idempotency key: the second runs while the first one's retry is to come, which it answers."""

    @app.task(bind=True, lazy=False, acks_late=True, name="shop.charge")
    @single_instance(key="order:{order_id}", idempotency_key="charge-{order_id}")
    def charge(self: Any, order_id: int) -> str:
        ran.append((self.request.id, self.request.retries))
        if len(ran) == 1:
            raise self.retry(countdown=0)
        return "done"

    first, second = charge.delay(7), charge.delay(7)
    assert worker.run().state == "RETRY"
    message = worker.take()
    retry = worker.take()
    assert worker.run(message).result == "done"
    assert ran == [(first.id, 0), (second.id, 0)]
    assert [worker.run(each, redelivered=True).result for each in (retry, message)] == ["done", "done"]
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("broker", "options", "seconds"),
    [("redis://h", {}, 7200), ("redis://h", {"visibility_timeout": 86400}, 172800), ("amqp://h", {}, 7200)],
    ids=str,
)
def test_how_long_a_delivery_is_remembered(
    make_app: MakeApp, broker: str, options: dict[str, Any], seconds: int
) -> None:
    """The record of a delivery answers for twice the visibility timeout, at least two hours."""
    app = make_app(broker_url=broker, broker_transport_options=options)
    locked: LockedTask = type(charge_of(app, celery=LATE)).singleton_lock_task()
    assert locked.records.delivery_ttl == seconds
