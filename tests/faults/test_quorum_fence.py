"""The fence of a quorum: each test fails where its rule is taken out."""

from __future__ import annotations

import time

from ..support.locks import NAMES, held_guard, lease_of, settle
from .conftest import Deployment


class TestFence:
    """The fence is one, and agreed by a majority."""

    def test_second_round_agrees(self, three: Deployment) -> None:
        """Servers that remember different fences agree on the highest before anything is granted."""
        store = three.quorum()
        ahead = int(time.time() * 1e6) + 3_600_000_000
        for server, last in zip(three.servers, (ahead, ahead + 50, ahead + 9), strict=True):
            server.run("SET", NAMES.fence, last)
        fence = lease_of(held_guard(store)).fence
        settle(store)
        assert min(three.fences()) >= fence
        agreed = [server.run("GET", NAMES.lock).split(":")[2] for server in three.servers]
        assert agreed.count(str(fence)) >= 2
        assert fence > ahead + 9

    def test_release_raises_the_fence_everywhere(self, five: Deployment) -> None:
        """A server that was another's, or had no lock, knows the fence after the release, for later grants."""
        store = five.quorum()
        five.occupy([4])
        guard = held_guard(store)
        fence = lease_of(guard).fence
        five.servers[3].run("FLUSHALL")
        guard.release()
        settle(store)
        assert min(five.fences()) > fence

    def test_fences_increase_over_clocks_that_differ(self, five: Deployment) -> None:
        """A client whose clock is an hour behind still gets a higher fence than the one before it."""
        stores = five.quorum(), five.quorum(wall=lambda: time.time() - 3600)
        fences = []
        for turn in range(6):
            guard = held_guard(stores[turn % 2])
            fences.append(lease_of(guard).fence)
            guard.release()
        assert fences == sorted(set(fences))
