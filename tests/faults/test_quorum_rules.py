"""The rules of several servers, one by one: each test fails where its rule is taken out."""

from __future__ import annotations

import signal
import threading
import time
from importlib.resources import files

import pytest

from celery_singleton_lock import Lock, StoreUnavailable
from celery_singleton_lock.guard import Guard
from celery_singleton_lock.keys import names
from celery_singleton_lock.protocol import Ask, Granted, Hold, Holder, Recorded, Split, Store, Taken, Write
from celery_singleton_lock.renewal import Renewer
from celery_singleton_lock.stores.quorum import QuorumStore

from ..support.quorums import connect, settle
from ..support.waiting import eventually
from .conftest import Deployment

ACQUIRE_TEXT = files("celery_singleton_lock.stores").joinpath("lua/acquire.lua").read_text()
NAMES = names("singleton-lock", "order:7")
RECORD = "ab" * 16
TTL = 20.0


def guard(store: Store, ttl: float = TTL, **options: object) -> Guard:
    """A guard whose lease is renewed by nobody but the test."""
    return Guard(store, "order:7", ttl=ttl, renewer=Renewer(threaded=False), **options)  # type: ignore[arg-type]


def granted(one: Guard) -> Granted:
    """The grant that ``one`` gets."""
    answer = one.acquire()
    assert isinstance(answer, Granted)
    return answer


def hold_of(one: Guard) -> Hold:
    """What ``one`` renews with."""
    assert one._hold is not None
    return one._hold


def occupy(deployment: Deployment, indexes: range | list[int], token: str = "c" * 32) -> None:
    """Somebody's lock on some of the servers."""
    for index in indexes:
        with deployment.servers[index].client() as client:
            client.set(NAMES.lock, f"h:{token}:5:{Holder('other').encode()}", px=30_000)


def warm(store: Store) -> None:
    """Every connection is open."""
    other = Lock(store, "warm", ttl=TTL)
    assert other.acquire(blocking_timeout=5)
    other.release()
    if isinstance(store, QuorumStore):
        connect(store)


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
        eventually(lambda: NAMES.lock not in three.stored()[2], 3, "the release")

    def test_lost_reply_on_a_broken_connection(self, five: Deployment) -> None:
        """(d) Where a connection broke with the request unanswered, the token is refused for a late one."""
        store = five.quorum(timeout=0.5)
        warm(store)
        occupy(five, [0, 1])
        five.cables[2].swallow()
        five.cables[3].swallow()

        def cut() -> None:
            five.cables[3].heal()

        timer = threading.Timer(0.1, cut)
        timer.start()
        with pytest.raises(StoreUnavailable) as caught:
            guard(store).acquire()
        timer.join()
        assert not caught.value.denied
        refused = five.stored("*:refused*")
        assert refused[3]
        five.cables[2].heal()
        eventually(lambda: [NAMES.lock in keys for keys in five.stored()][2:] == [False] * 3, 3, "the undo")

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

        previous = signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        one = guard(store)
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
        store = three.quorum()
        warm(store)
        occupy(three, [0], "d" * 32)
        occupy(three, [1], "e" * 32)
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            time.sleep(0.1)
            if len(pauses) == 3:
                for server in three.servers:
                    with server.client() as client:
                        client.delete(NAMES.lock)

        one = guard(store, ttl=8.0, sleep=sleep)
        granted(one)
        assert len(pauses) == 3
        assert one.lease is not None
        assert one.lease.remaining() > 8.0 * 0.99 - 0.002 - 0.09

    def test_split_vote_is_no_answer(self, five: Deployment) -> None:
        """Several minorities are a split, never taken; when the time is over it is no reason to run without a lock."""
        store = five.quorum(timeout=0.3)
        warm(store)
        occupy(five, [0, 1], "d" * 32)
        occupy(five, [2, 3], "e" * 32)
        ask = Ask(NAMES, "f" * 32, Holder("x"), TTL)
        assert isinstance(store.acquire(ask), Split)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            guard(store).acquire()
        assert caught.value.contended
        assert time.monotonic() - began < 0.6
        settle(store)
        assert NAMES.lock not in five.stored()[4]


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
            assert client.zscore(NAMES.listing, NAMES.resource)

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
        store = three.quorum(timeout=0.2)
        warm(store)
        one = guard(store, ttl=1.0)
        granted(one)
        assert one.lease is not None
        before = one.lease.deadline
        for cable in three.cables[1:]:
            cable.hold()
        assert store.renew([hold_of(one)], 0.1) == [None]
        with pytest.raises(StoreUnavailable):
            one.extend(5.0)
        assert one.lease.deadline <= before
        assert not one.lease.lost


class TestRecords:
    """Any server's record is proof; it is copied to a majority, then answered."""

    def has(self, deployment: Deployment) -> list[bool]:
        """Which servers have the record."""
        return [NAMES.record(RECORD) in keys for keys in deployment.stored()]

    def leave(self, deployment: Deployment, index: int, fence: int, body: str = "done") -> None:
        """A record that only one server has."""
        with deployment.servers[index].client() as client:
            client.set(NAMES.record(RECORD), f"0:{fence}:{body}", px=30_000)
            client.set(NAMES.fence, fence)

    def test_record_of_a_minority_is_copied(self, five: Deployment) -> None:
        """Once seen on one server of a majority it is on all of them, and later askers cannot miss it."""
        store = five.quorum()
        warm(store)
        for cable in five.cables[3:]:
            cable.hold()  # so that the one record is among the first three answers
        self.leave(five, 1, 77)
        answer = guard(store, record_id=RECORD, rank=0).acquire()
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

    def test_of_two_the_higher_fence(self, three: Deployment) -> None:
        """Two servers with different records: the newer run's is answered and kept, on both."""
        store = three.quorum()
        warm(store)
        three.cables[2].hold()
        self.leave(three, 0, 50, "older")
        self.leave(three, 1, 60, "newer")
        answer = guard(store, record_id=RECORD, rank=0).acquire()
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
        self.leave(three, 0, 50, "older")
        self.leave(three, 2, 60, "newer")
        assert isinstance(guard(store, record_id=RECORD, rank=0).acquire(), Recorded)
        three.cables[2].heal()
        settle(store)
        with three.servers[2].client() as client:
            assert client.get(NAMES.record(RECORD)) == "0:60:newer"

    def test_no_majority_to_copy_to(self, three: Deployment) -> None:
        """A record that cannot be copied is not answered yet: the next asker might miss it."""
        store = three.quorum(timeout=0.2)
        warm(store)
        self.leave(three, 0, 50)
        for cable in three.cables[1:]:
            cable.hold()
        with pytest.raises(StoreUnavailable):
            guard(store, record_id=RECORD, rank=0).acquire()

    def test_release_writes_everywhere(self, five: Deployment) -> None:
        """Also where the lock is not there any more, but not where a newer owner has been."""
        store = five.quorum()
        warm(store)
        one = guard(store, record_id=RECORD, rank=0)
        fence = granted(one).fence
        with five.servers[0].client() as client:
            client.flushall()
        with five.servers[1].client() as client:
            client.delete(NAMES.lock)
            client.set(NAMES.fence, fence + 10)
        one.release(Write(RECORD, 0, b"done", 60))
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
