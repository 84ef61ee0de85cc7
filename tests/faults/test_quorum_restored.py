"""A quorum's servers that lost their memory: each test fails where its rule is taken out."""

from __future__ import annotations

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.locks.renewal import Renewer

from ..support.quorums import settle
from .conftest import Deployment
from .rules import NAMES, TTL, granted, guard, hold_of, occupy, warm


class TestSetAgain:
    """A server that has lost its memory is set again by the next renewal, unless it must not."""

    def renewed(self, store: Store, one: Guard) -> list[bool | None]:
        """What a renewal of ``one`` gives."""
        found = store.renew([hold_of(one)], 1.0)
        settle(store)  # type: ignore[arg-type]
        return found

    def test_flushed_server_is_set_again(self, three: Deployment) -> None:
        """Its lock and its fence are there again, with an end."""
        store = three.quorum()
        warm(store)
        one = guard(store)
        fence = granted(one).fence
        with three.servers[0].client() as client:
            client.flushall()
            assert self.renewed(store, one) == [True]
            assert client.get(NAMES.fence) == str(fence)
            assert 0 < client.pttl(NAMES.lock) <= TTL * 1000
            assert client.zscore(NAMES.index, NAMES.resource)

    def test_newer_fence_is_left_alone(self, three: Deployment) -> None:
        """Where a newer owner has been, its fence keeps the older lease from coming back."""
        store = three.quorum()
        warm(store)
        one = guard(store)
        fence = granted(one).fence
        with three.servers[0].client() as client:
            client.delete(NAMES.lock)
            client.set(NAMES.fence, fence + 1)
            assert self.renewed(store, one) == [True]
            assert client.get(NAMES.lock) is None

    def test_refused_token_is_left_alone(self, three: Deployment) -> None:
        """Where the token was refused, for a late request of its own, no renewal brings its lock back."""
        store = three.quorum()
        warm(store)
        one = guard(store)
        granted(one)
        settle(store)
        with three.servers[0].client() as client:
            client.delete(NAMES.lock)
            client.set(NAMES.tombstone(hold_of(one).token), "", px=30_000)
            assert self.renewed(store, one) == [True]
            assert client.get(NAMES.lock) is None

    def test_foreign_lock_is_left_alone(self, three: Deployment) -> None:
        """A server that is another's by now is not taken back."""
        store = three.quorum()
        warm(store)
        one = guard(store)
        granted(one)
        occupy(three, [0])
        assert self.renewed(store, one) == [True]
        with three.servers[0].client() as client:
            assert client.get(NAMES.lock).startswith("h:ccc")  # type: ignore[union-attr]

    def test_renewal_after_the_release_sets_nothing(self, three: Deployment) -> None:
        """A renewal that was on its way when the lock was released finds a higher fence, on every server."""
        store = three.quorum()
        warm(store)
        one = guard(store)
        granted(one)
        late = hold_of(one)
        one.release()
        settle(store)
        assert store.renew([late], 1.0) == [False]
        settle(store)
        assert [NAMES.lock in keys for keys in three.stored()] == [False] * 3

    def test_majority_refuses(self, three: Deployment) -> None:
        """A lease that a majority has refused is lost at once, not at its deadline."""
        store = three.quorum()
        warm(store)
        renewer = Renewer(threaded=False)
        one = Guard(store, "order:7", ttl=TTL, renewer=renewer)
        granted(one)
        occupy(three, [0, 1])
        assert store.renew([hold_of(one)], 1.0) == [False]

    def test_minority_confirms_nothing(self, three: Deployment) -> None:
        """A renewal that one of three servers has confirmed extends no deadline."""
        store = three.quorum(timeout=0.5)
        warm(store)
        one = guard(store)
        granted(one)
        assert one.lease is not None
        before = one.lease.deadline
        for cable in three.cables[1:]:
            cable.hold()
        assert store.renew([hold_of(one)], 0.1) == [None]
        with pytest.raises(StoreUnavailable):
            one.extend(5 * TTL)
        assert one.lease.deadline <= before
        assert not one.lease.lost
