"""A store that answers and still grants nothing: no outage, so no reason to run without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import StoreUnavailable, single_instance
from celery_singleton_lock.locks.answers import Answer, Granted, SplitVote
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.protocol import AcquireRequest
from celery_singleton_lock.tasks.settings import settings_of

from ..support.clock import ManualClock
from .flaky_store import FlakyStore
from .inline_worker import InlineWorker

ROUND_TRIP = 0.02


@pytest.fixture
def locks(app: Celery, clock: ManualClock) -> FlakyStore:
    """The app's store."""
    store = FlakyStore(clock, timeout=0.02)
    vars(settings_of(app))["store"] = store
    return store


def charge_of(app: Celery, ran: list[Any], **options: Any) -> Any:
    """A locked task that would rather run without a lock than wait for an outage's end."""

    @app.task(name="shop.charge", lazy=False)
    @single_instance(key="order:{order_id}", on_unavailable="run", **options)
    def charge(order_id: int) -> str:
        ran.append(order_id)
        return "done"

    return charge


def assert_waits(charge: Any, worker: InlineWorker, ran: list[Any]) -> None:
    """A message of the task is sent again, a direct call fails, and no body runs."""
    bodies = len(ran)
    charge.delay(7)
    assert worker.run().state == "RETRY"
    with pytest.raises(StoreUnavailable) as caught:
        charge(7)
    assert caught.value.contended
    assert len(ran) == bodies


def test_split_votes_never_run_unlocked(app: Celery, worker: InlineWorker, locks: FlakyStore, ran: list[Any]) -> None:
    """While the servers' votes go to nobody, on_unavailable="run" runs no body: another one may be about to win."""
    charge = charge_of(app, ran)
    locks.acquire = lambda ask: SplitVote(0.001)  # type: ignore[method-assign]
    assert_waits(charge, worker, ran)


def test_unreadable_record_never_runs_unlocked(
    app: Celery, worker: InlineWorker, locks: FlakyStore, ran: list[Any]
) -> None:
    """A record that cannot be read says that the work was done: on_unavailable="run" does not do it again."""
    charge = charge_of(app, ran, idempotency_key="{order_id}")
    assert charge(7) == "done"
    (name,) = locks._records._entries
    record = locks._records.get(name)
    assert record is not None
    locks._records.set(name, record._replace(body=b'{"v": 99}'), 60.0)
    assert_waits(charge, worker, ran)
    assert ran == [7]


def test_pause_after_a_split_vote(make_guard: Callable[..., Guard], flaky: FlakyStore, clock: ManualClock) -> None:
    """Whoever was split waits a random few round trips: two that asked at the same moment do not do so again (B43)."""
    original, splits = flaky.acquire, list[AcquireRequest]()

    def split_twice(ask: AcquireRequest) -> Answer:
        splits.append(ask)
        return original(ask) if len(splits) % 3 == 0 else SplitVote(ROUND_TRIP)

    flaky.acquire = split_twice  # type: ignore[method-assign]
    pauses: list[float] = []
    for _ in range(30):
        guard = make_guard(sleep=lambda seconds: (pauses.append(seconds), clock.advance(seconds)))
        assert isinstance(guard.acquire(), Granted)
        guard.release()
    assert len(pauses) == 60
    assert len(set(pauses)) > 50
    assert all(0 <= pause <= 4 * ROUND_TRIP for pause in pauses)
    assert max(pauses) > ROUND_TRIP
    assert len({ask.token for ask in splits}) == 90
