"""Locks in this process's memory: for tests, and for programs of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from ..keys.names import DEFAULT_PREFIX, Names
from ..locks.answers import Answer, Granted, Holder, Recorded, Taken
from ..locks.clock import Clock, now
from ..locks.protocol import AcquireRequest, HeldLock, RecordWrite, ServerState
from ..locks.terms import DEFAULT_TIMEOUT, FENCE_TTL, tombstone_ttl

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
    majority = 1
    _named: ClassVar[dict[str, MemoryStore]] = {}
    _naming = threading.Lock()

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = DEFAULT_TIMEOUT,
        clock: Clock = now,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.prefix = prefix
        self.timeout = timeout
        self._wall = wall
        self._lock = threading.Lock()
        self._locks: _Expiring[_Lock] = _Expiring(clock)
        self._fences: _Expiring[int] = _Expiring(clock)
        self._tombstones: _Expiring[bool] = _Expiring(clock)
        self._records: _Expiring[Recorded] = _Expiring(clock)

    @classmethod
    def named(cls, url: str, *, prefix: str, timeout: float) -> MemoryStore:
        """The one store of this process behind ``url`` and ``prefix``, as two clients of one server share it."""
        with cls._naming:
            return cls._named.setdefault(f"{url} {prefix}", cls(prefix=prefix, timeout=timeout))

    def acquire(self, request: AcquireRequest) -> Answer:
        """See `Store.acquire`."""
        names = request.names
        with self._lock:
            lock = self._locks.get(names.lock)
            if lock is not None and lock.token == request.token and not lock.resting:
                self._locks.set(names.lock, lock, request.ttl)
                return Granted(lock.fence)
            if request.record_id is not None:
                name = names.record(request.record_id)
                record = self._records.get(name)
                if record is not None and record.attempt >= request.attempt:
                    return record._replace(ttl=self._records.remaining(name))
            dead = self._tombstones.get(names.tombstone(request.token)) is not None
            taken_over = lock is not None and lock.resting and lock.holder.task_id == request.holder.task_id is not None
            if dead or (lock is not None and not taken_over):
                return self._taken(names, lock)
            fence = max((self._fences.get(names.fence) or 0) + 1, int(self._wall() * 1_000_000))
            self._fences.set(names.fence, fence, FENCE_TTL)
            self._locks.set(names.lock, _Lock(request.token, fence, request.holder), request.ttl)
            return Granted(fence)

    def renew(self, locks: Sequence[HeldLock], timeout: float) -> list[bool | None]:
        """See `Store.renew`."""
        with self._lock:
            return [self._renew(lock) for lock in locks]

    def _renew(self, held: HeldLock) -> bool:
        names = held.names
        lock = self._locks.get(names.lock)
        if lock is None or lock.token != held.token or lock.resting:
            return False
        ttl = held.ttl if held.may_shorten else max(held.ttl, self._locks.remaining(names.lock))
        self._locks.set(names.lock, lock, ttl)
        self._fences.set(names.fence, self._fences.get(names.fence) or lock.fence, FENCE_TTL)
        return True

    def release(
        self, lock: HeldLock, *, rest: float = 0.0, write: RecordWrite | None = None, unanswered: bool = False
    ) -> bool:
        """See `Store.release`."""
        names = lock.names
        with self._lock:
            found = self._locks.get(names.lock)
            mine = found is not None and found.token == lock.token
            if write is not None and (mine or (self._fences.get(names.fence) or 0) <= lock.fence):
                record = Recorded(write.body, write.attempt, lock.fence)
                self._records.set(names.record(write.record_id), record, write.ttl)
            if unanswered:
                self._tombstones.set(names.tombstone(lock.token), True, tombstone_ttl(lock.ttl))
            if found is None or not mine:
                return False
            if rest > 0:
                found.resting = True
                self._locks.set(names.lock, found, rest)
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

    def inspect(self) -> list[ServerState]:
        """See `Store.inspect`."""
        return []

    def close(self) -> None:
        """Nothing is open."""
