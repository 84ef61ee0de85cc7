"""``on_lost="abort"`` where the lease is lost before the body: there is nothing yet that a signal could end."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import Lease, LeaseLost, signals
from celery_singleton_lock.locks.renewal import Renewer
from celery_singleton_lock.tasks import abort

from .inline_worker import InlineWorker, charge_of

pytestmark = pytest.mark.skipif(abort.SIGNAL is None, reason="there is no such signal here")


@pytest.fixture
def aborts() -> Iterator[None]:
    """Bodies of this process can be ended, as in a prefork child; afterwards all is as it was."""
    assert abort.SIGNAL is not None
    before = signal.getsignal(abort.SIGNAL)
    abort.enable()
    yield
    signal.signal(abort.SIGNAL, before)
    importlib.reload(abort)


@pytest.fixture
def lost_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every lease is lost between its grant and its body: in a receiver of the signal that tells of it."""
    leases: list[Lease] = []
    add = Renewer.add

    def note(renewer: Renewer, lease: Lease, *rest: Any) -> None:
        leases.append(lease)
        add(renewer, lease, *rest)

    def lose(**_: Any) -> None:
        leases.pop().lose("taken away")

    monkeypatch.setattr(Renewer, "add", note)
    signals.lock_acquired.connect(lose, weak=False)
    yield
    signals.lock_acquired.disconnect(lose)


@pytest.mark.parametrize(("on_lost", "bodies"), [("abort", 0), ("warn", 1)])
def test_body_of_a_lost_lease(
    app: Celery, worker: InlineWorker, ran: list[Any], aborts: None, lost_at_once: None, on_lost: str, bodies: int
) -> None:
    """With "abort" a body whose lease is lost before its first step never begins; with "warn" it runs (B07)."""

    charge_of(app, ran=ran, on_lost=on_lost).delay(7)
    outcome = worker.run()
    assert len(ran) == bodies
    assert outcome.state == ("SUCCESS" if bodies else "FAILURE")
    assert bodies or isinstance(outcome.result, LeaseLost)


def test_a_body_that_was_not_taken_down(app: Celery, worker: InlineWorker, aborts: None, lost_at_once: None) -> None:
    """Where a time limit kept an earlier body from being taken down, a message's can be ended all the same (B37)."""

    results: list[Any] = []

    def message() -> None:
        results.append(worker.run().result)
        results.append(abort.possible(outermost=False))

    charge_of(app, on_lost="abort").delay(7)
    abort.Body(KeyboardInterrupt).run(message, lambda: False)  # the earlier body, which stands there until its end
    assert isinstance(results[0], LeaseLost)
    assert results[1] is True  # the message's own was taken down
