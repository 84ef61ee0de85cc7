"""Waits are no failures, and what has begun is never dropped."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.utils.nodenames import gethostname

from celery_singleton_lock import Lock, LockTaken, SingleInstanceTask, is_skipped, single_instance
from celery_singleton_lock.keys.names import key_id
from celery_singleton_lock.locks.answers import Holder
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.tasks.message import HEADER

from ..support.locks import held_guard
from .inline_worker import InlineWorker, make_charge


def test_limit_ends_in_lock_taken(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """After `retry_limit` waits the task fails with LockTaken, which link_error is called with (B05)."""

    @app.task(lazy=False)
    def on_error(request: Any, error: Exception, traceback: Any) -> None:
        ran.append(error)

    make_charge(app, ran, lock_retry_limit=2).apply_async((7,), link_error=on_error.s())
    states = [worker.run() for _ in range(3)]
    assert [outcome.state for outcome in states] == ["RETRY", "RETRY", "FAILURE"]
    (error,) = ran
    assert isinstance(error, LockTaken)
    assert error.key_id == key_id("order:7")
    assert error.waited > 0
    assert worker.waiting() == 0


def test_waits_are_no_failures(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """Waits spare the failure budget: with one retry allowed, four waits and a failure, the task succeeds (B05)."""

    @app.task(bind=True, lazy=False, max_retries=1, name="shop.charge")
    @single_instance(key="order:{order_id}", retry_limit=10)
    def charge(self: Any, order_id: int) -> str:
        ran.append(self.request.retries)
        if len(ran) == 1:
            raise self.retry(countdown=0, exc=ValueError())
        return "done"

    charge.delay(7)
    assert [worker.run().state for _ in range(4)] == ["RETRY"] * 4
    taken.release()
    assert worker.run().state == "RETRY"
    taken.acquire()
    assert [worker.run().state for _ in range(4)] == ["RETRY"] * 4
    taken.release()
    assert worker.run().result == "done"
    assert ran == [0, 1]


@pytest.mark.parametrize(
    "headers", [None, {"traceparent": "00-1"}, {HEADER: {"v": 1, "waits": 3, "since": 0.0, "begun": True}}], ids=str
)
def test_own_retry_is_a_message_like_any_other(
    app: Celery, store: Store, worker: InlineWorker, ran: list[Any], headers: dict[str, Any] | None
) -> None:
    """A body's own retry carries nothing of ours, old waits neither, and waits if the lock is taken (B02)."""

    @app.task(bind=True, lazy=False, name="shop.charge")
    @single_instance(key="order:{order_id}", on_conflict="skip")
    def charge(self: Any, order_id: int) -> str:
        ran.append(self.request.retries)
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return "done"

    charge.apply_async((7,), headers=headers)
    assert worker.run().state == "RETRY"
    message = worker.take()
    assert not [name for name in message.headers if "lock" in name]
    with Lock(store, "order:7"):
        assert worker.run(message).state == "RETRY"
    assert worker.run().result == "done"
    assert ran == [0, 1]


@pytest.mark.parametrize(
    "autoretry", [{}, {"autoretry_for": (Exception,), "retry_backoff": True}], ids=["", "autoretry"]
)
def test_hooks_see_a_retry(
    app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock, autoretry: dict[str, Any]
) -> None:
    """`on_retry` gets LockTaken, `on_failure` nothing, and autoretry does not take it for a failure (B05, B33)."""

    class Hooked(SingleInstanceTask):
        abstract = True

        def on_retry(self, exc: Exception, *_: Any) -> None:
            ran.append(("retry", type(exc)))

        def on_failure(self, exc: Exception, *_: Any) -> None:
            ran.append(("failure", type(exc)))

    charge = make_charge(app, ran, base=Hooked, max_retries=0, lock_retry_limit=1, **autoretry)
    charge.delay(7)
    assert [worker.run().state, worker.run().state] == ["RETRY", "FAILURE"]
    assert ran == [("retry", LockTaken), ("failure", LockTaken)]
    assert worker.waiting() == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"retries": 1},  # its own retry
        {"headers": {HEADER: {"v": 1, "waits": 1, "since": 0, "begun": True}}},  # it waited as one that has begun
        {"parent_id": "holder"},  # the holder sent it
        {"task_id": "holder"},  # the holder is its other delivery
    ],
    ids=["retry", "header", "parent", "id"],
)
@pytest.mark.parametrize("mode", ["skip", "raise"])
def test_begun_message_waits(
    app: Celery, store: Store, worker: InlineWorker, ran: list[Any], fields: dict[str, Any], mode: str
) -> None:
    """A message whose work may have begun is sent again in every mode, and stays begun (B02, B06)."""
    held = held_guard(store, holder=Holder("holder", "shop.charge", gethostname(), 1))
    make_charge(app, ran, lock_on_conflict=mode).apply_async((7,), **fields)
    worker.run()
    message = worker.take()
    assert message.headers[HEADER]["begun"] is True
    assert message.headers["retries"] == fields.get("retries", 0)
    held.release()
    assert worker.run(message).result == 7


def test_redelivered_message_waits(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """A message with the broker's redelivered flag is not skipped: a killed run's work would be lost (B02)."""
    make_charge(app, ran, lock_on_conflict="skip").delay(7)
    worker.run(redelivered=True)
    message = worker.take()
    assert message.headers[HEADER]["begun"] is True


def test_fresh_message_is_skipped(app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock) -> None:
    """A message that never began is skipped with SUCCESS and the marker, acknowledged, and not sent again (B03)."""
    make_charge(app, ran, lock_on_conflict="skip").delay(7)
    outcome = worker.run()
    assert (outcome.state, is_skipped(outcome.result), outcome.acknowledged) == ("SUCCESS", True, True)
    assert worker.waiting() == 0
