"""A lease: the right to work on a resource until a local deadline."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import LeaseLost
from ..keys import names
from .clock import Clock, now

logger = logging.getLogger(__name__)


def validity(ttl: float) -> float:
    """How long (seconds) a lease of ``ttl`` may be trusted, counted from before its request was sent.

    The drift of two clocks, 1 % and 2 ms, is taken off, as in Redlock's description.
    """
    return ttl - (ttl * 0.01 + 0.002)


class Lease:
    """The right to work on one resource, until a deadline on this machine's own clock.

    ``key``: the resource (its text may hold argument values: do not log it, log ``key_id``). ``key_id``: 16 hex digits.
    ``token``: this execution's owner token, 32 hex digits. ``fence``: the fencing token, an int that is larger than
    any granted before for this key. ``record_id``: what this run's record is kept under, 32 hex digits or None.
    ``ttl``: seconds. ``deadline``: the clock's reading at which it ends unless it is renewed. ``ended``: whether its
    body is over.
    """

    def __init__(
        self,
        key: str,
        token: str,
        fence: int,
        ttl: float,
        *,
        sent: float,
        max_hold: float | None = None,
        record_id: str | None = None,
        clock: Clock = now,
        on_lost: Callable[[Lease], None] | None = None,
        abort: Callable[[Lease], None] | None = None,
    ) -> None:
        """``sent``: the clock's reading from before the request was sent.

        Of a loss, ``abort`` is told at once and must not wait; then ``on_lost``, which may run a user's code.
        """
        self.key = key
        self.token = token
        self.fence = fence
        self.ttl = ttl
        self.record_id = record_id
        self.acquired = sent
        self._clock = clock
        self._on_lost = on_lost
        self._abort = abort
        self._last = math.inf if max_hold is None else sent + max_hold
        self.deadline = min(sent + validity(ttl), self._last)
        self._reason: str | None = None
        self.ended = False
        self._lock = threading.Lock()

    @classmethod
    def for_disabled_lock(cls, key: str, record_id: str | None) -> Lease:
        """The lease of a task whose lock is switched off: it never ends, and its fence is the local clock's reading."""
        fence = int(time.time() * 1_000_000)
        lease = cls(key, "", fence, math.inf, sent=0.0, record_id=record_id)
        lease.deadline = math.inf
        return lease

    def __repr__(self) -> str:
        state = "lost" if self.lost else "ended" if self.ended else f"{self.remaining():.1f} s left"
        return f"<Lease {self.key_id} fence={self.fence} {state}>"

    @property
    def key_id(self) -> str:
        """16 hex digits that name the key in logs."""
        return names.key_id(self.key)

    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed; 0.0 where it is not held any more."""
        if self.ended or self._reason is not None:
            return 0.0
        return max(0.0, self.deadline - self._clock())

    @property
    def lost(self) -> bool:
        """Whether the lease ended before its body: another run may have the resource."""
        return self._reason is not None or (not self.ended and self._clock() >= self.deadline)

    @property
    def reason(self) -> str | None:
        """Why the lease was lost, in a few words; None where it was not."""
        return self._reason or (self.overdue() if self.lost else None)

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless the lease is held now."""
        if self.ended or self.lost:
            why = "it was released" if self.ended else self.reason
            raise LeaseLost(self.key_id, why or self.overdue())

    def overdue(self) -> str:
        """Why the deadline passed, in words."""
        return "max_hold is over" if self.deadline >= self._last else "it ran out before a renewal was confirmed"

    def covers(self, key: str) -> bool:
        """Whether a call inside the body needs no lock of its own on ``key``.

        A lost lease still covers: the body was told, and a second lock of its own would only wait for itself.
        """
        return self.key == key and not self.ended

    def confirm(self, sent: float, ttl: float | None = None) -> bool:
        """A renewal to ``ttl`` (seconds; by default the lease's own) sent at ``sent`` succeeded: set the deadline anew.

        False where it came too late.
        """
        with self._lock:
            if self.lost or self.ended:  # past its deadline: never revived, whatever the server says
                return False
            if ttl in (None, self.ttl):  # one of another length was on its way while `resize` came
                self.deadline = min(sent + validity(self.ttl), self._last)
            return True

    def resize(self, sent: float, ttl: float) -> None:
        """An extension to ``ttl`` seconds is being sent at ``sent``: from now on trust no more than it would give."""
        with self._lock:
            self.ttl = ttl
            self.deadline = min(self.deadline, sent + validity(ttl))

    def lose(self, reason: str, *, at_end: bool = False, in_thread: bool = False) -> bool:
        """Mark the lease lost and tell the observers, once. False where it was lost or ended already.

        ``at_end``: the release itself found out; only then may an ended lease turn out to be lost. ``in_thread``: tell
        ``on_lost`` in a thread of its own, since the caller's must not wait for a user's code.
        """
        with self._lock:
            if self._reason is not None or self.ended is not at_end:
                return False
            self._reason = reason
        if self._abort is not None:
            self._abort(self)
        if self._on_lost is not None:
            if in_thread:
                threading.Thread(target=self._observe_in_thread, name="singleton-lock-lost", daemon=True).start()
            else:
                self._observe()
        return True

    def _observe_in_thread(self) -> None:
        try:
            self._observe()
        except BaseException:  # a SystemExit, say, which would end the thread without a word
            logger.exception("the observer of a lost lease failed")

    def _observe(self) -> None:
        assert self._on_lost is not None
        try:
            self._on_lost(self)
        except Exception:  # an observer's fault must not change the task's outcome
            logger.exception("the observer of a lost lease failed")

    def end(self) -> None:
        """The body is over: nothing is lost any more, and nothing held."""
        if self.lost:
            self.lose(self.overdue())
        with self._lock:
            self.ended = True


class NoLease:
    """Stands where a lease would: the body runs without a lock on ``key``, knowingly."""

    def __init__(self, key: str) -> None:
        self.key = key

    def covers(self, key: str) -> bool:
        """Whether the decision to run without a lock was made for ``key``."""
        return self.key == key


_held: ContextVar[tuple[Lease | NoLease, ...]] = ContextVar("singleton_lock_held", default=())


def current_lease() -> Lease | None:
    """The lease that the running body holds; None where no lock is held."""
    held = _held.get()
    lease = held[-1] if held else None
    return lease if isinstance(lease, Lease) and not lease.ended else None  # one that ended was left behind


def is_covered(key: str) -> bool:
    """Whether a body of this context holds ``key``, or has decided to run without."""
    return any(lease.covers(key) for lease in _held.get())


@contextmanager
def lease_scope(lease: Lease | NoLease, *, outermost: bool = False) -> Iterator[None]:
    """Make ``lease`` the current one for the block: per thread and greenlet, never on an object they share.

    `NoLease`: the block must not take an outer body's lease for its own. ``outermost``: nothing is around the block;
    a lease that an asynchronous exception kept from being taken down again is not believed.
    """
    mark = _held.set((lease,) if outermost else (*_held.get(), lease))
    try:
        yield
    finally:
        _held.reset(mark)
