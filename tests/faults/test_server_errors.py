"""Servers that answer, but not what was asked: full, read-only, loading, busy, or not for us. Both programs say it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.keys.names import names
from celery_singleton_lock.locks.protocol import RecordWrite
from celery_singleton_lock.stores.redis import RedisStore

from ..support.locks import RECORD_ID, Owner, held_lock, held_lock_soon, is_held, peek
from ..support.servers import Server, StartServer, redis_binary, valkey_binary
from ..support.waiting import eventually

MIB = 1 << 20


@pytest.fixture(params=[valkey_binary, redis_binary], ids=["valkey", "redis"])
def server(request: pytest.FixtureRequest, start_server: StartServer) -> Server:
    """A server of this test's own, of either kind."""
    return start_server("--enable-debug-command", "yes", binary=request.param())


@pytest.fixture
def store(server: Server) -> Iterator[RedisStore]:
    """A store on it."""
    store = open_store(server.url())
    assert isinstance(store, RedisStore)
    yield store
    store.close()


def refusal(call: Callable[[], object]) -> StoreUnavailable:
    """The error of a call that must fail."""
    with pytest.raises(StoreUnavailable) as caught:
        call()
    return caught.value


class TestFull:
    """maxmemory is reached and nothing may be evicted."""

    @pytest.fixture(autouse=True)
    def _hold(self, server: Server, store: RedisStore) -> None:
        server.run("CONFIG", "SET", "maxmemory-policy", "noeviction")
        self.lock = held_lock(store, "held:1")
        self.server = server

    def _fill(self) -> None:
        self.server.run("CONFIG", "SET", "maxmemory", 1)

    def test_no_lock_is_granted(self, store: RedisStore) -> None:
        """OOM is neither taken nor denied: the server's word is the reason, each time (one in sixteen also sweeps)."""
        self._fill()
        for number in range(100):
            error = refusal(partial(held_lock, store, f"other:{number}"))
            assert error.reason.startswith("OOM")
            assert error.denied is False

    def test_a_lease_is_renewed(self, store: RedisStore) -> None:
        """Renewal needs no memory."""
        self._fill()
        assert store.renew([self.lock], 1.0) == [True]

    def test_release_frees_and_records(self, store: RedisStore) -> None:
        """A release frees the lock first, and so its record is let through."""
        self._fill()
        assert store.release(self.lock, write=RecordWrite(RECORD_ID, 0, b"body", 60.0)) is True
        assert not is_held(store, "held:1")
        assert Owner(store, key="held:1").recorded().body == b"body"

    def test_release_lets_it_rest(self, store: RedisStore) -> None:
        """at_least is kept on a full server, too."""
        self._fill()
        assert store.release(self.lock, rest=5.0, unanswered=True) is True
        taken = peek(store, "held:1")
        assert taken.resting
        assert taken.remaining is not None
        assert taken.remaining <= 5.0


def test_read_only(server: Server, store: RedisStore, start_server: StartServer) -> None:
    """A replica refuses every verb that writes, by its own word, and a release changes nothing."""
    lock = held_lock(store, "held:1")
    other = start_server()
    with server.client() as client:
        client.replicaof("127.0.0.1", other.port)
        for call in (
            lambda: held_lock(store, "other:1"),
            lambda: store.renew([lock], 1.0),
            lambda: store.release(lock),
        ):
            error = refusal(call)
            assert error.reason.startswith("READONLY")
            assert error.denied is False
        client.replicaof("NO", "ONE")


def test_too_few_replicas_for_the_server(server: Server, store: RedisStore) -> None:
    """A server that wants replicas (min-replicas-to-write) and has none says so."""
    server.run("CONFIG", "SET", "min-replicas-to-write", 1)
    error = refusal(lambda: held_lock(store, "other:1"))
    assert error.reason.startswith("NOREPLICAS")
    assert error.denied is False


def test_busy(server: Server, store: RedisStore) -> None:
    """A server that is in somebody's endless script answers BUSY."""
    limit = "lua-time-limit" if "redis-server" in server.process.argv[0] else "busy-reply-threshold"
    server.run("CONFIG", "SET", limit, 50)

    def hang() -> None:
        with server.client(timeout=20) as client, pytest.raises(redis.RedisError):
            client.eval("while true do end", 0)

    thread = threading.Thread(target=hang)
    thread.start()
    try:
        time.sleep(0.3)
        error = refusal(lambda: held_lock(store, "other:1"))
        assert error.reason.startswith("BUSY")
        assert error.denied is False
    finally:
        server.run("SCRIPT", "KILL")
        thread.join()
    assert store.release(held_lock(store, "other:1"))


def test_loading(server: Server, store: RedisStore) -> None:
    """A server that reads its data back answers LOADING, on a connection that is as good as before."""
    with server.client() as client:
        for number in range(30_000):  # 100 us each, below
            if number % 1000 == 0:
                client.mset({f"key:{number + each}": "x" for each in range(1000)})
        client.config_set("key-load-delay", 100)
        client.config_set("loading-process-events-interval-bytes", 1024)
    loader = threading.Thread(target=_reload, args=(server,))
    loader.start()
    try:

        def loading() -> bool:
            return bool(server.run("INFO", "persistence")["loading"])

        eventually(loading, message="the reload")
        error = refusal(lambda: held_lock(store, "other:1"))
        assert error.reason.startswith("LOADING")
        assert error.denied is False
    finally:
        server.run("CONFIG", "SET", "key-load-delay", 0)
        loader.join()
    assert store.release(held_lock_soon(store, "other:1"))


def _reload(server: Server) -> None:
    with server.client(timeout=30) as client:
        client.execute_command("DEBUG", "RELOAD")


@pytest.mark.parametrize(
    ("login", "word"),
    [("", "NOAUTH"), (":wrong@", "WRONGPASS"), ("nobody:right@", "WRONGPASS"), (":right@", "")],
    ids=["none", "wrong", "unknown user", "right"],
)
def test_credentials(server: Server, login: str, word: str) -> None:
    """What the server turns down is denied, by every verb, and the password is not shown."""
    server.run("CONFIG", "SET", "requirepass", "right")
    store = open_store(server.url().replace("//", f"//{login}"))
    if not word:
        assert store.release(held_lock(store, "order:1"))
    else:
        for call in (lambda: held_lock(store, "order:1"), lambda: store.peek(names(store.prefix, "order:1"))):
            error = refusal(call)
            assert error.reason.startswith(word)
            assert error.denied is True
            assert "wrong" not in str(error)
    store.close()


def test_a_password_that_nobody_asked_for(server: Server) -> None:
    """A server without a password turns down who brings one."""
    assert refusal(lambda: held_lock(open_store(server.url().replace("//", "//:some@")), "order:1")).denied is True


def test_a_database_that_is_not_there(server: Server) -> None:
    """The server's words are the reason."""
    error = refusal(lambda: held_lock(open_store(server.url(99)), "order:1"))
    assert "DB index is out of range" in error.reason
    assert error.denied is False


def test_a_quorum_says_what_each_server_said(start_server: StartServer) -> None:
    """Two of three servers refuse: each one's word is in the reason, and one that turns us down makes it denied."""
    servers = [start_server() for _ in range(3)]
    servers[0].run("CONFIG", "SET", "maxmemory", 1)
    servers[1].run("CONFIG", "SET", "requirepass", "right")
    store = open_store([server.url() for server in servers])
    error = refusal(lambda: held_lock(store, "order:1"))
    assert "OOM" in error.reason
    assert "NOAUTH" in error.reason
    assert error.denied is True
    store.close()
