"""Eager mode and `.apply()`: bounded, without waiting, without messages, and with the same answers as a worker."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_singleton_lock import Lock, LockTaken, SingleInstanceTask, is_skipped, single_instance
from celery_singleton_lock.keys.names import key_id
from celery_singleton_lock.locks.protocol import Store

from ..support.locks import is_held, own_lease
from .conftest import MakeApp
from .inline_worker import InlineWorker


@pytest.fixture(params=[False, True], ids=["stored", "propagates"])
def app(request: pytest.FixtureRequest, make_app: MakeApp) -> Celery:
    """An app that runs everything eagerly."""
    return make_app(task_always_eager=True, task_eager_propagates=request.param)


def locked(app: Celery, **options: Any) -> Any:
    """A locked task that says under which lock it ran."""

    @app.task(name="shop.charge", lazy=False)
    @single_instance(key="order:{order_id}", **options)
    def charge(order_id: int) -> str:
        return own_lease().key

    return charge


def failure(app: Celery, task: Any, *args: Any) -> BaseException:
    """The error of an eager call: raised where it propagates, else kept in the result."""
    if app.conf.task_eager_propagates:
        with pytest.raises(BaseException) as caught:
            task.delay(*args)
        return caught.value
    result = task.delay(*args)
    assert result.state == "FAILURE"
    error: BaseException = result.result
    return error


def test_free_lock(app: Celery, store: Store, worker: InlineWorker) -> None:
    """An eager call runs under the lock, frees it and publishes nothing (B34)."""
    charge = locked(app)
    assert [charge.delay(7).get(), charge.apply((7,)).get(), charge(7)] == ["order:7"] * 3
    assert not is_held(store)
    assert worker.waiting() == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retry_limit": 3},
        {"retry_limit": None},
        {"retry_timeout": 60},
        {"on_conflict": "raise"},
        {"on_conflict": "wait", "wait_timeout": 0.01},
    ],
    ids=str,
)
def test_taken_lock_fails_at_once(app: Celery, store: Store, worker: InlineWorker, options: dict[str, Any]) -> None:
    """Where a worker would send again an eager call fails with LockTaken at once, without recursion (B34)."""
    charge = locked(app, **options)
    with Lock(store, "order:7"):
        error = failure(app, charge, 7)
    assert isinstance(error, LockTaken)
    assert error.key_id == key_id("order:7")
    assert worker.waiting() == 0
    assert charge.delay(7).get() == "order:7"


def test_skip(app: Celery, store: Store) -> None:
    """An eager call that is skipped succeeds with the marker (B03, B34)."""
    charge = locked(app, on_conflict="skip")
    with Lock(store, "order:7"):
        result = charge.delay(7)
        assert result.state == "SUCCESS"
        assert is_skipped(result.get())


def test_skips_in_canvas(app: Celery, store: Store) -> None:
    """Chains, groups and chords go on after a skip, with the marker where a result would be (B03)."""
    charge = locked(app, on_conflict="skip")

    @app.task(lazy=False)
    def collect(results: Any) -> Any:
        return results

    @app.task(lazy=False)
    def one() -> int:
        return 1

    with Lock(store, "order:7"):
        assert is_skipped(chain(charge.si(7), collect.s()).apply().get())
        assert chain(charge.si(7), one.si()).apply().get() == 1
        first, second = group(one.si(), charge.si(7)).apply().get()
        assert (first, is_skipped(second)) == (1, True)
        first, second = chord([one.si(), charge.si(7)])(collect.s()).get()
        assert (first, is_skipped(second)) == (1, True)


def test_own_retries(make_app: MakeApp, store: Store) -> None:
    """A task's own eager retries take the lock anew, each for its attempt; nothing stays (B34)."""
    app = make_app(task_always_eager=True)
    attempts: list[int] = []

    @app.task(bind=True, lazy=False, max_retries=3)
    @single_instance(key="order:{order_id}")
    def charge(self: Any, order_id: int) -> str:
        attempts.append(self.request.retries)
        if len(attempts) < 3:
            raise self.retry(countdown=0)
        return own_lease().key

    assert charge.delay(7).get() == "order:7"
    assert attempts == [0, 1, 2]
    assert not is_held(store)


def test_autoretry(make_app: MakeApp, store: Store) -> None:
    """`autoretry_for` retries the body's errors, not a lock that is taken (B33, B34)."""
    app = make_app(task_always_eager=True)
    attempts: list[int] = []

    @app.task(lazy=False, autoretry_for=(Exception,), max_retries=2, retry_backoff=False, default_retry_delay=0)
    @single_instance(key="order:{order_id}")
    def charge(order_id: int) -> None:
        attempts.append(order_id)
        raise ValueError

    assert isinstance(failure(app, charge, 7), ValueError)
    assert len(attempts) == 3
    assert not is_held(store)
    with Lock(store, "order:7"):
        assert isinstance(failure(app, charge, 7), LockTaken)
    assert len(attempts) == 3


def test_eager_retry_is_not_skipped(app: Celery, store: Store) -> None:
    """An eager call that has begun, being a retry, is not skipped: it raises LockTaken (B02, B34)."""
    charge = locked(app, on_conflict="skip")
    with Lock(store, "order:7"):
        result = charge.apply((7,), retries=1, throw=False)
        assert isinstance(result.result, LockTaken)


def test_eager_call_in_a_body(app: Celery) -> None:
    """An eager call from a body that holds the key runs under its lease; with another key it takes its own."""
    charge = locked(app)

    @app.task(lazy=False)
    @single_instance(key="order:{order_id}")
    def outer(order_id: int) -> list[str]:
        return [charge.delay(7).get(disable_sync_subtasks=False), charge.delay(8).get(disable_sync_subtasks=False)]

    assert outer.delay(7).get() == ["order:7", "order:8"]


def test_resting_resource(app: Celery, store: Store) -> None:
    """A resource that rests is taken for an eager call, too: it has a task id of its own."""
    charge = locked(app, at_least=20, on_conflict="skip")
    assert charge.delay(7).get() == "order:7"
    assert is_skipped(charge.delay(7).get())
    assert charge.delay(8).get() == "order:8"


def test_locks_need_no_server(make_app: MakeApp) -> None:
    """With memory:// a test suite needs no server, for producers with another broker neither (B34)."""
    app = make_app(task_always_eager=True, broker_url="amqp://nowhere.invalid")

    @app.task(base=SingleInstanceTask, lazy=False)
    def report() -> str:
        return own_lease().key

    assert report.delay().get().startswith(f"{report.name}:")
