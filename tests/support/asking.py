"""Short ways to ask a store for a lock, for tests of stores."""

from __future__ import annotations

import secrets

from celery_singleton_lock.keys import names
from celery_singleton_lock.protocol import Answer, Ask, Granted, Hold, Holder, Store, Taken

from .waiting import eventually


def ask(store: Store, resource: str, token: str | None = None, ttl: float = 30.0) -> Ask:
    """A request for the resource, by a new owner where none is named."""
    return Ask(names(store.prefix, resource), token or secrets.token_hex(16), Holder("a-task"), ttl)


def take(store: Store, resource: str, token: str | None = None, ttl: float = 30.0) -> Hold:
    """The resource, held."""
    request = ask(store, resource, token, ttl)
    answer: Answer = store.acquire(request)
    assert isinstance(answer, Granted), answer
    return Hold(request.names, request.token, answer.fence, ttl, request.holder.encode())


def take_soon(store: Store, resource: str, seconds: float = 15.0) -> Hold:
    """The resource, held as soon as the deployment is well again."""
    from celery_singleton_lock import StoreUnavailable

    def taken() -> Hold | None:
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
