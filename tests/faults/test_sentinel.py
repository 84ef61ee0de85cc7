"""Real Sentinels: the master is found, and found again after a failover, each call inside its bound."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_singleton_lock import StoreUnavailable, open_store

from ..support.locks import Owner, held_lock, held_lock_soon, is_held
from ..support.sentinel import NAME, Watched
from ..support.servers import StartServer


@pytest.fixture
def watched(start_server: StartServer, tmp_path: Path) -> Iterator[Watched]:
    """A master, its replica and three Sentinels."""
    watched = Watched(start_server, tmp_path)
    yield watched
    watched.stop()


def test_calls_go_to_the_master(watched: Watched) -> None:
    """The store works on the master that the Sentinels name, in the URL's database, in both forms of the URL."""
    store = open_store(watched.url())
    held_lock(store, "order:7")
    assert len(watched.master.run("KEYS", "*lock:order:7")) == 1
    kombu = ";".join(f"sentinel://127.0.0.1:{sentinel.port}/0" for sentinel in watched.sentinels)
    same = open_store(f"{kombu}?master_name={NAME}")
    assert Owner(same, key="order:7").taken()
    for each in (store, same):
        each.close()


def test_one_sentinel_is_enough(watched: Watched) -> None:
    """Sentinels that are dead, or silent, or know no such master cost their share of the bound and no more."""
    store = open_store(watched.url(), timeout=6.0)
    watched.sentinels[0].kill()
    watched.sentinels[1].pause()
    start = time.monotonic()
    held_lock(store, "order:1")
    assert time.monotonic() - start < 5.0  # the silent one's share is a third
    watched.sentinels[1].resume()
    store.close()


def test_unknown_master_and_nobody_there(watched: Watched) -> None:
    """No Sentinel can name the master: out of reach, in bounded time, with the reason and no password."""
    unknown = open_store(watched.url().replace(NAME, "another"))
    with pytest.raises(StoreUnavailable, match="knows no master named 'another'"):
        held_lock(unknown, "order:1")
    nobody = open_store(f"sentinel://:s3cret@127.0.0.1:1;127.0.0.1:2?master_name={NAME}&sentinel_password=s3cret")
    with pytest.raises(StoreUnavailable, match="Connection refused") as caught:
        held_lock(nobody, "order:1")
    assert caught.value.denied is False
    assert "s3cret" not in str(caught.value) + repr(nobody)


def test_a_demoted_master_is_left(watched: Watched) -> None:
    """READONLY: the master of before follows another now. Nothing was carried out, and the same call goes there."""
    store = open_store(watched.url(), timeout=1.0)
    first = held_lock(store, "order:1")
    watched.until_agreed()
    # What a failover does, but the connections are kept: the old master's clients are not told.
    with watched.replica.client() as replica, watched.master.client() as master:
        for sentinel in watched.sentinels:
            sentinel.run("SENTINEL", "REMOVE", NAME)
            sentinel.run("SENTINEL", "MONITOR", NAME, "127.0.0.1", watched.replica.port, 2)
        replica.execute_command("REPLICAOF", "NO", "ONE")
        master.execute_command("CONFIG", "SET", "replica-read-only", "yes")
        master.execute_command("REPLICAOF", "127.0.0.1", str(watched.replica.port))
        assert store.renew([first], 1.0) == [True]
        second = held_lock(store, "order:2")
        assert second.fence > first.fence
        assert len(replica.keys("*lock:order:2")) == 1
    store.close()


@pytest.mark.slow
def test_a_failover_is_followed(watched: Watched) -> None:
    """The master dies: calls fail in bounded time until the replica is promoted, then locks go on, fences rising."""
    watched.until_agreed()
    store = open_store(watched.url(), timeout=0.5)
    careful = open_store(watched.url(), timeout=0.5, min_replicas=1)
    first = held_lock(careful, "order:1")
    held_lock(store, "order:0")
    watched.master.kill()
    start = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        held_lock(store, "order:2")
    assert time.monotonic() - start < 0.5 + 2.0
    assert caught.value.denied is False
    watched.until_promoted()
    second = held_lock(store, "order:2")  # the idle connection is to the dead one: the call finds the new one by itself
    assert second.fence > first.fence
    assert is_held(store, "order:1")  # it was acknowledged by the replica
    assert store.renew([first, second], 1.0) == [True, True]
    assert store.release(first)
    assert held_lock_soon(store, "order:1").fence > first.fence
    for each in (store, careful):
        each.close()


def test_credentials_of_sentinels_and_servers(start_server: StartServer, tmp_path: Path) -> None:
    """Servers and Sentinels may have passwords of their own; a wrong one at either is said to be so."""
    lines = (f"sentinel auth-pass {NAME} pa:ss", "requirepass sent/inel")
    options = ("--requirepass", "pa:ss", "--masterauth", "pa:ss")
    with pytest.MonkeyPatch.context() as patch:
        _know_passwords(patch)
        watched = Watched(start_server, tmp_path, *options, count=1, sentinel_lines=lines)
        port = watched.sentinels[0].port
        try:
            url = f"sentinel://:pa%3Ass@127.0.0.1:{port}/2?master_name={NAME}&sentinel_password=sent%2Finel"
            store = open_store(url)
            held_lock(store, "order:1")
            with watched.master.client(db=2) as client:
                assert len(client.keys("*lock:order:1")) == 1
            store.close()
            for wrong in (url.replace("pa%3Ass", "no"), url.replace("sent%2Finel", "no")):
                with pytest.raises(StoreUnavailable, match="WRONGPASS") as caught:
                    held_lock(open_store(wrong), "order:2")
                assert caught.value.denied is True
        finally:
            watched.stop()


def _know_passwords(patch: pytest.MonkeyPatch) -> None:
    """The harness's own clients log in as well, wherever they are asked to."""
    import redis

    from ..support.servers import Server

    def client(self: Server, db: int = 0, timeout: float = 5.0) -> redis.Redis:
        password: str | None = "sent/inel" if "--sentinel" in self.process.argv else "pa:ss"
        if "--requirepass" not in self.process.argv and "--sentinel" not in self.process.argv:
            password = None  # a Sentinel's first start, as a plain server
        return redis.Redis(port=self.port, db=db, password=password, decode_responses=True, socket_timeout=timeout)

    patch.setattr(Server, "client", client)
