"""What a store on one server must do besides: its keys, its scripts, and what others have put there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest
import redis

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.keys.names import names
from celery_singleton_lock.locks.answers import Holder
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.stores.scripts import encode_holder

from ..support.locks import ANNA, BERT, RECORD_ID, TTL, Owner, about, is_held
from ..support.servers import Server
from .contract import StoreContract
from .doors import BackDoor, ServerDoor

#: What a stranger may have put where a lock belongs.
STRANGERS_VALUES = [
    "",
    "somebody",
    "h:x:1:5",
    "h:aa:12:{}",
    "r:aa:12:[1]",
    "h:" + "c" * 32,
    "h:aa:twelve:[]",
    "r:aa:12:nonsense",
    "h:zz:1:x",
    "h:aa:" + "9" * 5000 + ":[]",
    "h:aa:1:" + "[" * 10000,
]


class ServerContract(StoreContract):
    """The tests of a store on one server. A subclass has the fixture `server`, an empty one."""

    @pytest.fixture
    def server(self) -> Server:
        """The server, empty."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, server: Server) -> Iterator[Store]:
        """The store on it; slow machines are no subject here."""
        store = open_store(server.url(), timeout=5.0)
        yield store
        store.close()

    @pytest.fixture
    def client(self, server: Server) -> Iterator[redis.Redis]:
        """A client of the test's own."""
        with server.client() as client:
            yield client

    @pytest.fixture
    def door(self, client: redis.Redis) -> BackDoor:
        """The keys of the server."""
        return ServerDoor([client])

    def test_two_stores_share_their_locks(self, anna: Owner, server: Server) -> None:
        """Another store on the same server, as another process has it, sees the same locks."""
        anna.granted()
        other = open_store(server.url(), timeout=5.0)
        assert Owner(other, "b", BERT).taken().holder == ANNA
        other.close()

    def test_prefixes_keep_apps_apart(self, anna: Owner, server: Server) -> None:
        """Two apps with one server and different prefixes do not block each other; all keys have the prefix (B48)."""
        anna.granted()
        other = open_store(server.url(), prefix="other", timeout=5.0)
        mine = Owner(other, "b", BERT)
        mine.granted()
        mine.record()
        mine.release(unanswered=True)
        other.close()
        every = server.run("KEYS", "*")
        assert {name.partition(":")[0] for name in every} == {"singleton-lock", "other"}
        assert all(name.split(":")[1] == "1" for name in every)

    def test_keys_of_a_cycle(self, anna: Owner, server: Server) -> None:
        """A held lock is three keys; after its release only the fence and a record are left, each with an end."""
        anna.granted()
        assert set(server.run("KEYS", "*")) == {anna.names.lock, anna.names.fence, anna.names.index}
        anna.record()
        assert set(server.run("KEYS", "*")) == {anna.names.fence, anna.names.record(RECORD_ID)}

    def bucket(self, store: Store, count: int) -> list[Owner]:
        """Owners whose resources share one bucket, and so one index."""
        index = names(store.prefix, "order:0").index
        found = (Owner(store, key=f"order:{number}") for number in range(100_000))
        return list(islice((owner for owner in found if owner.names.index == index), count))

    def indexed(self, server: Server, index: str) -> dict[str, float]:
        """The resources that the index says are held, or rest, and for how many seconds."""
        (seconds, micro), ends = server.run("TIME"), server.run("ZRANGE", index, 0, -1, "WITHSCORES")
        left = {name: float(end) / 1000 - seconds - micro / 1_000_000 for name, end in ends}
        return {name: seconds for name, seconds in left.items() if seconds > 0}

    def test_index_lists_what_is_held(self, store: Store, server: Server) -> None:
        """The index of a bucket has the held and resting resources, with their ends, and no other."""
        owners = self.bucket(store, 3)
        for owner in owners:
            owner.granted()
        index = owners[0].names.index
        first, second, third = (owner.names.resource for owner in owners)
        assert self.indexed(server, index).keys() == {first, second, third}
        owners[0].release()
        owners[1].release(rest=20)
        assert self.indexed(server, index).keys() == {second, third}
        owners[2].renew(ttl=200)
        left = self.indexed(server, index)
        assert about(left[second], 20)
        assert about(left[third], 200)

    def test_index_lives_as_long_as_its_longest_lock(self, store: Store, client: redis.Redis, door: BackDoor) -> None:
        """An index does not come to its end before a lock in it, and not long after."""
        long, short = self.bucket(store, 2)
        long.granted(ttl=300)
        short.granted(ttl=5)
        assert about(door.lifetimes()[long.names.index], 300)
        short.renew(ttl=5)
        short.release(rest=4)
        assert about(door.lifetimes()[long.names.index], 300)
        long.renew(ttl=600)
        assert about(door.lifetimes()[long.names.index], 600)

    def test_index_of_a_resting_lock_alone(self, store: Store, client: redis.Redis, door: BackDoor) -> None:
        """An index that is gone comes back with a resting lock in it, and with an end (B48)."""
        (resting,) = self.bucket(store, 1)
        resting.granted(ttl=300)
        client.delete(resting.names.index)
        resting.release(rest=200)
        assert about(door.lifetimes()[resting.names.index], 200)

    def test_index_is_swept(self, store: Store, client: redis.Redis) -> None:
        """What ran out leaves the index in time: it does not grow without end (B48)."""
        first, second = self.bucket(store, 2)
        client.zadd(first.names.index, {f"gone:{number}": number for number in range(50)})
        for _ in range(500):
            second.granted()
            second.release()
        assert client.zcard(first.names.index) == 0

    def test_growth(self, store: Store, client: redis.Redis) -> None:
        """After 6,000 cycles every key has an end, and there is no more than one fence, record, rest for each (B48)."""
        for number in range(6000):
            owner = Owner(store, "abcdef"[number % 6], key=f"order:{number}")
            owner.granted()
            if number % 3 == 0:
                owner.record()
            else:
                owner.release(rest=60 if number % 3 == 1 else 0, unanswered=number % 6 == 5)
        pipe = client.pipeline()
        every = list(client.scan_iter(count=1000))
        for key in every:
            pipe.pttl(key)
        assert min(pipe.execute()) > 0
        kinds = Counter(key.split(":")[3] for key in every)
        indexes = kinds.pop("index")
        assert indexes <= 256
        assert kinds == {"fence": 6000, "record": 2000, "lock": 2000, "tombstone": 1000}
        assert sum(client.zcard(key) for key in every if key.endswith(":index")) == 2000

    @pytest.mark.parametrize("verb", ["acquire", "renew", "release", "record", "peek", "many"])
    def test_scripts_are_forgotten(
        self, anna: Owner, bert: Owner, store: Store, client: redis.Redis, verb: str
    ) -> None:
        """A server that has forgotten its scripts is taught them again, whichever call meets it (B38)."""
        if verb != "acquire":
            anna.granted()
        client.script_flush()
        if verb == "acquire":
            anna.granted()
        elif verb == "renew":
            assert anna.renew() is True
        elif verb == "many":
            assert store.renew([anna.lock(), bert.lock(), anna.lock()], 5.0) == [True, False, True]
        elif verb == "peek":
            assert is_held(store)
        elif verb == "record":
            assert anna.record() is True
            assert bert.recorded()
        else:
            assert anna.release() is True
            assert not is_held(store)

    def test_one_round_trip_each(self, anna: Owner, client: redis.Redis) -> None:
        """Once the server knows the scripts, acquire, renewal and release are one command each."""
        anna.granted()
        anna.renew()
        anna.release()
        client.config_resetstat()
        anna.granted()
        anna.renew()
        anna.record()
        calls = {name: stat["calls"] for name, stat in client.info("commandstats").items() if "eval" in name}
        assert calls == {"cmdstat_evalsha": 3}

    @pytest.mark.parametrize("value", STRANGERS_VALUES, ids=repr)
    def test_foreign_value_is_left_alone(self, anna: Owner, store: Store, client: redis.Redis, value: str) -> None:
        """What somebody else has put where a lock belongs is taken by nobody known, and is not touched (B07)."""
        client.set(anna.names.lock, value, px=50_000)
        anna.fence = 2**52
        for answer in (anna.taken(), anna.peek()):
            assert about(answer.remaining, 50)
        assert [anna.renew(), anna.release(), anna.release(rest=5)] == [False, False, False]
        assert client.get(anna.names.lock) == value
        assert about(client.pttl(anna.names.lock) / 1000, 50)

    def test_foreign_value_without_an_end(self, anna: Owner, client: redis.Redis) -> None:
        """A lock that somebody set by hand, without an end, is taken for nobody can tell how long."""
        client.set(anna.names.lock, "by hand")
        answer = anna.taken()
        assert (answer.holder, answer.remaining) == (Holder(), None)

    def test_foreign_type_is_left_alone(self, anna: Owner, client: redis.Redis) -> None:
        """A key of another type where the lock belongs is not overwritten."""
        client.rpush(anna.names.lock, "theirs")
        try:
            assert anna.taken()
        except StoreUnavailable:
            pass
        assert client.lrange(anna.names.lock, 0, -1) == ["theirs"]

    def test_taken_over_by_hand(self, anna: Owner, bert: Owner, client: redis.Redis) -> None:
        """An owner whose key now has another token leaves that one and its end alone (B07)."""
        anna.granted()
        other = f"h:{bert.token}:{anna.fence + 1}:{encode_holder(BERT)}"
        client.set(anna.names.lock, other, px=50_000)
        assert [anna.renew(200), anna.release()] == [False, False]
        assert client.get(anna.names.lock) == other
        assert about(client.pttl(anna.names.lock) / 1000, 50)

    def test_fences_increase_though_the_server_forgets(self, anna: Owner, client: redis.Redis) -> None:
        """After a flush fences go on with the server's clock; a clock that is behind goes on with the last fence."""
        first = anna.granted()
        client.flushall()
        assert anna.renew() is False
        second = anna.granted()
        assert second > first
        anna.release()
        ahead = second + 3_600_000_000
        client.set(anna.names.fence, ahead)
        assert anna.granted() == ahead + 1

    def test_fence_is_microseconds_in_full(self, anna: Owner, client: redis.Redis) -> None:
        """A fence has all of its digits, in the answer, the lock and the fence key."""
        fence = anna.granted()
        seconds, _ = client.time()
        assert abs(fence / 1_000_000 - seconds) < 60
        assert client.get(anna.names.fence) == str(fence)
        assert client.get(anna.names.lock) == f"h:{anna.token}:{fence}:{encode_holder(ANNA)}"

    def test_milliseconds_are_kept(self, anna: Owner, client: redis.Redis) -> None:
        """A ttl below a second reaches the server as it is (B41)."""
        anna.granted(ttl=0.4)
        assert client.pttl(anna.names.lock) in range(-2, 401)
        anna.granted(ttl=TTL + 0.25)
        assert client.pttl(anna.names.lock) <= 30_250
