"""The fence of a quorum: each test fails where its rule is taken out."""

from __future__ import annotations

import time

from ..support.quorums import settle
from .conftest import Deployment
from .rules import NAMES, granted, guard, occupy, warm


class TestFence:
    """The fence is one, and agreed by a majority."""

    def test_second_round_agrees(self, three: Deployment) -> None:
        """Servers that remember different fences agree on the highest before anything is granted."""
        store = three.quorum()
        warm(store)
        ahead = int(time.time() * 1e6) + 3_600_000_000
        for server, last in zip(three.servers, (ahead, ahead + 50, ahead + 9), strict=True):
            with server.client() as client:
                client.set(NAMES.fence, last)
        answer = granted(guard(store))
        settle(store)
        for server in three.servers:
            with server.client() as client:
                stored = client.get(NAMES.fence)
                assert stored is not None
                assert int(stored) >= answer.fence
                lock = client.get(NAMES.lock)
                assert lock is not None
        agreed = [server.client().get(NAMES.lock).split(":")[2] for server in three.servers]  # type: ignore[union-attr]
        assert agreed.count(str(answer.fence)) >= 2
        assert answer.fence > ahead + 9

    def test_release_raises_the_fence_everywhere(self, five: Deployment) -> None:
        """A server that was another's, or had no lock, knows the fence after the release, for later grants."""
        store = five.quorum()
        warm(store)
        occupy(five, [4])
        one = guard(store)
        fence = granted(one).fence
        with five.servers[3].client() as client:
            client.flushall()
        one.release()
        settle(store)
        for server in five.servers:
            with server.client() as client:
                assert int(client.get(NAMES.fence) or 0) > fence

    def test_fences_increase_over_clocks_that_differ(self, five: Deployment) -> None:
        """A client whose clock is an hour behind still gets a higher fence than the one before it."""
        store, behind = five.quorum(), five.quorum()
        behind._wall = lambda: time.time() - 3600
        warm(store)
        warm(behind)
        fences = []
        for turn in range(6):
            one = guard((store, behind)[turn % 2])
            fences.append(granted(one).fence)
            one.release()
        assert fences == sorted(set(fences))
