"""A store that is out of reach: three policies, none of them silent, and a body's outcome that always stands."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import LeaseLost, StoreUnavailable, current_lease, single_instance
from celery_singleton_lock.keys.names import key_id
from celery_singleton_lock.tasks.message import HEADER

from ..support.locks import lock_under, own_lease, replace_record
from .conftest import ours
from .flaky_store import FlakyStore
from .inline_worker import InlineWorker, charge_of

NO_ANSWER = StoreUnavailable("TimeoutError: no answer")
DENIED = StoreUnavailable("AuthenticationError: no", denied=True)


def test_retry_is_a_lock_wait(app: Celery, worker: InlineWorker, app_store: FlakyStore) -> None:
    """By default the message waits as for a lock, with its waits counted and its retries spared; then it runs (B05)."""
    charge_of(app).delay(7)
    app_store.fault = NO_ANSWER
    outcome = worker.run()
    assert outcome.state == "RETRY"
    assert isinstance(outcome.result, StoreUnavailable)
    message = worker.take()
    assert (message.headers[HEADER]["waits"], message.headers["retries"]) == (1, 0)
    app_store.fault = None
    assert worker.run(message).result == "done"


def test_limit_ends_in_the_reason(app: Celery, worker: InlineWorker, app_store: FlakyStore) -> None:
    """After `retry_limit` waits the task fails with StoreUnavailable."""
    charge_of(app, retry_limit=1).delay(7)
    app_store.fault = NO_ANSWER
    assert worker.run().state == "RETRY"
    outcome = worker.run()
    assert (outcome.state, type(outcome.result)) == ("FAILURE", StoreUnavailable)


@pytest.mark.parametrize("policy", ["retry", "raise"])
def test_direct_call_raises(app: Celery, app_store: FlakyStore, worker: InlineWorker, policy: str) -> None:
    """A direct call never runs unlocked unless it is asked to, and sends nothing (B35)."""
    charge = charge_of(app, pytest.fail, on_unavailable=policy)
    app_store.fault = NO_ANSWER
    with pytest.raises(StoreUnavailable):
        charge(7)
    assert worker.waiting() == 0


def test_raise(app: Celery, worker: InlineWorker, app_store: FlakyStore) -> None:
    """With "raise" the task fails at once."""
    charge_of(app, pytest.fail, on_unavailable="raise").delay(7)
    app_store.fault = NO_ANSWER
    assert isinstance(worker.run().result, StoreUnavailable)
    assert worker.waiting() == 0


def test_run_without_a_lock(
    app: Celery, worker: InlineWorker, app_store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """With "run" the body runs without a lease, and an error in the log says so."""
    charge_of(app, lambda: current_lease() is None, on_unavailable="run").delay(7)
    app_store.fault = NO_ANSWER
    assert worker.run().result is True
    (record,) = ours(caplog)
    assert (record.levelno, "WITHOUT a lock" in record.getMessage()) == (logging.ERROR, True)


def test_waits_end_where_a_body_runs_without_a_lock(app: Celery, worker: InlineWorker, app_store: FlakyStore) -> None:
    """The waits before it are no part of the body's own retry."""

    @app.task(bind=True, lazy=False)
    @single_instance(key="order:{order_id}", on_unavailable="run")
    def charge(self: Any, order_id: int) -> None:
        raise self.retry(countdown=0)

    app_store.fault = NO_ANSWER
    charge.apply_async((7,), headers={HEADER: {"v": 1, "waits": 3, "since": 1.0, "begun": False}})
    assert worker.run().state == "RETRY"
    message = worker.take()
    assert (message.headers["retries"], message.headers.get(HEADER)) == (1, None)


@pytest.mark.parametrize("policy", ["run", "retry"])
def test_denied_never_runs_without_a_lock(
    app: Celery, worker: InlineWorker, app_store: FlakyStore, policy: str
) -> None:
    """Denied credentials are no outage: no policy runs the body without a lock (B46, B47)."""
    charge = charge_of(app, pytest.fail, on_unavailable=policy)
    app_store.fault = DENIED
    with pytest.raises(StoreUnavailable):
        charge(7)
    charge.delay(7)
    assert worker.run().state == "RETRY"


def test_unlocked_body_inside_a_locked_one(app: Celery, app_store: FlakyStore) -> None:
    """A body that runs without a lock inside one that holds another has no lease, not the outer one's."""
    unlocked = charge_of(app, current_lease, on_unavailable="run")

    @app.task(lazy=False)
    @single_instance(key="outer")
    def outer() -> Any:
        app_store.fault = NO_ANSWER
        return unlocked(8), current_lease()

    inner, lease = outer()
    assert inner is None
    assert lease.key == "outer"


@pytest.mark.parametrize("late", [True, False], ids=["record", "no record"])
def test_release_that_fails_changes_nothing(
    app: Celery, worker: InlineWorker, app_store: FlakyStore, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that is gone at the body's end leaves result and state as they are, with one warning (B07, B49)."""

    def body() -> str:
        app_store.fault = NO_ANSWER
        return "done"

    charge_of(app, body, celery={"acks_late": late}).delay(7)
    outcome = worker.run()
    assert (outcome.state, outcome.result, outcome.acknowledged) == ("SUCCESS", "done", True)
    (record,) = ours(caplog)
    assert "was not released" in record.getMessage()
    assert worker.waiting() == 0


def test_release_that_fails_keeps_the_bodys_error(app: Celery, app_store: FlakyStore) -> None:
    """A body's own exception is not hidden by the store's."""

    def body() -> None:
        app_store.fault = NO_ANSWER
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        charge_of(app, body)(7)


def test_lease_that_was_lost_is_said_at_the_end(
    app: Celery, app_store: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A body whose key is gone at its end keeps its result, and a warning says that the lock was lost (B07, B11)."""

    def body() -> str:
        app_store.release(lock_under(app_store, own_lease()))
        return "done"

    assert charge_of(app, body)(7) == "done"
    (record,) = ours(caplog)
    assert record.levelno == logging.WARNING
    assert key_id("order:7") in record.getMessage()


def test_body_can_ask_and_stop(app: Celery, app_store: FlakyStore) -> None:
    """`ensure_held` in a body raises LeaseLost, which fails the task as any error of its own (B07)."""

    def body() -> None:
        lease = own_lease()
        lease.lose("the server does not hold it any more")
        lease.ensure_held()

    with pytest.raises(LeaseLost):
        charge_of(app, body)(7)


def test_record_that_cannot_be_read(app: Celery, worker: InlineWorker, app_store: FlakyStore) -> None:
    """A record that a newer release wrote is no answer: the message waits, and no body runs twice."""
    charge = charge_of(app, own_lease, idempotency_key="{order_id}")
    replace_record(app_store, charge(7), b'{"v": 99}')
    charge.delay(7)
    assert worker.run().state == "RETRY"
    with pytest.raises(StoreUnavailable):
        charge(7)


def test_enabled_false_asks_no_store(app: Celery, worker: InlineWorker, app_store: FlakyStore) -> None:
    """With `enabled=False` no store is asked; the body has a lease that never ends, with a fence and a record id."""
    app_store.fault = NO_ANSWER
    seen: list[Any] = []

    def body() -> str:
        lease = own_lease()
        lease.ensure_held()
        seen.append((lease.key, lease.remaining(), lease.fence > 10**15, lease.record_id))
        return "done"

    charge = charge_of(app, body, enabled=False)
    assert charge(7) == "done"
    charge.delay(7)
    assert worker.run().result == "done"
    assert [entry[:3] for entry in seen] == [("order:7", float("inf"), True)] * 2
    assert len(seen[1][3]) == 32
    assert current_lease() is None
