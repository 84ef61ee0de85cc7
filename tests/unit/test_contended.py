"""A store that answers and still grants nothing: no outage, so no reason to run without a lock."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.answers import Answer, Granted, SplitVote
from celery_singleton_lock.locks.protocol import AcquireRequest

from ..support.locks import own_lease, replace_record
from .conftest import MakeGuard
from .flaky_store import FlakyStore
from .inline_worker import InlineWorker, charge_of

ROUND_TRIP = 0.02


def assert_waits(charge: Any, worker: InlineWorker, ran: list[Any]) -> None:
    """A message of the task is sent again, a direct call fails, and no body runs."""
    bodies = len(ran)
    charge.delay(7)
    assert worker.run().state == "RETRY"
    with pytest.raises(StoreUnavailable) as caught:
        charge(7)
    assert caught.value.contended
    assert len(ran) == bodies


def test_split_votes_never_run_unlocked(
    app: Celery, worker: InlineWorker, app_store: FlakyStore, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the servers' votes go to nobody, on_unavailable="run" runs no body: another one may be about to win."""
    monkeypatch.setattr(app_store, "acquire", lambda request: SplitVote(0.001))
    app_store.timeout = 0.02
    assert_waits(charge_of(app, ran=ran, on_unavailable="run"), worker, ran)


def test_unreadable_record_never_runs_unlocked(
    app: Celery, worker: InlineWorker, app_store: FlakyStore, ran: list[Any]
) -> None:
    """A record that cannot be read says that the work was done: on_unavailable="run" does not do it again."""
    charge = charge_of(app, own_lease, ran, idempotency_key="{order_id}", on_unavailable="run")
    replace_record(app_store, charge(7), b'{"v": 99}')
    assert_waits(charge, worker, ran)
    assert ran == [7]


def test_pause_after_a_split_vote(make_guard: MakeGuard, flaky: FlakyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was split waits a random few round trips: two that asked at the same moment do not do so again (B43)."""
    acquire, requests = flaky.acquire, list[AcquireRequest]()

    def split_twice(request: AcquireRequest) -> Answer:
        requests.append(request)
        return acquire(request) if len(requests) % 3 == 0 else SplitVote(ROUND_TRIP)

    monkeypatch.setattr(flaky, "acquire", split_twice)
    sleep = Mock(side_effect=flaky.clock.advance)
    for _ in range(30):
        guard = make_guard(sleep=sleep)
        assert isinstance(guard.acquire(), Granted)
        guard.release()
    pauses = [call.args[0] for call in sleep.call_args_list]
    assert len(pauses) == 60
    assert len(set(pauses)) > 50
    assert all(0 <= pause <= 4 * ROUND_TRIP for pause in pauses)
    assert max(pauses) > ROUND_TRIP
    assert len({request.token for request in requests}) == 90
