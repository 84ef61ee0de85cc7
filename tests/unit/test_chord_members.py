"""A chord's member that comes again: a replay would be counted, so it leaves its first run the time to count."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from .flaky_store import FlakyStore
from .inline_worker import InlineWorker, make_charge


@pytest.mark.parametrize(("age", "answered"), [(0.0, False), (9.5, False), (10.5, True)])
def test_replay_waits_for_the_first_count(
    app: Celery, worker: InlineWorker, ran: list[Any], app_store: FlakyStore, age: float, answered: bool
) -> None:
    """Up to 10 s after its record was written a member's copy is sent again; then its run is dead, and it counts."""
    charge = make_charge(app, ran, acks_late=True)
    charge.apply_async((7,), chord=charge.si(8))
    message = worker.take()
    assert worker.run(message).result == 7
    app_store.clock.advance(age)
    copy = worker.run(message, redelivered=True)
    assert (copy.state, copy.result, copy.acknowledged) == ("SUCCESS", 7, True)
    assert worker.waiting() == (0 if answered else 1)
    assert ran == [7]


def test_replay_outside_of_a_chord(app: Celery, worker: InlineWorker, ran: list[Any]) -> None:
    """A copy that no chord counts is answered at once."""
    make_charge(app, ran, acks_late=True).delay(7)
    message = worker.take()
    worker.run(message)
    assert worker.run(message, redelivered=True).result == 7
    assert (worker.waiting(), ran) == (0, [7])
