"""Deployments to break: one server, and several, each behind a cable that can fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_singleton_lock import open_store
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.stores.quorum import QuorumStore

from ..support.ledger import Ledger
from ..support.network import Cable, Network
from ..support.servers import Server, StartServer


class Deployment:
    """Servers, the cables to them, and stores on them."""

    def __init__(self, servers: list[Server], network: Network) -> None:
        self.servers = servers
        self.cables: list[Cable] = [network.cable(server.port) for server in servers]
        self._stores: list[Store] = []

    @property
    def urls(self) -> list[str]:
        """By way of the cables; a list of one is a single server."""
        return [cable.url for cable in self.cables]

    def store(self, timeout: float = 1.0) -> Store:
        """A store of its own, as another process has it."""
        made = open_store(self.urls, timeout=timeout)
        self._stores.append(made)
        return made

    def quorum(self, timeout: float = 1.0) -> QuorumStore:
        """The same, where there are several servers."""
        made = self.store(timeout)
        assert isinstance(made, QuorumStore)
        return made

    def stored(self, pattern: str = "*") -> list[set[str]]:
        """The keys of each server that runs, past the cables."""
        found = []
        for server in self.servers:
            with server.client() as client:
                found.append(set(client.keys(pattern)))
        return found

    def close(self) -> None:
        """The end of the stores."""
        for store in self._stores:
            store.close()


@pytest.fixture
def network() -> Iterator[Network]:
    """Cables for this test."""
    made = Network()
    yield made
    made.close()


def _deployment(count: int, start_server: StartServer, network: Network) -> Iterator[Deployment]:
    made = Deployment([start_server() for _ in range(count)], network)
    yield made
    made.close()
    for server in made.servers:
        server.resume()


@pytest.fixture
def five(start_server: StartServer, network: Network) -> Iterator[Deployment]:
    """Five servers."""
    yield from _deployment(5, start_server, network)


@pytest.fixture
def three(start_server: StartServer, network: Network) -> Iterator[Deployment]:
    """Three servers."""
    yield from _deployment(3, start_server, network)


@pytest.fixture
def one(start_server: StartServer, network: Network) -> Iterator[Deployment]:
    """One server."""
    yield from _deployment(1, start_server, network)


@pytest.fixture(params=[1, 3], ids=["one server", "three servers"])
def deployment(request: pytest.FixtureRequest, start_server: StartServer, network: Network) -> Iterator[Deployment]:
    """One server, and a quorum of three."""
    yield from _deployment(request.param, start_server, network)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A storage that checks fences."""
    made = Ledger(tmp_path / "ledger.sqlite")
    yield made
    made.close()
