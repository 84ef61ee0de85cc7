"""How a store is added: the example of CONTRIBUTING.md, with the contract that says whether it is one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from celery_singleton_lock.keys.names import Names
from celery_singleton_lock.locks.answers import Answer, Taken
from celery_singleton_lock.locks.clock import now
from celery_singleton_lock.locks.protocol import AcquireRequest, HeldLock, RecordWrite, ServerState, Store
from celery_singleton_lock.stores.memory import MemoryStore

from ..support.clock import ManualClock
from ..support.locks import Owner
from .contract import StoreContract
from .doors import BackDoor
from .test_memory import MemoryDoor

T = TypeVar("T")


class TimedStore:
    """Notes how long each call of another store takes. ``seconds``: one entry a call, by the method's name."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.prefix, self.timeout = store.prefix, store.timeout
        self.shared, self.majority = store.shared, store.majority
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def _timed(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        start = now()
        try:
            return call(*args, **kwargs)
        finally:
            self.seconds[call.__name__].append(now() - start)

    def acquire(self, request: AcquireRequest) -> Answer:
        return self._timed(self.store.acquire, request)

    def renew(self, locks: Sequence[HeldLock], timeout: float) -> list[bool | None]:
        return self._timed(self.store.renew, locks, timeout)

    def release(
        self, lock: HeldLock, *, rest: float = 0.0, write: RecordWrite | None = None, unanswered: bool = False
    ) -> bool:
        return self._timed(self.store.release, lock, rest=rest, write=write, unanswered=unanswered)

    def peek(self, names: Names) -> Taken | None:
        return self._timed(self.store.peek, names)

    def inspect(self) -> list[ServerState]:
        return self.store.inspect()

    def close(self) -> None:
        self.store.close()


class TestTimedStore(StoreContract):
    """The contract, inherited: `store` is what it is held against, `door` how the tests reach its keys."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock of ends and of fences."""
        return ManualClock()

    @pytest.fixture
    def memory(self, clock: ManualClock) -> MemoryStore:
        """The store behind it, empty."""
        return MemoryStore(clock=clock, wall=clock)

    @pytest.fixture
    def store(self, memory: MemoryStore) -> TimedStore:
        """The store."""
        return TimedStore(memory)

    @pytest.fixture
    def door(self, memory: MemoryStore, clock: ManualClock) -> BackDoor:
        """Its keys."""
        return MemoryDoor(memory, clock)

    def test_calls_are_timed(self, store: TimedStore, anna: Owner) -> None:
        """What a store does beside the contract has tests of its own: each call is noted once."""
        anna.granted()
        anna.renew()
        anna.release()
        assert [(call, len(seconds)) for call, seconds in store.seconds.items()] == [
            ("acquire", 1),
            ("renew", 1),
            ("release", 1),
        ]
