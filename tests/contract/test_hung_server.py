"""A store on one server that hangs, dribbles or is paused: each call ends, and nothing stays taken."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import redis

from celery_singleton_lock import StoreUnavailable, open_store

from ..support.interrupts import interrupted
from ..support.locks import BERT, Owner, guard_on, held_guard, is_held, warm
from ..support.servers import Server

#: No call of these tests may take so long; those that are not bounded take far longer, in seconds.
FAR_TOO_LONG = 3.0


@pytest.fixture
def client(valkey: Server) -> Iterator[redis.Redis]:
    """A client of the test's own, connected before any fault."""
    with valkey.client() as client:
        client.ping()
        yield client


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.fixture
def dribbling() -> Iterator[str]:
    """The URL of a server that answers with one byte at a time and, for four seconds, does not come to an end."""
    over = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def dribble(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(65536)
            for _ in range(200):
                if over.wait(0.02):
                    break
                connection.sendall(b"+")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=dribble, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
    over.set()
    with suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)
    server.close()


CALLS: dict[str, Callable[[Owner], object]] = {
    "acquire": lambda owner: owner.acquire(ttl=60),
    "release": lambda owner: owner.release(),
    "renew": lambda owner: owner.store.renew([owner.lock()] * 50, 0.2),
    "peek": lambda owner: owner.store.peek(owner.names),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["silent", "dribbling"])
def test_every_call_ends(request: pytest.FixtureRequest, kind: str, call: str) -> None:
    """A server that never answers, or never to the end, is out of reach after the store's timeout (B13)."""
    store = open_store(request.getfixturevalue(kind), timeout=0.2)
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        CALLS[call](Owner(store))
    assert time.monotonic() - begun < FAR_TOO_LONG
    assert caught.value.denied is False


def test_no_call_outlasts_a_quarter_of_the_ttl(silent: str) -> None:
    """A long timeout does not let a short lease's call take longer than a quarter of it (B13)."""
    store = open_store(silent, timeout=60.0)
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable):
        Owner(store).acquire(ttl=0.4)
    assert time.monotonic() - begun < FAR_TOO_LONG


def until_served(client: redis.Redis) -> None:
    """Return when the resumed server has served what had reached it before: its next round begins after that."""
    for _ in range(3):
        client.ping()


@pytest.mark.parametrize("flushed", [False, True], ids=["scripts known", "release not known"])
def test_timed_out_acquire_is_undone(valkey: Server, client: redis.Redis, flushed: bool) -> None:
    """A paused server that goes on later carries out the acquire and its undo: the lock is free, not until its ttl."""
    store = open_store(valkey.url(), timeout=0.2)
    first = Owner(store, "f", key="warm")
    if flushed:
        client.script_flush()
    first.granted()
    if not flushed:
        first.release()
    anna = Owner(store)
    valkey.pause()
    with pytest.raises(StoreUnavailable):
        anna.acquire(ttl=3600)
    valkey.resume()
    until_served(client)
    assert client.exists(anna.names.fence) == 1  # it was carried out
    assert client.exists(anna.names.lock) == 0
    assert Owner(store, "b", BERT).granted()
    assert anna.taken()
    store.close()


def test_paused_server_at_release(valkey: Server, client: redis.Redis) -> None:
    """A release that timed out is carried out when the server goes on, and may be asked again."""
    store = open_store(valkey.url(), timeout=0.2)
    guard = held_guard(store)
    valkey.pause()
    with pytest.raises(StoreUnavailable):
        guard.release()
    assert guard.pending
    valkey.resume()
    until_served(client)
    guard.release()
    assert Owner(store, "b", BERT).granted()
    store.close()


def test_interrupted_acquire(valkey: Server, client: redis.Redis) -> None:
    """A time limit that lands while a reply is to come frees the lock, and no later call reads that reply (B37)."""
    store = open_store(valkey.url(), timeout=5.0)
    warm(store)
    guard = guard_on(store)
    valkey.pause()
    with interrupted():
        guard.acquire()
    valkey.resume()
    until_served(client)
    guard.release()
    bert = Owner(store, "b", BERT)
    assert not is_held(store)
    bert.granted()
    assert bert.peek().holder == BERT
    assert bert.renew() is True
    store.close()


@pytest.mark.parametrize("call", ["renew", "release", "peek"])
def test_interrupted_call_mixes_no_replies(valkey: Server, client: redis.Redis, call: str) -> None:
    """After an interrupted call the next one gets its own answer and not the one before (B37)."""
    store = open_store(valkey.url(), timeout=5.0)
    anna = Owner(store)
    anna.granted()
    valkey.pause()
    with interrupted():
        CALLS[call](anna) if call != "renew" else anna.store.renew([anna.lock()] * 50, 5.0)
    valkey.resume()
    until_served(client)
    other = Owner(store, "b", BERT, key="order:8")
    assert store.peek(other.names) is None
    other.granted()
    assert other.release() is True
    store.close()
