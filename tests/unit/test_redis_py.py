"""redis-py's private names that `transport/redis_py.py` needs: they are there, and do what it says of them."""

from __future__ import annotations

import ast
import socket
from pathlib import Path
from typing import Any

import pytest
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection

import celery_singleton_lock
from celery_singleton_lock.transport import redis_py

PACKAGE = Path(celery_singleton_lock.__file__).parent
CLASSES = [Connection, SSLConnection, UnixDomainSocketConnection]


@pytest.mark.parametrize("base", CLASSES, ids=lambda base: base.__name__)
def test_what_connecting_returns_is_the_socket(base: type[AbstractConnection]) -> None:
    """What `_connect` returns is in `_sock` until the end, and `redis_connect_func` is all that happens next."""
    ours, theirs = socket.socketpair()
    told: list[object] = []
    connection: Any = type("Ours", (base,), {"_connect": lambda _: ours})(redis_connect_func=told.append)
    with theirs:
        theirs.setblocking(False)
        connection.connect()
        assert (told, connection._sock) == ([connection], ours)
        with pytest.raises(BlockingIOError):  # no log-in was sent
            theirs.recv(1)
        connection.disconnect()
        assert connection._sock is None


def test_the_parser_is_told_of_the_socket() -> None:
    """After `_parser.on_connect` replies are read from `_sock`, though nothing of redis-py's own log-in was done."""
    ours, theirs = socket.socketpair()
    connection: Any = type("Ours", (Connection,), {"_connect": lambda _: ours})
    connection = connection(redis_connect_func=redis_py.skip_log_in)
    with theirs:
        connection.connect()
        theirs.sendall(b"$5\r\nreply\r\n")
        assert connection.read_response(disconnect_on_error=False) == b"reply"
        connection.disconnect()


def test_each_kind_connects_by_that_name(tmp_path: Path) -> None:
    """`_connect` opens a TCP or a unix socket, and that of TLS gets its socket from the class beside it."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        kinds: list[tuple[Any, dict[str, Any]]] = [
            (Connection, {"port": tcp.getsockname()[1]}),
            (UnixDomainSocketConnection, {"path": str(tmp_path / "socket")}),
        ]
        for kind, where in kinds:
            kind(**where)._connect().close()

    class Reached(Exception):
        """By way of super()."""

    class Beside(Connection):
        def _connect(self) -> Any:
            raise Reached

    tls: Any = type("Tls", (SSLConnection, Beside), {})()
    with pytest.raises(Reached):
        tls._connect()


def strangers(source: str) -> set[str]:
    """What of redis-py's inside a module reaches for: its connections, or a private name on another object."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "redis.connection":
            found.add(node.module)
        elif isinstance(node, ast.Attribute) and node.attr in ("_connect", "_sock", "_parser"):
            found |= set() if isinstance(node.value, ast.Name) and node.value.id == "self" else {node.attr}
    return found


def test_no_other_module_knows_redis_pys_inside() -> None:
    """A redis-py that renames one of them breaks one module; the check itself sees that module."""
    found = {path.name: strangers(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {name: names for name, names in found.items() if names} == {
        "redis_py.py": {"redis.connection", "_connect", "_parser"}
    }
