"""``on_lost="abort"`` where the lease is lost before the body: there is nothing yet that a signal could end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import LeaseLost, signals, single_instance
from celery_singleton_lock.locks.renewal import default_renewer
from celery_singleton_lock.tasks import abort

from .inline_worker import InlineWorker

pytestmark = pytest.mark.skipif(abort.SIGNAL is None, reason="there is no such signal here")


@pytest.fixture
def aborts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bodies of this process can be ended, as in a prefork child; the signal's handler is taken away again."""
    monkeypatch.setattr(abort, "_enabled", True)
    assert abort.SIGNAL is not None
    before = signal.getsignal(abort.SIGNAL)
    yield
    signal.signal(abort.SIGNAL, before)


@pytest.fixture
def lost_at_once() -> Iterator[None]:
    """Every lease of order 7 is lost between its grant and its body: in a receiver of the signal that tells of it."""

    def lose(**_: Any) -> None:
        for entry in list(default_renewer()._entries.values()):
            lease = entry.owner()
            if lease is not None and lease.key == "order:7":
                lease.lose("taken away")

    signals.lock_acquired.connect(lose, weak=False)
    yield
    signals.lock_acquired.disconnect(lose)


@pytest.mark.parametrize(("on_lost", "bodies"), [("abort", 0), ("warn", 1)])
def test_body_of_a_lost_lease(
    app: Celery, worker: InlineWorker, ran: list[Any], aborts: None, lost_at_once: None, on_lost: str, bodies: int
) -> None:
    """With "abort" a body whose lease is lost before its first step never begins; with "warn" it runs (B07)."""

    @app.task(name="shop.charge", lazy=False)
    @single_instance(key="order:{order_id}", on_lost=on_lost)
    def charge(order_id: int) -> str:
        ran.append(order_id)
        return "done"

    charge.delay(7)
    outcome = worker.run()
    assert len(ran) == bodies
    assert outcome.state == ("SUCCESS" if bodies else "FAILURE")
    assert bodies or isinstance(outcome.result, LeaseLost)


def test_a_body_that_was_not_taken_down(app: Celery, worker: InlineWorker, aborts: None, lost_at_once: None) -> None:
    """Where a time limit kept an earlier body from being taken down, a message's can be ended all the same (B37)."""

    @app.task(lazy=False)
    @single_instance(key="order:{order_id}", on_lost="abort")
    def charge(order_id: int) -> str:
        return "done"

    abort._body = abort.Body(KeyboardInterrupt)
    charge.delay(7)
    assert isinstance(worker.run().result, LeaseLost)
    assert abort._body is None
