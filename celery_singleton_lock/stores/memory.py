"""Locks in this process's memory: for tests, and for programs of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from ..clock import Clock, now
from ..keys import Names
from ..protocol import (
    FENCE_TTL,
    Answer,
    Ask,
    Granted,
    Hold,
    Holder,
    Recorded,
    Taken,
    Write,
    refusal_time,
)

V = TypeVar("V")


@dataclass(slots=True)
class _Lock:
    token: str
    fence: int
    holder: Holder
    resting: bool = False


class _Expiring(Generic[V]):
    """A mapping whose entries end by the clock, as a server's keys do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[V, float]] = {}
        self._sweep_at = 1024

    def get(self, name: str) -> V | None:
        value, end = self._entries.get(name, (None, 0.0))
        if value is not None and end <= self._clock():
            del self._entries[name]
            return None
        return value

    def set(self, name: str, value: V, ttl: float) -> None:
        if len(self._entries) >= self._sweep_at:  # so that what nobody asks for again does not stay
            time_now = self._clock()
            self._entries = {key: entry for key, entry in self._entries.items() if entry[1] > time_now}
            self._sweep_at = max(1024, 2 * len(self._entries))
        self._entries[name] = (value, self._clock() + ttl)

    def remaining(self, name: str) -> float:
        return self._entries[name][1] - self._clock()

    def pop(self, name: str) -> None:
        self._entries.pop(name, None)


class MemoryStore:
    """The store contract in one process. ``clock`` moves the expiries, ``wall`` (unix seconds) feeds the fences."""

    shared = False
    _named: ClassVar[dict[str, MemoryStore]] = {}
    _naming = threading.Lock()

    def __init__(
        self,
        *,
        prefix: str = "singleton-lock",
        timeout: float = 1.0,
        clock: Clock = now,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.prefix = prefix
        self.timeout = timeout
        self._wall = wall
        self._lock = threading.Lock()
        self._locks: _Expiring[_Lock] = _Expiring(clock)
        self._fences: _Expiring[int] = _Expiring(clock)
        self._refused: _Expiring[bool] = _Expiring(clock)
        self._records: _Expiring[Recorded] = _Expiring(clock)

    @classmethod
    def named(cls, url: str, *, prefix: str, timeout: float) -> MemoryStore:
        """The one store of this process behind ``url`` and ``prefix``, as two clients of one server share it."""
        with cls._naming:
            return cls._named.setdefault(f"{url} {prefix}", cls(prefix=prefix, timeout=timeout))

    def acquire(self, ask: Ask) -> Answer:
        """See `Store.acquire`."""
        names = ask.names
        with self._lock:
            lock = self._locks.get(names.lock)
            if lock is not None and lock.token == ask.token and not lock.resting:
                self._locks.set(names.lock, lock, ask.ttl)
                return Granted(lock.fence)
            if ask.record_id is not None:
                name = names.record(ask.record_id)
                record = self._records.get(name)
                if record is not None and record.rank >= ask.rank:
                    return record._replace(ttl=self._records.remaining(name))
            refused = self._refused.get(names.refused(ask.token)) is not None
            taken_over = lock is not None and lock.resting and lock.holder.task_id == ask.holder.task_id is not None
            if refused or (lock is not None and not taken_over):
                return self._taken(names, lock)
            fence = max((self._fences.get(names.fence) or 0) + 1, int(self._wall() * 1_000_000))
            self._fences.set(names.fence, fence, FENCE_TTL)
            self._locks.set(names.lock, _Lock(ask.token, fence, ask.holder), ask.ttl)
            return Granted(fence)

    def renew(self, holds: Sequence[Hold], timeout: float) -> list[bool | None]:
        """See `Store.renew`."""
        with self._lock:
            return [self._renew(hold) for hold in holds]

    def _renew(self, hold: Hold) -> bool:
        lock = self._locks.get(hold.names.lock)
        if lock is None or lock.token != hold.token or lock.resting:
            return False
        ttl = hold.ttl if hold.exact else max(hold.ttl, self._locks.remaining(hold.names.lock))
        self._locks.set(hold.names.lock, lock, ttl)
        self._fences.set(hold.names.fence, self._fences.get(hold.names.fence) or lock.fence, FENCE_TTL)
        return True

    def release(self, hold: Hold, *, rest: float = 0.0, write: Write | None = None, unanswered: bool = False) -> bool:
        """See `Store.release`."""
        names = hold.names
        with self._lock:
            lock = self._locks.get(names.lock)
            mine = lock is not None and lock.token == hold.token
            if write is not None and (mine or (self._fences.get(names.fence) or 0) <= hold.fence):
                record = Recorded(write.body, write.rank, hold.fence)
                self._records.set(names.record(write.record_id), record, write.ttl)
            if unanswered:
                self._refused.set(names.refused(hold.token), True, refusal_time(hold.ttl))
            if lock is None or not mine:
                return False
            if rest > 0:
                lock.resting = True
                self._locks.set(names.lock, lock, rest)
            else:
                self._locks.pop(names.lock)
            return True

    def peek(self, names: Names) -> Taken | None:
        """See `Store.peek`."""
        with self._lock:
            lock = self._locks.get(names.lock)
            return None if lock is None else self._taken(names, lock)

    def _taken(self, names: Names, lock: _Lock | None) -> Taken:
        if lock is None:
            return Taken(Holder(), None)
        return Taken(lock.holder, self._locks.remaining(names.lock), lock.resting, lock.token, lock.fence)

    def close(self) -> None:
        """Nothing is open."""
