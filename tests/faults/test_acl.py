"""The minimal ACL of docs/operations.md, word for word, on real servers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.locks.protocol import RecordWrite, Store

from ..support.locks import Owner, held_lock
from ..support.servers import Server, StartServer, redis_binary, valkey_binary

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def documented(user: str) -> list[str]:
    """The rules of the ACL line that the page gives for ``user``."""
    line = re.search(rf"^ *ACL SETUSER {user} (.*)$", PAGE.read_text(), re.MULTILINE)
    assert line is not None
    return line[1].split()


@pytest.fixture(params=[valkey_binary, redis_binary], ids=["valkey", "redis"])
def server(request: pytest.FixtureRequest, start_server: StartServer) -> Server:
    """A server with the documented user on it, and nobody else."""
    server = start_server(binary=request.param())
    server.run("ACL", "SETUSER", "app1", "reset", *documented("app1"))
    return server


def url(server: Server, db: int = 0) -> str:
    """The URL of the documented user."""
    return server.url(db).replace("//", "//app1:pw@")


def test_every_verb(server: Server) -> None:
    """All that a store does is allowed, and nothing is asked that the server would write down as refused (B48)."""
    store = open_store(url(server), prefix="app1")
    lock = held_lock(store, "order:1")
    assert Owner(store, key="order:1").taken()
    assert store.renew([lock], 1.0) == [True]
    write = RecordWrite("r" * 32, 0, b"body", 60.0)
    assert store.release(lock, rest=1.0, write=write, unanswered=True)
    for number in range(64):  # the sweep of the index comes by chance, once in sixteen
        assert store.release(held_lock(store, f"swept:{number}"))
    store.close()
    assert server.run("ACL", "LOG") == []


def test_a_quorum(start_server: StartServer) -> None:
    """The same rules do for each server of a quorum, whose renewal and undo do more."""
    servers = [start_server() for _ in range(3)]
    for server in servers:
        server.run("ACL", "SETUSER", "app1", "reset", *documented("app1"))
    store = open_store([url(server) for server in servers], prefix="app1")
    lock = held_lock(store, "order:1")
    servers[0].flush()
    assert store.renew([lock], 1.0) == [True]
    assert Owner(store, key="order:1").taken()
    assert store.release(lock, write=RecordWrite("r" * 32, 0, b"body", 60.0))
    store.close()
    for server in servers:
        with server.client() as client:
            denied = {entry["object"] for entry in client.acl_log()}
        assert denied <= {"info", "script|load"}  # what a quorum would like to ask of a server, and does without


@pytest.mark.parametrize("command", [rule for rule in documented("app1") if rule.startswith("+")])
def test_each_command_is_needed(server: Server, command: str) -> None:
    """Without any one of the commands something is refused: NOPERM, which is denied."""
    rules = [rule for rule in documented("app1") if rule != command]
    server.run("ACL", "SETUSER", "app1", "reset", *rules)
    server.run("SCRIPT", "FLUSH")
    store = open_store(url(server), prefix="app1")
    with pytest.raises(StoreUnavailable, match="NOPERM") as caught:
        _everything(store)
    assert caught.value.denied is True
    store.close()


def _everything(store: Store) -> None:
    for number in range(100):  # the sweep comes by chance
        lock = held_lock(store, f"order:{number}")
        store.renew([lock], 1.0)
        store.peek(lock.names)
        store.release(lock)


def test_another_prefix(server: Server) -> None:
    """The pattern keeps one app out of another's locks."""
    with pytest.raises(StoreUnavailable, match="NOPERM") as caught:
        held_lock(open_store(url(server), prefix="app2"), "order:1")
    assert caught.value.denied is True
