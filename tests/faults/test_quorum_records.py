"""The records of a quorum: each test fails where its rule is taken out."""

from __future__ import annotations

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.answers import Recorded
from celery_singleton_lock.locks.protocol import RecordWrite

from ..support.locks import NAMES, RECORD_ID, guard_on, held_guard, lease_of, settle
from .conftest import Deployment


class TestRecords:
    """Any server's record is proof; it is copied to a majority, then answered."""

    def has(self, deployment: Deployment) -> list[bool]:
        """Which servers have the record."""
        return [NAMES.record(RECORD_ID) in keys for keys in deployment.stored()]

    def test_record_of_a_minority_is_copied(self, five: Deployment) -> None:
        """Once seen on one server of a majority it is on all of them, and later askers cannot miss it."""
        store = five.quorum()
        for cable in five.cables[3:]:
            cable.hold()  # so that the one record is among the first three answers
        five.leave_record(1, 77)
        answer = guard_on(store, record_id=RECORD_ID, attempt=0).acquire()
        assert isinstance(answer, Recorded)
        assert answer.body == b"done"
        assert self.has(five)[:3] == [True] * 3
        for cable in five.cables[3:]:
            cable.heal()
        settle(store)
        assert self.has(five) == [True] * 5
        assert not any(five.locked())
        assert five.servers[4].run("GET", NAMES.record(RECORD_ID)) == "0:77:done"
        assert 0 < five.servers[4].run("PTTL", NAMES.record(RECORD_ID)) <= 30_000

    def test_undo_of_an_answered_attempt(self, three: Deployment) -> None:
        """Whoever is answered from a record leaves no lock, and raises every server's fence past its own (B43)."""
        store = three.quorum(wall=lambda: 5.0)
        three.cables[2].hold()
        three.leave_record(1, 77)
        assert isinstance(guard_on(store, record_id=RECORD_ID, attempt=0).acquire(), Recorded)
        three.cables[2].heal()
        settle(store)
        assert three.fences() == [5_000_001] * 3
        assert not any(three.locked())

    def test_of_two_the_higher_fence(self, three: Deployment) -> None:
        """Two servers with different records: the newer run's is answered and kept, on both."""
        store = three.quorum()
        three.cables[2].hold()
        three.leave_record(0, 50, "older")
        three.leave_record(1, 60, "newer")
        answer = guard_on(store, record_id=RECORD_ID, attempt=0).acquire()
        assert isinstance(answer, Recorded)
        assert answer.body == b"newer"
        for server in three.servers[:2]:
            assert server.run("GET", NAMES.record(RECORD_ID)) == "0:60:newer"

    def test_copy_leaves_a_newer_record_alone(self, three: Deployment) -> None:
        """A server that was not heard in time may have a newer record: the copy of an older one leaves it."""
        store = three.quorum()
        three.cables[2].hold()
        three.leave_record(0, 50, "older")
        three.leave_record(2, 60, "newer")
        assert isinstance(guard_on(store, record_id=RECORD_ID, attempt=0).acquire(), Recorded)
        three.cables[2].heal()
        settle(store)
        assert three.servers[2].run("GET", NAMES.record(RECORD_ID)) == "0:60:newer"

    def test_no_majority_to_copy_to(self, three: Deployment) -> None:
        """A record that cannot be copied is not answered yet: the next asker might miss it."""
        store = three.quorum(timeout=0.5)
        three.leave_record(0, 50)
        for cable in three.cables[1:]:
            cable.hold()
        with pytest.raises(StoreUnavailable):
            guard_on(store, record_id=RECORD_ID, attempt=0).acquire()

    def test_release_writes_everywhere(self, five: Deployment) -> None:
        """Also where the lock is not there any more, but not where a newer owner has been."""
        store = five.quorum()
        guard = held_guard(store, record_id=RECORD_ID, attempt=0)
        fence = lease_of(guard).fence
        five.servers[0].run("FLUSHALL")
        five.servers[1].run("DEL", NAMES.lock)
        five.servers[1].run("SET", NAMES.fence, fence + 10)
        guard.release(RecordWrite(RECORD_ID, 0, b"done", 60))
        settle(store)
        assert self.has(five) == [True, False, True, True, True]

    def test_errors_are_no_release(self, three: Deployment) -> None:
        """Servers that answer a release with an error have not carried it out."""
        store = three.quorum()
        guard = held_guard(store)
        settle(store)
        for server in three.servers[:2]:
            server.run("CONFIG", "SET", "min-replicas-to-write", 1)
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            guard.release()
        for server in three.servers[:2]:
            server.run("CONFIG", "SET", "min-replicas-to-write", 0)
        guard.release()
        settle(store)
        assert not any(three.locked())
