"""A quorum's servers that lost their memory: each test fails where its rule is taken out."""

from __future__ import annotations

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.stores.quorum import QuorumStore

from ..support.locks import NAMES, TTL, held_guard, lease_of, lock_of, settle
from .conftest import Deployment


class TestRestored:
    """On a server that has lost its memory the next renewal restores the lock, unless it must not."""

    def renewed(self, store: QuorumStore, guard: Guard) -> list[bool | None]:
        """What a renewal of ``guard`` gives."""
        found = store.renew([lock_of(guard)], 1.0)
        settle(store)
        return found

    def test_flushed_server_has_it_restored(self, three: Deployment) -> None:
        """Its lock and its fence are there again, with an end."""
        store = three.quorum()
        guard = held_guard(store)
        fence = lease_of(guard).fence
        server = three.servers[0]
        server.run("FLUSHALL")
        assert self.renewed(store, guard) == [True]
        assert server.run("GET", NAMES.fence) == str(fence)
        assert 0 < server.run("PTTL", NAMES.lock) <= TTL * 1000
        assert server.run("ZSCORE", NAMES.index, NAMES.resource)

    def test_newer_fence_is_left_alone(self, three: Deployment) -> None:
        """Where a newer owner has been, its fence keeps the older lease from coming back."""
        store = three.quorum()
        guard = held_guard(store)
        fence = lease_of(guard).fence
        three.servers[0].run("DEL", NAMES.lock)
        three.servers[0].run("SET", NAMES.fence, fence + 1)
        assert self.renewed(store, guard) == [True]
        assert not three.locked()[0]

    def test_tombstone_keeps_it_away(self, three: Deployment) -> None:
        """Where the token has a tombstone, for a late request of its own, no renewal brings its lock back."""
        store = three.quorum()
        guard = held_guard(store)
        settle(store)
        three.servers[0].run("DEL", NAMES.lock)
        three.servers[0].run("SET", NAMES.tombstone(lock_of(guard).token), "", "PX", 30_000)
        assert self.renewed(store, guard) == [True]
        assert not three.locked()[0]

    def test_foreign_lock_is_left_alone(self, three: Deployment) -> None:
        """A server that is another's by now is not taken back."""
        store = three.quorum()
        guard = held_guard(store)
        three.occupy([0])
        assert self.renewed(store, guard) == [True]
        assert three.servers[0].run("GET", NAMES.lock).startswith("h:ccc")

    def test_renewal_after_the_release_sets_nothing(self, three: Deployment) -> None:
        """A renewal that was on its way when the lock was released finds a higher fence, on every server."""
        store = three.quorum()
        guard = held_guard(store)
        late = lock_of(guard)
        guard.release()
        settle(store)
        assert store.renew([late], 1.0) == [False]
        settle(store)
        assert three.locked() == [False] * 3

    def test_majority_refuses(self, three: Deployment) -> None:
        """A lease that a majority has refused is lost at once, not at its deadline."""
        store = three.quorum()
        guard = held_guard(store)
        three.occupy([0, 1])
        assert store.renew([lock_of(guard)], 1.0) == [False]

    def test_minority_confirms_nothing(self, three: Deployment) -> None:
        """A renewal that one of three servers has confirmed extends no deadline."""
        store = three.quorum(timeout=0.5)
        guard = held_guard(store)
        lease = lease_of(guard)
        before = lease.deadline
        for cable in three.cables[1:]:
            cable.hold()
        assert store.renew([lock_of(guard)], 0.1) == [None]
        with pytest.raises(StoreUnavailable):
            guard.extend(5 * TTL)
        assert lease.deadline <= before
        assert not lease.lost
