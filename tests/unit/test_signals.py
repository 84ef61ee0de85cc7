"""Signals, counters and log lines: one of each for everything that happens, and no argument in any of them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.utils.dispatch import Signal

from celery_singleton_lock import IdempotencyMismatch, Lock, StoreUnavailable, current_lease, signals, single_instance
from celery_singleton_lock.keys.names import key_id
from celery_singleton_lock.locks.answers import Answer, Holder
from celery_singleton_lock.locks.protocol import AcquireRequest, Store
from celery_singleton_lock.locks.renewal import Renewer
from celery_singleton_lock.metrics import LockCounters

from ..support.locks import held_guard, lock_under, own_lease
from .conftest import MakeGuard, ours
from .flaky_store import FlakyStore
from .inline_worker import InlineWorker, charge_of

TOKEN = "tok_abc"
KEY_ID = key_id("order:7")


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Every signal, by name and fields."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def note(signal: Any, **fields: Any) -> None:
        seen.append((signal.name, fields))

    for signal in signals.ALL:
        signal.connect(note)
    yield seen
    for signal in signals.ALL:
        signal.disconnect(note)


@pytest.fixture
def counters() -> Iterator[LockCounters]:
    """Counters that count."""
    made = LockCounters().connect()
    yield made
    made.disconnect()


def test_all_signals_are_listed() -> None:
    """Every signal of the module is in `ALL`, under its own name."""
    found = {name: value for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert {name: value.name for name, value in found.items()} == {value.name: value.name for value in signals.ALL}


def test_acquired_and_released(app: Celery, worker: InlineWorker, heard: list[Any]) -> None:
    """A run is told of at its start, with its fence, and at its end."""
    charge = charge_of(app, lambda: own_lease().fence)
    sent = charge.delay(7)
    fence = worker.run().result
    common = {"sender": charge, "task_id": sent.id, "key_id": KEY_ID}
    assert heard == [("lock_acquired", {**common, "fence": fence}), ("lock_released", {**common, "held": True})]


def test_skip_is_visible(
    app: Celery, store: Store, worker: InlineWorker, heard: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A skip is one line with task, key id, holder, host and remaining time, one signal, and nothing more (B26)."""
    caplog.set_level(logging.INFO)
    held = held_guard(store, holder=Holder("holder-id", "shop.ship", "ship@host", 7))
    sent = charge_of(app, on_conflict="skip").delay(7)
    worker.run()
    held.release()
    assert [(name, fields["holder"], fields["task_id"]) for name, fields in heard] == [
        ("lock_skipped", "holder-id", sent.id)
    ]
    (record,) = ours(caplog)
    line = record.getMessage()
    assert record.levelno == logging.INFO
    assert all(
        part in line for part in ("shop.charge", sent.id, "skipped", KEY_ID, "holder-id", "ship@host", " s left")
    )
    assert "order:7" not in line


def test_wait_is_visible(
    app: Celery, store: Store, worker: InlineWorker, heard: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A wait is one line and one signal, with its delay and its number (B26)."""
    caplog.set_level(logging.INFO)
    charge_of(app, retry_jitter=False).delay(7)
    with Lock(store, "order:7"):
        worker.run()
        worker.run()
    assert [(name, fields["countdown"], fields["waits"], fields["holder"]) for name, fields in heard] == [
        ("lock_waiting", 1.0, 1, None),
        ("lock_waiting", 2.0, 2, None),
    ]
    assert all(KEY_ID in record.getMessage() and "sent again in" in record.getMessage() for record in ours(caplog))


def test_refusal_is_visible(app: Celery, store: Store, worker: InlineWorker, heard: list[Any]) -> None:
    """A task that fails for its lock is one signal."""
    charge_of(app, on_conflict="raise").delay(7)
    with Lock(store, "order:7"):
        worker.run()
    assert [name for name, _ in heard] == ["lock_refused"]


def test_replay_is_visible(app: Celery, heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """An answer from the record is one line and one signal with the first run's id (B26)."""
    caplog.set_level(logging.INFO)
    charge = charge_of(app, idempotency_key="{order_id}")
    first = charge.apply((7,))
    charge.apply((7,))
    assert heard[-1][0] == "lock_replayed"
    assert heard[-1][1]["recorded_by"] == first.id
    (record,) = ours(caplog)
    assert first.id in record.getMessage()
    assert KEY_ID in record.getMessage()


def test_loss_is_visible(app: Celery, store: Store, heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """A lost lease is one warning and one signal with the reason, and the release says that nothing was held (B07)."""

    def body() -> str:
        lease = own_lease()
        store.release(lock_under(store, lease))
        lease.lose("the server does not hold it any more")
        lease.lose("again")
        return "done"

    assert charge_of(app, body)(7) == "done"
    assert [(name, fields.get("reason"), fields.get("held")) for name, fields in heard[1:]] == [
        ("lease_lost", "the server does not hold it any more", None),
        ("lock_released", None, False),
    ]
    (record,) = ours(caplog)
    assert record.levelno == logging.WARNING
    assert "LOST" in record.getMessage()
    assert KEY_ID in record.getMessage()


@pytest.mark.parametrize("policy", ["run", "raise"])
def test_unavailable_is_visible(app: Celery, app_store: FlakyStore, heard: list[Any], policy: str) -> None:
    """A store out of reach is one signal that says whether the body runs without a lock."""
    app_store.fault = StoreUnavailable("no answer")
    charge = charge_of(app, on_unavailable=policy)
    if policy == "run":
        charge(7)
    else:
        with pytest.raises(StoreUnavailable):
            charge(7)
    ((name, fields),) = heard
    assert (name, fields["reason"], fields["unlocked"]) == ("lock_unavailable", "no answer", policy == "run")


def test_broken_receiver_changes_nothing(app: Celery, worker: InlineWorker) -> None:
    """A receiver that raises changes neither the result nor the lock."""

    def broken(**_: Any) -> None:
        raise RuntimeError("receiver")

    for signal in signals.ALL:
        signal.connect(broken)
    try:
        charge = charge_of(app)
        assert [charge(7), charge(7)] == ["done", "done"]
    finally:
        for signal in signals.ALL:
            signal.disconnect(broken)


def test_counters(app: Celery, store: Store, counters: LockCounters) -> None:
    """The counters count each signal by task, until they are disconnected (B26)."""
    charge = charge_of(app, on_conflict="skip")
    charge(7)
    with Lock(store, "order:7"):
        charge(7)
        charge(7)
    assert counters.counts == {
        ("lock_acquired", "shop.charge"): 1,
        ("lock_released", "shop.charge"): 1,
        ("lock_skipped", "shop.charge"): 2,
    }
    counters.disconnect()
    charge(7)
    assert sum(counters.counts.values()) == 4


def test_no_argument_anywhere(
    app: Celery,
    store: Store,
    worker: InlineWorker,
    heard: list[Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An argument's value is in no log line, signal, error, header, marker, repr or request to the store (B26, B47)."""
    caplog.set_level(logging.DEBUG, "celery_singleton_lock")
    shown: list[str] = []
    acquire = store.acquire

    def listen(request: AcquireRequest) -> Answer:
        shown.append(repr(request))
        return acquire(request)

    monkeypatch.setattr(store, "acquire", listen)

    def make(name: str, body: Any = lambda: repr(current_lease()), **options: Any) -> Any:
        @app.task(name=name, lazy=False)
        @single_instance(**options)
        def charge(token: str, amount: int = 0) -> Any:
            return body()

        return charge

    for name, key in (("by.default", None), ("by.name", ["token"])):
        charge = make(name, key=key, on_conflict="skip", idempotency_key="{token}" if key else None)
        shown.append(charge(TOKEN))
        if key:
            shown.append(charge(TOKEN))
            with pytest.raises(IdempotencyMismatch) as mismatch:
                charge(TOKEN, amount=1)
            shown += [repr(mismatch.value), str(mismatch.value), repr(pickle.dumps(mismatch.value))]

    def nested() -> Any:
        lease = own_lease()
        retry, skip, failing = make("retry", key=None), make("skip", key=None, on_conflict="skip"), make("fail")
        with Lock(store, type(retry).singleton_lock_task().key.build({"token": TOKEN, "amount": 0})):
            retry.delay(TOKEN)
            outcome = worker.run()
            shown.append(repr(outcome.result) + str(outcome.result) + repr(pickle.dumps(outcome.result)))
        message = worker.take()
        shown.append(repr(message.headers["singleton_lock"]))
        with Lock(store, type(skip).singleton_lock_task().key.build({"token": TOKEN, "amount": 0})):
            shown.append(repr(skip(TOKEN)))
        lease.lose("gone")
        shown.append(repr(lease))
        return failing(TOKEN)

    shown.append(make("nested", nested)(TOKEN))
    shown += [repr(fields) for _, fields in heard] + [record.getMessage() for record in ours(caplog)]
    assert len(shown) > 30
    assert [text for text in shown if TOKEN in text] == []


def test_hung_renewal_is_said_without_keys(
    make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer, caplog: pytest.LogCaptureFixture
) -> None:
    """A renewal that fails is a warning with the reason and no key (B47)."""
    guard = make_guard(f"mail:{TOKEN}", held=True)
    flaky.fault = StoreUnavailable("TimeoutError: no answer")
    flaky.clock.advance(10)
    renewer.tick()
    assert guard.pending
    assert "no answer" in caplog.text
    assert TOKEN not in caplog.text
