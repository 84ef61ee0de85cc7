"""A lock to use without Celery."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

from ..errors import LockConfigError, LockTaken, StoreUnavailable
from ..keys.names import key_id, names
from .answers import Granted, Taken
from .clock import now
from .guard import Guard
from .lease import Lease
from .protocol import Store
from .terms import TERM_CHECKS, LeaseTerms, seconds, ttl_seconds

logger = logging.getLogger(__name__)


class Lock:
    """A lock to use without Celery, in the manner of ``redis.lock.Lock``: renewed while it is held.

    ``store``: what `open_store` gives; ``key``: the resource; ``ttl``: seconds. One object is one holder: share the
    key between threads, not the object. As a context manager it waits for ``blocking_timeout`` seconds (None: for
    ever), then raises `LockTaken`. ``at_least``, ``max_hold``: as the options of a task. Raises `LockConfigError` for a
    bad value.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        ttl: float | timedelta = 30.0,
        at_least: float | timedelta = 0.0,
        max_hold: float | timedelta | None = None,
        blocking_timeout: float | timedelta | None = None,
    ) -> None:
        if not hasattr(store, "acquire"):
            raise LockConfigError(f"Lock: the store is a {type(store).__name__}; give what open_store(url) returns")
        if not isinstance(key, str) or not key:
            raise LockConfigError("Lock: the key must be a text that is not empty")
        given = {"ttl": ttl, "at_least": at_least, "max_hold": max_hold}
        terms = LeaseTerms(**{name: TERM_CHECKS[name](name, value) for name, value in given.items()})
        terms.check_ranges()
        self.store = store
        self.key = key
        self.ttl = terms.ttl
        self.at_least = terms.at_least
        self.max_hold = terms.max_hold
        self.blocking_timeout = _blocking_seconds(blocking_timeout)
        self._guard: Guard | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease while the lock is held by this object, else None."""
        return self._guard.lease if self._guard is not None else None

    def acquire(self, blocking: bool = True, blocking_timeout: float | timedelta | None = None) -> bool:
        """Take the lock; False where it stays taken for ``blocking_timeout`` seconds. Raises `StoreUnavailable`."""
        timeout = self.blocking_timeout if blocking_timeout is None else _blocking_seconds(blocking_timeout)
        return self._take(timeout if blocking else 0.0) is None

    def _take(self, timeout: float | None) -> Taken | None:
        """Take the lock; who has it where it stays taken for ``timeout`` seconds."""
        if self._guard is not None:
            raise RuntimeError("this Lock object holds the lock already; use another object for another holder")
        guard = Guard(self.store, self.key, ttl=self.ttl, at_least=self.at_least, max_hold=self.max_hold)
        try:
            answer = guard.acquire_within(timeout)
            if isinstance(answer, Granted):
                self._guard = guard
                return None
            assert isinstance(answer, Taken)  # nobody asked for a record
            return answer
        finally:
            if self._guard is None:
                with suppress(StoreUnavailable):  # the first error is on its way; the lease runs out by itself
                    guard.release()

    def release(self) -> bool:
        """Free the lock; False where it was lost before. Raises `StoreUnavailable`, and RuntimeError if not held."""
        guard = self._require()
        held = guard.release()
        self._guard = None
        return held

    def extend(self, ttl: float | timedelta | None = None) -> bool:
        """Set the lease's length to ``ttl`` seconds from now (never add to it); False where the lease is lost."""
        length = self.ttl if ttl is None else ttl_seconds("ttl", ttl)
        return self._require().extend(length)

    def owned(self) -> bool:
        """Whether this object holds the lock now, by its own clock."""
        return self.lease is not None and self.lease.remaining() > 0

    def locked(self) -> bool:
        """Whether anybody holds the lock, or it rests. Raises `StoreUnavailable`."""
        return self.store.peek(names(self.store.prefix, self.key)) is not None

    def __enter__(self) -> Lease:
        began = now()
        taken = self._take(self.blocking_timeout)
        if taken is not None:
            raise LockTaken(key_id(self.key), taken.holder.task_id, now() - began, taken.remaining)
        lease = self._require().lease
        assert lease is not None
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except StoreUnavailable as failure:  # the block's own outcome stands; the lease runs out by itself
            logger.warning("lock %s was not released: %s", key_id(self.key), failure)
            self._guard = None

    def _require(self) -> Guard:
        if self._guard is None:
            raise RuntimeError("this Lock object does not hold the lock")
        return self._guard


def _blocking_seconds(timeout: float | timedelta | None) -> float | None:
    return None if timeout is None else seconds("blocking_timeout", timeout)
