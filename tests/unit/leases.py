"""What tests of leases, renewal and guards share: one resource, its lease's length, and short ways to look at both."""

from __future__ import annotations

from collections.abc import Callable

from celery_singleton_lock.keys.names import names
from celery_singleton_lock.locks.answers import Granted, Holder, Taken
from celery_singleton_lock.locks.lease import Lease
from celery_singleton_lock.locks.protocol import AcquireRequest, HeldLock
from celery_singleton_lock.locks.renewal import Renewer

from ..support.clock import ManualClock
from .flaky_store import FlakyStore

KEY, TTL = "order:7", 30.0
DEADLINE = 29.698  # the ttl without 1 % and 2 ms


def hold(
    renewer: Renewer,
    store: FlakyStore,
    key: str = KEY,
    ttl: float = TTL,
    max_hold: float | None = None,
    on_lost: Callable[[Lease], None] | None = None,
) -> Lease:
    """Take a lock and have it renewed."""
    sent, where, token = store.time(), names(store.prefix, key), f"{key}-token"
    answer = store.acquire(AcquireRequest(where, token, Holder(), ttl))
    assert isinstance(answer, Granted)
    lease = Lease(key, token, answer.fence, ttl, sent=sent, max_hold=max_hold, clock=store.time, on_lost=on_lost)
    renewer.add(lease, HeldLock(where, token, answer.fence, ttl), store, sent)
    return lease


def left(store: FlakyStore, key: str = KEY) -> float | None:
    """How long the store's lock still lives."""
    taken = store.peek(names(store.prefix, key))
    return taken.remaining if taken else None


def run_until(renewer: Renewer, clock: ManualClock, end: float) -> None:
    """Let the renewer tick whenever it wants to, until ``end`` seconds from now."""
    end += clock()
    while (pause := renewer.tick()) is not None and clock() + pause <= end:
        clock.advance(pause or 0.001)
    clock.now = max(clock.now, end)


def holder(store: FlakyStore) -> Taken | None:
    """Who has the lock."""
    return store.peek(names(store.prefix, KEY))
