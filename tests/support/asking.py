"""Short ways to ask a store for a lock, for tests of stores."""

from __future__ import annotations

import secrets

from celery_singleton_lock.keys.names import names
from celery_singleton_lock.locks.answers import Answer, Granted, Holder, Taken
from celery_singleton_lock.locks.protocol import AcquireRequest, HeldLock, Store

from .waiting import eventually


def ask(store: Store, resource: str, token: str | None = None, ttl: float = 30.0) -> AcquireRequest:
    """A request for the resource, by a new owner where none is named."""
    return AcquireRequest(names(store.prefix, resource), token or secrets.token_hex(16), Holder("a-task"), ttl)


def take(store: Store, resource: str, token: str | None = None, ttl: float = 30.0) -> HeldLock:
    """The resource, held."""
    request = ask(store, resource, token, ttl)
    answer: Answer = store.acquire(request)
    assert isinstance(answer, Granted), answer
    return HeldLock(request.names, request.token, answer.fence, ttl, request.holder)


def take_soon(store: Store, resource: str, seconds: float = 15.0) -> HeldLock:
    """The resource, held as soon as the deployment is well again."""
    from celery_singleton_lock import StoreUnavailable

    def taken() -> HeldLock | None:
        try:
            return take(store, resource)
        except StoreUnavailable:
            return None

    hold = eventually(taken, seconds, "a grant")
    assert hold is not None
    return hold


def is_held(store: Store, resource: str) -> bool:
    """Whether somebody holds the resource."""
    return isinstance(store.peek(names(store.prefix, resource)), Taken)
