"""The undo of a quorum: each test fails where its rule is taken out."""

from __future__ import annotations

import threading
import time
from importlib.resources import files

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.answers import Granted, SplitVote, Taken

from ..support.interrupts import interrupted
from ..support.locks import NAMES, Owner, guard_on, held_guard, lease_of, settle
from ..support.waiting import eventually
from .conftest import Deployment

ACQUIRE_TEXT = files("celery_singleton_lock.stores").joinpath("lua/acquire.lua").read_text()
PATIENCE = 15.0  # seconds for what comes at once


class TestUndo:
    """Whoever does not get a majority leaves nothing behind (B43)."""

    def test_busy_majority(self, three: Deployment) -> None:
        """(a) The third server is free again at once, when the two others are another's."""
        store = three.quorum()
        three.occupy([0, 1])
        answer = guard_on(store).acquire()
        assert isinstance(answer, Taken)
        assert answer.holder.task_id == "other"
        settle(store)
        assert not three.locked()[2]

    def test_undo_raises_the_fence(self, three: Deployment) -> None:
        """(a) The undone server's fence is past the attempt's, so nothing of its token sets the lock again."""
        store = three.quorum(wall=lambda: 5.0)
        three.occupy([0, 1])
        owner = Owner(store)
        assert owner.taken()
        settle(store)
        assert three.fences()[2] == 5_000_001
        owner.fence = 5_000_000
        assert store.renew([owner.lock()._replace(holder=owner.holder)], 1.0) == [False]
        settle(store)
        assert not three.locked()[2]

    def test_late_grant_is_undone(self, five: Deployment) -> None:
        """(a, d) A request that a slow server reads after the attempt is over is undone behind itself."""
        store = five.quorum()
        five.occupy([0, 1, 2])
        for cable in five.cables[3:]:
            cable.hold()
        assert isinstance(guard_on(store).acquire(), Taken)
        for cable in five.cables[3:]:
            cable.heal()
        settle(store)
        assert five.locked() == [True, True, True, False, False]

    def test_late_undo_meets_forgotten_scripts(self, five: Deployment) -> None:
        """An undo that a slow server cannot carry out, since its scripts are gone, is sent again in full (B38)."""
        store = five.quorum()
        five.occupy([0, 1, 2])
        five.cables[3].hold()
        assert isinstance(guard_on(store).acquire(), Taken)
        five.servers[3].run("SCRIPT", "FLUSH")
        five.servers[3].run("SCRIPT", "LOAD", ACQUIRE_TEXT)  # it knows how to take a lock, and not how to free one
        five.cables[3].heal()
        settle(store)
        assert not five.locked()[3]

    def test_no_connection_is_free(self, three: Deployment) -> None:
        """A server whose connections are all in use gets its release on the next that is free: no call waits for it."""
        store = three.quorum()
        guard = held_guard(store)
        settle(store)
        node = store.nodes[2]
        taken = []
        while (stream := node.take()) is not None:
            taken.append(stream)
        assert guard.release() is True
        for stream in taken:
            node.give(stream)
        eventually(lambda: not three.locked()[2], PATIENCE, "the release")

    def test_lost_reply_on_a_broken_connection(self, five: Deployment) -> None:
        """(d) Where a connection broke with the request unanswered, the token gets a tombstone, for a late one."""
        store = five.quorum(timeout=2.0)
        five.occupy([0, 1])
        five.cables[2].swallow()
        five.cables[3].swallow()

        def cut() -> None:
            eventually(lambda: five.locked()[3], PATIENCE, "the request")
            five.cables[3].heal()

        thread = threading.Thread(target=cut)
        thread.start()
        with pytest.raises(StoreUnavailable) as caught:
            guard_on(store).acquire()
        thread.join()
        assert not caught.value.denied
        assert five.stored("*:tombstone*")[3]
        five.cables[2].heal()
        eventually(lambda: five.locked()[2:] == [False] * 3, PATIENCE, "the undo")

    def test_doubtful_request_to_a_taken_server(self, five: Deployment) -> None:
        """(d) Where a request was lost with its connection, the token gets a tombstone everywhere, also where taken."""
        store = five.quorum(timeout=5.0)
        five.occupy([0, 1, 2])
        five.cables[2].hold()
        thread = threading.Thread(target=five.cables[2].lose_held)
        thread.start()
        assert isinstance(guard_on(store).acquire(), Taken)
        thread.join()
        settle(store)
        assert [len(keys) for keys in five.stored("*:tombstone*")] == [1] * 5
        assert five.locked() == [True, True, True, False, False]

    def test_doubtful_request_before_a_grant(self, three: Deployment) -> None:
        """(d) A lock that was granted after a request was lost leaves a tombstone when it is released."""
        store = three.quorum(timeout=5.0)
        for cable in three.cables[1:]:
            cable.hold()
        thread = threading.Thread(target=three.cables[1].lose_held)
        thread.start()
        guard = guard_on(store)
        answer = guard.acquire()
        assert isinstance(answer, Granted)
        assert answer.unanswered
        thread.join()
        three.cables[2].heal()
        assert guard.release() is True
        settle(store)
        assert [NAMES.tombstone(lease_of(guard).token) in keys for keys in three.stored()] == [True] * 3
        assert three.locked() == [False] * 3

    def test_interrupted_attempt(self, three: Deployment) -> None:
        """A time limit that lands while the votes come in gives back what was granted meanwhile."""
        store = three.quorum(timeout=5.0)
        for cable in three.cables[1:]:
            cable.hold()
        guard = guard_on(store)
        with interrupted(0.3):
            guard.acquire()
        assert not three.locked()[0]
        for cable in three.cables:
            cable.heal()
        settle(store)
        assert three.locked() == [False] * 3
        guard.release()
        assert lease_of(held_guard(store)).fence

    def test_validity_is_of_the_attempt_that_won(self, three: Deployment) -> None:
        """(c) A grant that needed several attempts is as long as one: the clock starts with each (B43)."""
        store = three.quorum(timeout=8.0)
        three.occupy([0], "d" * 32)
        three.occupy([1], "e" * 32)
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            time.sleep(0.5)
            if len(pauses) == 3:
                for server in three.servers:
                    server.run("DEL", NAMES.lock)

        guard = held_guard(store, ttl=40.0, sleep=sleep)
        assert len(pauses) == 3
        assert lease_of(guard).remaining() > 40.0 * 0.99 - 0.002 - 0.45

    def test_split_vote_is_no_answer(self, five: Deployment) -> None:
        """Several minorities are a split, never taken; when the time is over it is no reason to run without a lock."""
        store = five.quorum(timeout=2.0)
        five.occupy([0, 1], "d" * 32)
        five.occupy([2, 3], "e" * 32)
        assert isinstance(Owner(store).acquire(), SplitVote)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            guard_on(store).acquire()
        assert caught.value.contended
        assert time.monotonic() - began < 10  # without the bound, until the other locks' end
        settle(store)
        assert not five.locked()[4]
