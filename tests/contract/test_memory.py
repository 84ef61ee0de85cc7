"""The in-memory store keeps the contract."""

from __future__ import annotations

import pytest

from celery_singleton_lock.stores.memory import MemoryStore

from ..support.clock import ManualClock
from ..support.locks import Owner
from .contract import StoreContract
from .doors import BackDoor


class MemoryDoor:
    """Moves the store's clock where a server's key would be given another end.

    It reads the store's own maps: what they hold is asked for by nobody but these tests.
    """

    def __init__(self, store: MemoryStore, clock: ManualClock) -> None:
        self._maps = (store._locks, store._fences, store._tombstones, store._records)
        self._clock = clock

    def leave(self, name: str, seconds: float) -> None:
        """Let time pass until ``name`` has so long to live."""
        self._clock.advance(self.lifetimes()[name] - seconds)

    def kept(self) -> dict[str, float]:
        """Every key, also those that have come to their end and were not swept yet."""
        return {name: one.remaining(name) for one in self._maps for name in one._entries}

    def lifetimes(self) -> dict[str, float]:
        """The keys that have not come to their end."""
        return {name: left for name, left in self.kept().items() if left > 0}


class TestMemoryStore(StoreContract):
    """The contract, with a clock that the tests move."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock of ends and of fences."""
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> MemoryStore:
        """An empty store."""
        return MemoryStore(clock=clock, wall=clock)

    @pytest.fixture
    def door(self, store: MemoryStore, clock: ManualClock) -> BackDoor:
        """Its keys."""
        return MemoryDoor(store, clock)

    def test_fences_increase_when_the_wall_clock_does_not(self, clock: ManualClock) -> None:
        """A wall clock that goes back an hour, or stands still, does not lower the fences (B51)."""
        wall = ManualClock(1_000_000.0)
        store = MemoryStore(clock=clock, wall=wall)
        fences = []
        for step in (0.0, 0.0, -3600.0, 1.0):
            wall.advance(step)
            owner = Owner(store)
            fences.append(owner.granted())
            owner.release()
        assert fences[0] == 1_000_000_000_000
        assert fences == sorted(set(fences))

    def test_what_has_ended_does_not_pile_up(self, clock: ManualClock) -> None:
        """Keys that came to their end are swept, though nobody asks for them again (B48)."""
        store = MemoryStore(clock=clock, wall=clock)
        for number in range(5000):
            Owner(store, key=f"order:{number}").granted(ttl=1)
            clock.advance(2)
        assert sum(":lock:" in name for name in MemoryDoor(store, clock).kept()) < 1100
