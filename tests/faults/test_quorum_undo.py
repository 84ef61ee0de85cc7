"""The undo of a quorum: each test fails where its rule is taken out."""

from __future__ import annotations

import signal
import threading
import time
from importlib.resources import files

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.answers import Holder, SplitVote, Taken
from celery_singleton_lock.locks.protocol import AcquireRequest, HeldLock

from ..support.quorums import settle
from ..support.waiting import eventually
from .conftest import Deployment
from .rules import NAMES, TTL, fences, granted, guard, lose_request, occupy, warm

ACQUIRE_TEXT = files("celery_singleton_lock.stores").joinpath("lua/acquire.lua").read_text()
PATIENCE = 15.0  # seconds for what comes at once


class TestUndo:
    """Whoever does not get a majority leaves nothing behind (B43)."""

    def test_busy_majority(self, three: Deployment) -> None:
        """(a) The third server is free again at once, when the two others are another's."""
        store = three.quorum()
        warm(store)
        occupy(three, [0, 1])
        answer = guard(store).acquire()
        assert isinstance(answer, Taken)
        assert answer.holder.task_id == "other"
        settle(store)
        assert NAMES.lock not in three.stored()[2]

    def test_undo_raises_the_fence(self, three: Deployment) -> None:
        """(a) The undone server's fence is past the attempt's, so nothing of its token sets the lock again."""
        store = three.quorum()
        store._wall = lambda: 5.0
        warm(store)
        occupy(three, [0, 1])
        holder = Holder("x")
        assert isinstance(store.acquire(AcquireRequest(NAMES, "f" * 32, holder, TTL)), Taken)
        settle(store)
        assert fences(three)[2] == 5_000_001
        assert store.renew([HeldLock(NAMES, "f" * 32, 5_000_000, TTL, holder)], 1.0) == [False]
        settle(store)
        assert NAMES.lock not in three.stored()[2]

    def test_late_grant_is_undone(self, five: Deployment) -> None:
        """(a, d) A request that a slow server reads after the attempt is over is undone behind itself."""
        store = five.quorum()
        warm(store)
        occupy(five, [0, 1, 2])
        for cable in five.cables[3:]:
            cable.hold()
        assert isinstance(guard(store).acquire(), Taken)
        for cable in five.cables[3:]:
            cable.heal()
        settle(store)
        assert [NAMES.lock in keys for keys in five.stored()] == [True, True, True, False, False]

    def test_late_undo_meets_forgotten_scripts(self, five: Deployment) -> None:
        """An undo that a slow server cannot carry out, since its scripts are gone, is sent again in full (B38)."""
        store = five.quorum()
        warm(store)
        occupy(five, [0, 1, 2])
        five.cables[3].hold()
        assert isinstance(guard(store).acquire(), Taken)
        with five.servers[3].client() as client:
            client.script_flush()
            client.script_load(ACQUIRE_TEXT)  # it knows how to take a lock, and not how to free one
        five.cables[3].heal()
        settle(store)
        assert NAMES.lock not in five.stored()[3]

    def test_no_connection_is_free(self, three: Deployment) -> None:
        """A server whose connections are all in use gets its release on the next that is free: no call waits for it."""
        store = three.quorum()
        warm(store)
        one = guard(store)
        granted(one)
        settle(store)
        node = store.nodes[2]
        taken = []
        while (stream := node.take()) is not None:
            taken.append(stream)
        assert one.release() is True
        for stream in taken:
            node.give(stream)
        eventually(lambda: NAMES.lock not in three.stored()[2], PATIENCE, "the release")

    def test_lost_reply_on_a_broken_connection(self, five: Deployment) -> None:
        """(d) Where a connection broke with the request unanswered, the token is refused for a late one."""
        store = five.quorum(timeout=2.0)
        warm(store)
        occupy(five, [0, 1])
        five.cables[2].swallow()
        five.cables[3].swallow()

        def cut() -> None:
            eventually(lambda: NAMES.lock in five.stored()[3], PATIENCE, "the request")
            five.cables[3].heal()

        thread = threading.Thread(target=cut)
        thread.start()
        with pytest.raises(StoreUnavailable) as caught:
            guard(store).acquire()
        thread.join()
        assert not caught.value.denied
        refused = five.stored("*:tombstone*")
        assert refused[3]
        five.cables[2].heal()
        eventually(lambda: [NAMES.lock in keys for keys in five.stored()][2:] == [False] * 3, PATIENCE, "the undo")

    def test_doubtful_request_to_a_taken_server(self, five: Deployment) -> None:
        """(d) Where a request was lost with its connection, the token is refused on all, also where it is taken."""
        store = five.quorum(timeout=5.0)
        warm(store)
        occupy(five, [0, 1, 2])
        five.cables[2].hold()
        thread = threading.Thread(target=lose_request, args=(five.cables[2],))
        thread.start()
        assert isinstance(guard(store).acquire(), Taken)
        thread.join()
        settle(store)
        assert [len(keys) for keys in five.stored("*:tombstone*")] == [1] * 5
        assert [NAMES.lock in keys for keys in five.stored()] == [True, True, True, False, False]

    def test_doubtful_request_before_a_grant(self, three: Deployment) -> None:
        """(d) A lock that was granted after a request was lost leaves its token refused when it is released."""
        store = three.quorum(timeout=5.0)
        warm(store)
        for cable in three.cables[1:]:
            cable.hold()
        thread = threading.Thread(target=lose_request, args=(three.cables[1],))
        thread.start()
        one = guard(store)
        assert granted(one).unanswered
        thread.join()
        three.cables[2].heal()
        assert one.release() is True
        settle(store)
        assert one.lease is not None
        assert [NAMES.tombstone(one.lease.token) in keys for keys in three.stored()] == [True] * 3
        assert [NAMES.lock in keys for keys in three.stored()] == [False] * 3

    def test_interrupted_attempt(self, three: Deployment) -> None:
        """A time limit that lands while the votes come in gives back what was granted meanwhile."""
        store = three.quorum(timeout=5.0)
        warm(store)
        for cable in three.cables[1:]:
            cable.hold()

        class Interrupt(BaseException):
            pass

        def strike(*_: object) -> None:
            raise Interrupt

        one = guard(store)
        previous = signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(Interrupt):
                one.acquire()
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert NAMES.lock not in three.stored()[0]
        for cable in three.cables:
            cable.heal()
        settle(store)
        assert [NAMES.lock in keys for keys in three.stored()] == [False] * 3
        one.release()
        assert granted(guard(store)).fence

    def test_validity_is_of_the_attempt_that_won(self, three: Deployment) -> None:
        """(c) A grant that needed several attempts is as long as one: the clock starts with each (B43)."""
        store = three.quorum(timeout=8.0)
        warm(store)
        occupy(three, [0], "d" * 32)
        occupy(three, [1], "e" * 32)
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            time.sleep(0.5)
            if len(pauses) == 3:
                for server in three.servers:
                    with server.client() as client:
                        client.delete(NAMES.lock)

        one = guard(store, ttl=40.0, sleep=sleep)
        granted(one)
        assert len(pauses) == 3
        assert one.lease is not None
        assert one.lease.remaining() > 40.0 * 0.99 - 0.002 - 0.45

    def test_split_vote_is_no_answer(self, five: Deployment) -> None:
        """Several minorities are a split, never taken; when the time is over it is no reason to run without a lock."""
        store = five.quorum(timeout=2.0)
        warm(store)
        occupy(five, [0, 1], "d" * 32)
        occupy(five, [2, 3], "e" * 32)
        ask = AcquireRequest(NAMES, "f" * 32, Holder("x"), TTL)
        assert isinstance(store.acquire(ask), SplitVote)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            guard(store).acquire()
        assert caught.value.contended
        assert time.monotonic() - began < 10  # without the bound, until the other locks' end
        settle(store)
        assert NAMES.lock not in five.stored()[4]
