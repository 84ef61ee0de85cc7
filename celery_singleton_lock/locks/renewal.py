"""The one thread of a process that renews every lease the process holds."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import dataclass
from weakref import ref

from ..errors import StoreUnavailable
from .clock import Clock, now
from .forks import forget_in_children
from .lease import Lease
from .protocol import HeldLock, Store
from .terms import call_timeout

logger = logging.getLogger(__name__)

#: A lease is renewed at this share of its ttl, and after a failure at the smaller one.
PERIOD = 1 / 3
RETRY_PERIOD = 1 / 12


@dataclass(slots=True)
class _Entry:
    owner: ref[Lease]  # weak: a lease that its call has forgotten, however that ended, is not renewed for ever
    lock: HeldLock
    store: Store
    due: float

    def looked_at(self) -> float:
        """The clock's reading at which something has to be done: a renewal, or to say that the lease is over."""
        lease = self.owner()
        return self.due if lease is None else min(self.due, lease.deadline)

    def longest_call(self) -> float:
        """The longest time, in seconds, that a call may take beside this lease."""
        lease = self.owner()
        return call_timeout(self.lock.ttl if lease is None else lease.remaining(), self.lock.ttl)


class Renewer:
    """Renews leases in batches from one thread, which starts with the first and ends ``idle`` seconds after the last.

    Without ``threaded`` nothing moves but by `tick`, which tests call. A forked child starts with no lease: only the
    process that was granted one renews it.
    """

    def __init__(self, clock: Clock = now, *, idle: float = 5.0, threaded: bool = True) -> None:
        self._clock = clock
        self._idle = idle
        self._threaded = threaded
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        """In a forked child: the thread is not here, its lock may be held for ever, and the leases are the parent's."""
        # Taken by itself and not through the condition, whose __enter__ is Python code: a time limit that strikes a
        # body's thread in there would leave the lock taken for ever.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._entries: dict[str, _Entry] = {}
        self._thread: threading.Thread | None = None
        self._wakes: float | None = None  # when the thread looks again; None: it is busy now

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, lease: Lease, lock: HeldLock, store: Store, sent: float) -> None:
        """Renew ``lease`` from now on, first a third of its ttl after it was asked for at ``sent``."""
        entry = _Entry(ref(lease), lock, store, sent + lock.ttl * PERIOD)
        with self._lock:
            self._entries[lock.token] = entry
            if not self._threaded:
                return
            if self._thread is None or not self._thread.is_alive():
                self._wakes = None
                thread = threading.Thread(target=self._run, name="singleton-lock-renewal", daemon=True)
                thread.start()  # may raise after the thread has begun, where a time limit strikes
                self._thread = thread
            elif self._wakes is not None and entry.due < self._wakes:
                self._changed.notify()

    def discard(self, token: str) -> None:
        """Stop renewing. A renewal already on its way does no harm: it extends only a lock that is still held."""
        with self._lock:
            self._entries.pop(token, None)

    def tick(self) -> float | None:
        """Renew what is due. Returns seconds until something is due next, or None where nothing is held."""
        with self._lock:
            entries = list(self._entries.values())
        entries = [entry for entry in entries if not self._overdue(entry)]
        if not entries:
            return None
        # No call may outlast any lease: a hung server must not keep the others from knowing of their end.
        timeout = min(entry.longest_call() for entry in entries)
        batches: dict[int, list[_Entry]] = defaultdict(list)
        start = self._clock()
        for entry in entries:
            # What is due soon goes along, so that many leases fall into step and share a round trip.
            if entry.due - entry.lock.ttl * RETRY_PERIOD <= start:
                batches[id(entry.store)].append(entry)
        for batch in batches.values():
            at = self._clock()
            self._settle(batch, at, self._send(batch, timeout))
        with self._lock:
            return self._pause()

    def _pause(self) -> float | None:
        if not self._entries:
            return None
        return max(0.0, min(entry.looked_at() for entry in self._entries.values()) - self._clock())

    def _overdue(self, entry: _Entry) -> bool:
        lease = entry.owner()
        if lease is not None:
            if not lease.lost:
                return False
            lease.lose(lease.overdue(), in_thread=self._threaded)
        self.discard(entry.lock.token)
        return True

    def _send(self, batch: list[_Entry], timeout: float) -> list[bool | None]:
        store = batch[0].store
        try:
            return store.renew([entry.lock for entry in batch], min(store.timeout, timeout))
        except StoreUnavailable as error:
            logger.warning("could not renew %d lease(s), will try again: %s", len(batch), error)
        except Exception:  # a fault here must not end the thread: the other leases live by it
            logger.exception("renewal failed, will try again")
        return [None] * len(batch)

    def _settle(self, batch: list[_Entry], sent: float, answers: list[bool | None]) -> None:
        for entry, held in zip(batch, answers, strict=True):
            lease, ttl = entry.owner(), entry.lock.ttl
            if lease is None:  # released meanwhile
                continue
            if held is None:
                entry.due = self._clock() + ttl * RETRY_PERIOD
            elif held:
                lease.confirm(sent, ttl)  # where it came too late, the next tick finds the lease overdue
                entry.due = sent + ttl * PERIOD
            else:
                lease.lose("the server does not hold it any more", in_thread=self._threaded)
                self.discard(entry.lock.token)

    def _run(self) -> None:
        this = threading.current_thread()
        with self._lock:
            if self._thread not in (None, this) and self._thread.is_alive():
                return
            self._thread = this
        idle_since: float | None = None
        while True:
            try:
                self.tick()
            except BaseException:  # an observer's SystemExit, say: the other leases live by this thread
                logger.exception("renewal failed, goes on")
            with self._lock:
                pause = self._pause()  # anew: a lease may have come since the tick looked
                if pause is not None:
                    idle_since = None
                else:
                    idle_since = self._clock() if idle_since is None else idle_since
                    pause = idle_since + self._idle - self._clock()
                    if pause <= 0:
                        self._thread = None
                        return
                self._wakes = self._clock() + pause
                self._changed.wait(pause)
                self._wakes = None


_default: Renewer | None = None


def default_renewer() -> Renewer:
    """The process's renewer."""
    global _default
    if _default is None:
        _default = Renewer()
    return _default
