"""The records of a quorum: each test fails where its rule is taken out."""

from __future__ import annotations

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.answers import Recorded
from celery_singleton_lock.locks.protocol import RecordWrite

from ..support.quorums import settle
from .conftest import Deployment
from .rules import NAMES, RECORD, fences, granted, guard, leave, warm


class TestRecords:
    """Any server's record is proof; it is copied to a majority, then answered."""

    def has(self, deployment: Deployment) -> list[bool]:
        """Which servers have the record."""
        return [NAMES.record(RECORD) in keys for keys in deployment.stored()]

    def test_record_of_a_minority_is_copied(self, five: Deployment) -> None:
        """Once seen on one server of a majority it is on all of them, and later askers cannot miss it."""
        store = five.quorum()
        warm(store)
        for cable in five.cables[3:]:
            cable.hold()  # so that the one record is among the first three answers
        leave(five, 1, 77)
        answer = guard(store, record_id=RECORD, attempt=0).acquire()
        assert isinstance(answer, Recorded)
        assert answer.body == b"done"
        assert self.has(five)[:3] == [True] * 3
        for cable in five.cables[3:]:
            cable.heal()
        settle(store)
        assert self.has(five) == [True] * 5
        assert all(NAMES.lock not in keys for keys in five.stored())
        with five.servers[4].client() as client:
            assert client.get(NAMES.record(RECORD)) == "0:77:done"
            assert 0 < client.pttl(NAMES.record(RECORD)) <= 30_000

    def test_undo_of_an_answered_attempt(self, three: Deployment) -> None:
        """Whoever is answered from a record leaves no lock, and raises every server's fence past its own (B43)."""
        store = three.quorum()
        store._wall = lambda: 5.0
        warm(store)
        three.cables[2].hold()
        leave(three, 1, 77)
        assert isinstance(guard(store, record_id=RECORD, attempt=0).acquire(), Recorded)
        three.cables[2].heal()
        settle(store)
        assert fences(three) == [5_000_001] * 3
        assert all(NAMES.lock not in keys for keys in three.stored())

    def test_of_two_the_higher_fence(self, three: Deployment) -> None:
        """Two servers with different records: the newer run's is answered and kept, on both."""
        store = three.quorum()
        warm(store)
        three.cables[2].hold()
        leave(three, 0, 50, "older")
        leave(three, 1, 60, "newer")
        answer = guard(store, record_id=RECORD, attempt=0).acquire()
        assert isinstance(answer, Recorded)
        assert answer.body == b"newer"
        for server in three.servers[:2]:
            with server.client() as client:
                assert client.get(NAMES.record(RECORD)) == "0:60:newer"

    def test_copy_leaves_a_newer_record_alone(self, three: Deployment) -> None:
        """A server that was not heard in time may have a newer record: the copy of an older one leaves it."""
        store = three.quorum()
        warm(store)
        three.cables[2].hold()
        leave(three, 0, 50, "older")
        leave(three, 2, 60, "newer")
        assert isinstance(guard(store, record_id=RECORD, attempt=0).acquire(), Recorded)
        three.cables[2].heal()
        settle(store)
        with three.servers[2].client() as client:
            assert client.get(NAMES.record(RECORD)) == "0:60:newer"

    def test_no_majority_to_copy_to(self, three: Deployment) -> None:
        """A record that cannot be copied is not answered yet: the next asker might miss it."""
        store = three.quorum(timeout=0.5)
        warm(store)
        leave(three, 0, 50)
        for cable in three.cables[1:]:
            cable.hold()
        with pytest.raises(StoreUnavailable):
            guard(store, record_id=RECORD, attempt=0).acquire()

    def test_release_writes_everywhere(self, five: Deployment) -> None:
        """Also where the lock is not there any more, but not where a newer owner has been."""
        store = five.quorum()
        warm(store)
        one = guard(store, record_id=RECORD, attempt=0)
        fence = granted(one).fence
        with five.servers[0].client() as client:
            client.flushall()
        with five.servers[1].client() as client:
            client.delete(NAMES.lock)
            client.set(NAMES.fence, fence + 10)
        one.release(RecordWrite(RECORD, 0, b"done", 60))
        settle(store)
        assert self.has(five) == [True, False, True, True, True]

    def test_errors_are_no_release(self, three: Deployment) -> None:
        """Servers that answer a release with an error have not carried it out."""
        store = three.quorum()
        warm(store)
        one = guard(store)
        granted(one)
        settle(store)
        for server in three.servers[:2]:
            with server.client() as client:
                client.config_set("min-replicas-to-write", 1)
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            one.release()
        for server in three.servers[:2]:
            with server.client() as client:
                client.config_set("min-replicas-to-write", 0)
        one.release()
        settle(store)
        assert all(NAMES.lock not in keys for keys in three.stored())
