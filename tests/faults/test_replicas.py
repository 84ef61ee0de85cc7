"""`singleton_lock_min_replicas`: a lock counts as granted when so many real replicas have it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_singleton_lock import LockConfigError, StoreUnavailable, open_store

from ..support.locks import Owner, held_lock, held_lock_soon, is_held
from ..support.servers import Server, StartServer


@pytest.fixture
def pair(start_server: StartServer) -> Iterator[tuple[Server, Server]]:
    """A server and its replica, which is up to date."""
    master = start_server("--repl-diskless-sync-delay", "0")
    replica = start_server("--replicaof", "127.0.0.1", str(master.port))
    store = open_store(master.url(), min_replicas=1)
    store.release(held_lock_soon(store, "warm"))
    store.close()
    yield master, replica
    replica.resume()


def test_a_granted_lock_is_on_the_replica(pair: tuple[Server, Server]) -> None:
    """When acquire returns, the replica has the lock and its fence."""
    master, replica = pair
    store = open_store(master.url(), min_replicas=1)
    with replica.client() as client:
        for number in range(20):
            lock = held_lock(store, f"order:{number}")
            assert client.get(lock.names.fence) == str(lock.fence)
            assert client.exists(lock.names.lock) == 1
    store.close()


def test_too_few(pair: tuple[Server, Server]) -> None:
    """A silent replica, or one too few: out of reach inside of the call's bound, and nothing stays taken."""
    master, replica = pair
    replica.pause()
    for needed, found in ((1, 0), (2, 0)):
        store = open_store(master.url(), timeout=0.4, min_replicas=needed)
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=f"{found} of {needed} replicas") as caught:
            held_lock(store, "order:1")
        assert time.monotonic() - start < 0.4 + 2.0
        assert caught.value.denied is False
        assert not is_held(store, "order:1")
        store.close()


def test_taken_waits_for_nobody(pair: tuple[Server, Server]) -> None:
    """Only a grant waits for replicas, though a renewal has written what they do not have yet."""
    master, replica = pair
    store = open_store(master.url(), timeout=5.0, min_replicas=1)
    lock = held_lock(store, "order:1")
    replica.pause()
    start = time.monotonic()
    assert store.renew([lock], 5.0) == [True]
    assert Owner(store, key="order:1").taken()
    assert time.monotonic() - start < 2.0
    store.close()


def test_a_user_that_may_not_wait(pair: tuple[Server, Server]) -> None:
    """WAIT that is refused makes no grant, and the lock is given back."""
    master, _ = pair
    master.run("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-wait")
    store = open_store(master.url().replace("//", "//app:pw@"), min_replicas=1)
    with pytest.raises(StoreUnavailable, match="NOPERM") as caught:
        held_lock(store, "order:1")
    assert caught.value.denied is True
    assert not is_held(store, "order:1")
    store.close()


@pytest.mark.parametrize("urls", ["memory://", ["redis://a", "redis://b", "redis://c"]], ids=["memory", "quorum"])
def test_not_for_every_deployment(urls: str | list[str]) -> None:
    """A quorum and the memory store have no replicas: the setting is refused."""
    with pytest.raises(LockConfigError, match="singleton_lock_min_replicas"):
        open_store(urls, min_replicas=1)


@pytest.mark.parametrize("value", [-1, True, "1", 1.0, None])
def test_bad_values(value: Any) -> None:
    """It is a whole number of 0 or more."""
    with pytest.raises(LockConfigError, match="singleton_lock_min_replicas: give a whole number"):
        open_store("redis://localhost", min_replicas=value)
