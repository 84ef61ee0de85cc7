"""A store on one server when replies are lost: asked again, nothing is taken twice and nothing stays taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.locks.answers import Granted
from celery_singleton_lock.locks.protocol import RecordWrite, Store
from celery_singleton_lock.stores.scripts import encode_holder

from ..support.locks import ANNA, BERT, RECORD_ID, Owner, guard_on, held_guard, is_held, warm
from ..support.servers import Server, StartServer
from .proxy import Proxy

CUTS = {"before the reply": Proxy.cut_after_request, "in the reply": Proxy.cut_in_reply}


@pytest.fixture
def proxy(valkey: Server) -> Iterator[Proxy]:
    """A proxy in front of an empty server."""
    made = Proxy(valkey.port)
    yield made
    made.close()


@pytest.fixture
def store(proxy: Proxy) -> Iterator[Store]:
    """A store behind the proxy, whose server knows all of the scripts."""
    made = open_store(proxy.url, timeout=5.0)
    warm(made)
    yield made
    made.close()


@pytest.fixture
def client(valkey: Server) -> Iterator[redis.Redis]:
    """A client that does not go through the proxy."""
    with valkey.client() as client:
        yield client


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_acquire_is_asked_again(proxy: Proxy, store: Store, client: redis.Redis, cut: Callable[[Proxy], None]) -> None:
    """An acquire whose reply is lost is asked again on a new connection, and is granted with the same fence."""
    anna = Owner(store, "a")
    cut(proxy)
    answer = anna.acquire()
    assert isinstance(answer, Granted)
    assert answer.unanswered
    assert client.get(anna.names.fence) == str(answer.fence)
    assert client.get(anna.names.lock) == f"h:{anna.token}:{answer.fence}:{encode_holder(ANNA)}"


def test_taken_lock_asked_for_again(proxy: Proxy, store: Store, client: redis.Redis) -> None:
    """An acquire that finds it taken at the second asking leaves a tombstone: the first request may come late."""
    bert, anna = Owner(store, "b", BERT), Owner(store, "a")
    bert.granted()
    proxy.cut_after_request()
    assert anna.taken().holder == BERT
    assert client.exists(anna.names.tombstone(anna.token)) == 1
    assert bert.release() is True


def test_record_asked_for_again(proxy: Proxy, store: Store, client: redis.Redis) -> None:
    """A record that is answered at the second asking leaves a tombstone as well."""
    anna, bert = Owner(store, "a"), Owner(store, "b", BERT)
    anna.granted()
    anna.record()
    proxy.cut_after_request()
    assert bert.recorded()
    assert client.exists(bert.names.tombstone(bert.token)) == 1
    assert not is_held(store)


def test_late_request_takes_nothing(proxy: Proxy, store: Store) -> None:
    """A request that arrives after its lock was released, minutes later maybe, takes nothing (B43)."""
    proxy.delay_request()
    guard = guard_on(store)
    answer = guard.acquire()
    assert isinstance(answer, Granted)
    assert answer.unanswered
    assert guard.release() is True
    assert b"granted" not in proxy.deliver()
    assert not is_held(store)
    assert Owner(store, "b").granted()


def test_late_request_while_the_lock_is_held(proxy: Proxy, store: Store, client: redis.Redis) -> None:
    """A request that arrives while its own token holds changes nothing but the expiry."""
    anna = Owner(store, "a")
    proxy.delay_request()
    fence = anna.granted()
    before = client.get(anna.names.lock)
    proxy.deliver()
    assert (client.get(anna.names.lock), client.get(anna.names.fence)) == (before, str(fence))
    assert anna.release() is True


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_release_is_asked_again(proxy: Proxy, store: Store, client: redis.Redis, cut: Callable[[Proxy], None]) -> None:
    """A release whose reply is lost is asked again: the lock is free, the record is written once, as it was."""
    anna = Owner(store, "a")
    anna.granted()
    cut(proxy)
    anna.record()
    assert not is_held(store)
    assert Owner(store, "b").recorded().fence == anna.fence


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_release_of_unknown_outcome_is_no_loss(proxy: Proxy, store: Store, cut: Callable[[Proxy], None]) -> None:
    """A release asked again finds no lock, since the first has freed it: the lease is not called lost."""
    told: list[object] = []
    guard = held_guard(store, on_lost=told.append)
    cut(proxy)
    assert guard.release() is True
    assert not is_held(store)
    assert told == []


def test_rest_asked_for_again(proxy: Proxy, store: Store) -> None:
    """A release that lets the resource rest, asked twice, lets it rest and does not free it."""
    anna = Owner(store, "a")
    anna.granted()
    proxy.cut_after_request()
    anna.release(rest=20)
    assert anna.peek().resting


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_renewal_is_asked_again(proxy: Proxy, store: Store, cut: Callable[[Proxy], None]) -> None:
    """A renewal of many locks whose replies are lost is asked again as a whole."""
    owners = [Owner(store, "a", key=f"order:{number}") for number in range(20)]
    for owner in owners[1:]:
        owner.granted()
    cut(proxy)
    assert store.renew([owner.lock() for owner in owners], 5.0) == [False, *[True] * 19]


def test_two_lost_replies_are_out_of_reach(proxy: Proxy, store: Store) -> None:
    """A connection that breaks twice in one call is a store out of reach, not an endless loop."""
    anna = Owner(store, "a")
    proxy.cut_after_request(times=2)
    with pytest.raises(StoreUnavailable):
        anna.acquire()
    assert Owner(store, "b").taken()  # until its ttl at the longest


def test_dead_idle_connections(start_server: StartServer) -> None:
    """A server that was restarted is reached again by the next call, though all idle connections are dead."""
    server = start_server()
    store = open_store(server.url(), timeout=5.0)
    anna, bert = Owner(store, "a"), Owner(store, "b")
    first = anna.granted()
    server.restart()
    assert anna.renew() is False
    assert bert.granted() > first
    assert bert.release() is True
    store.close()


def test_swallowed_reply_is_undone(proxy: Proxy, client: redis.Redis, valkey: Server) -> None:
    """An acquire that gets no reply in time is undone on the same connection: the lock is free again at once."""
    store = open_store(proxy.url, timeout=0.1)
    anna = Owner(store, "a")
    anna.granted()
    anna.release()
    proxy.swallow_reply()
    with pytest.raises(StoreUnavailable, match=r"[Tt]ime"):
        anna.acquire()
    wait_for_connections(client)
    assert client.exists(anna.names.lock) == 0
    assert client.exists(anna.names.tombstone(anna.token)) == 1
    assert Owner(open_store(valkey.url()), "b").granted()
    store.close()


def wait_for_connections(client: redis.Redis) -> None:
    """Return when the server has served and closed every connection but this one."""
    for _ in range(100_000):
        if len(client.client_list()) == 1:
            return
    pytest.fail("the server still has other clients")


def test_written_record_survives_its_lost_reply(proxy: Proxy, client: redis.Redis) -> None:
    """A release that gets no reply in time has still written its record and freed the lock."""
    store = open_store(proxy.url, timeout=0.1)
    anna = Owner(store, "a")
    anna.granted()
    anna.release()
    anna.granted()
    proxy.swallow_reply()
    with pytest.raises(StoreUnavailable):
        anna.release(write=RecordWrite(RECORD_ID, 0, b"done", 60.0))
    assert client.exists(anna.names.lock) == 0
    assert Owner(store, "b").recorded()
    store.close()
