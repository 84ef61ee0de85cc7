"""Celery's own retries behind lock waits: the first real failure is the first."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery

from celery_singleton_lock import Lock, single_instance

from .inline_worker import InlineWorker

BACKOFF = 100  # seconds


def test_first_failure_after_waits_has_the_shortest_backoff(
    app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock
) -> None:
    """Four lock waits do not make `retry_backoff` of the first failure longer, and its retry is the first (B05)."""

    @app.task(
        name="shop.charge",
        lazy=False,
        bind=True,
        autoretry_for=(ZeroDivisionError,),
        retry_backoff=BACKOFF,
        retry_backoff_max=100 * BACKOFF,
        retry_jitter=False,
    )
    @single_instance(key="order:{order_id}", retry_limit=10)
    def charge(self: Any, order_id: int) -> str:
        ran.append(self.request.retries)
        if len(ran) < 3:
            raise ZeroDivisionError
        return "done"

    charge.delay(7)
    assert [worker.run().state for _ in range(4)] == ["RETRY"] * 4
    assert ran == []
    taken.release()
    message = worker.take()
    for failures, seconds in ((1, BACKOFF), (2, 2 * BACKOFF)):
        before = datetime.now(timezone.utc)
        outcome = worker.run(message)
        after = datetime.now(timezone.utc)
        assert (outcome.state, type(outcome.result)) == ("RETRY", ZeroDivisionError)
        message = worker.take()
        assert message.headers["retries"] == failures
        delay, second = timedelta(seconds=seconds), timedelta(seconds=1)
        assert before + delay - second <= datetime.fromisoformat(message.headers["eta"]) <= after + delay + second
    assert worker.run(message).result == "done"
    assert ran == [0, 1, 2]
