"""Calls inside bodies, and in other threads: who runs under whose lease."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import Lease, Lock, LockTaken, current_lease, single_instance
from celery_singleton_lock.locks.lease import lease_scope
from celery_singleton_lock.locks.protocol import Store

from ..support.clock import ManualClock
from ..support.locks import is_held, own_lease
from .inline_worker import InlineWorker


def test_nested_call_with_the_same_key(charge: Any, store: Store) -> None:
    """Inside a body that holds the key a call runs under its lease, and frees nothing at its end."""
    inner: list[Lease] = []

    def nest() -> None:
        inner.append(charge(7))
        assert is_held(store)
        own_lease().ensure_held()

    outer = charge(7, then=nest)
    assert inner == [outer]
    assert not is_held(store)


def test_other_task_with_the_same_key_nests(app: Celery, charge: Any) -> None:
    """Tasks that share a resource nest under one lease."""

    @app.task(lazy=False)
    @single_instance(key="order:{order_id}")
    def ship(order_id: int) -> Lease | None:
        return current_lease()

    inner: list[Lease | None] = []
    outer = charge(7, then=lambda: inner.append(ship(7)))
    assert inner == [outer]


def test_nested_call_with_another_key(charge: Any, store: Store) -> None:
    """Inside a body a call with another key takes its own lock, and the outer lease is current again after it."""
    inner: list[Lease | None] = []

    def nest() -> None:
        inner.append(charge(8, then=lambda: inner.append(current_lease())))
        inner.append(current_lease())
        assert (is_held(store), is_held(store, "order:8")) == (True, False)

    outer = charge(7, then=nest)
    assert inner[0] is inner[1]
    assert inner[1] is not outer
    assert inner[2] is outer
    assert not is_held(store)


def test_taken_nested_key_is_a_conflict(charge: Any, store: Store) -> None:
    """A nested call whose own key is taken raises LockTaken, and the outer lock is freed."""
    with Lock(store, "order:8"), pytest.raises(LockTaken):
        charge(7, then=lambda: charge(8))
    assert not is_held(store)


def test_threads_share_nothing(charge: Any) -> None:
    """One task object serves many threads: each body sees its own lease and no other."""
    leases: dict[int, Lease] = {}
    together = threading.Barrier(8, timeout=20)

    def run(order_id: int) -> None:
        leases[order_id] = charge(order_id, then=together.wait)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {number: lease.key for number, lease in leases.items()} == {number: f"order:{number}" for number in range(8)}
    assert len({lease.token for lease in leases.values()}) == 8


def test_same_key_in_another_thread_is_a_conflict(charge: Any) -> None:
    """A thread that a body starts does not run under the body's lease: it is another run."""
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append(charge(7))
        except LockTaken as error:
            outcome.append(error)

    def nest() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(20)

    charge(7, then=nest)
    assert [type(item) for item in outcome] == [LockTaken]


def test_leftover_lease_is_not_believed(app: Celery, worker: InlineWorker, clock: ManualClock) -> None:
    """A lease that a time limit kept from being taken down covers nothing in the next message's body (B37)."""

    @app.task(lazy=False)
    @single_instance(key="order:{order_id}")
    def charge(order_id: int) -> list[str]:
        lease = own_lease()
        return [lease.token, *charge(7)] if order_id == 8 else [lease.token]

    stale = Lease("order:7", "f" * 32, 12, 30.0, sent=clock(), clock=clock)
    left_over = lease_scope(stale)
    left_over.__enter__()
    try:
        charge.delay(8)
        tokens = worker.run().result
    finally:
        left_over.__exit__(None, None, None)
    assert len({*tokens, stale.token}) == 3


def test_lost_lease_still_covers_nested_calls(charge: Any) -> None:
    """A body that was told of its loss may still call with its own key: a lock of its own would wait for itself."""
    inner: list[Lease] = []

    def nest() -> None:
        lease = own_lease()
        lease.lose("the server does not hold it any more")
        inner.append(charge(7))

    outer = charge(7, then=nest)
    assert outer.lost
    assert inner == [outer]
