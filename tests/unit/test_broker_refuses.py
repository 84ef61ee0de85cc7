"""A lock wait that cannot be published, since the broker refuses every connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import Lock, LockTaken

from .conftest import MakeApp
from .inline_worker import InlineWorker, make_charge

BOUND = 10.0  # seconds; Celery's own policy gives a publish four tries within one


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections and that nobody else gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
@pytest.mark.parametrize("late", [True, False], ids=["acks_late", "acks_early"])
def test_wait_ends_within_a_bound(
    app: Celery,
    make_app: MakeApp,
    worker: InlineWorker,
    ran: list[Any],
    taken: Lock,
    closed_port: int,
    scheme: str,
    late: bool,
) -> None:
    """The message goes back to the broker, or fails in sight where that has forgotten it; nothing hangs (B50)."""
    app.send_task("shop.charge", (7,))
    message = worker.take()
    down = make_app(broker_url=f"{scheme}://guest:guest@127.0.0.1:{closed_port}//")
    make_charge(down, ran, acks_late=late, lock_retry_backoff=0.1)
    began = time.monotonic()
    outcome = InlineWorker(down).run(message)
    assert time.monotonic() - began < BOUND
    assert (outcome.requeued, outcome.acknowledged) == (late, not late)
    if late:
        assert outcome.state == "PENDING"
    else:
        assert outcome.state == "FAILURE"
        assert isinstance(outcome.result, LockTaken)
    assert ran == []
