"""Deployments to break: one server, and several, each behind a cable that can fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from celery_singleton_lock import open_store
from celery_singleton_lock.keys.names import DEFAULT_PREFIX
from celery_singleton_lock.locks.answers import Holder
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.stores.quorum import QuorumStore
from celery_singleton_lock.stores.scripts import encode_holder
from celery_singleton_lock.transport.urls import read

from ..support.ledger import Ledger
from ..support.locks import NAMES, RECORD_ID, warm
from ..support.network import Cable, Network
from ..support.servers import Server, StartServer

S = TypeVar("S", bound=Store)


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
        """A store of its own, as another process has it; nothing is connected yet."""
        return self._keep(open_store(self.urls, timeout=timeout))

    def warm_store(self, timeout: float = 1.0) -> Store:
        """The same, with its connections open."""
        store = self.store(timeout)
        warm(store)
        return store

    def cold_quorum(self, timeout: float = 1.0, wall: Callable[[], float] = time.time) -> QuorumStore:
        """A store on several servers; nothing is connected yet."""
        urls = [read(url) for url in self.urls]
        return self._keep(QuorumStore(urls, prefix=DEFAULT_PREFIX, timeout=timeout, wall=wall))

    def quorum(self, timeout: float = 1.0, wall: Callable[[], float] = time.time) -> QuorumStore:
        """The same, with a connection to each of them."""
        store = self.cold_quorum(timeout, wall)
        warm(store)
        return store

    def _keep(self, store: S) -> S:
        self._stores.append(store)
        return store

    def stored(self, pattern: str = "*") -> list[set[str]]:
        """The keys of each server that runs, past the cables."""
        return [set(server.run("KEYS", pattern)) for server in self.servers]

    def locked(self) -> list[bool]:
        """Which servers have the lock of `KEY`."""
        return [NAMES.lock in keys for keys in self.stored()]

    def fences(self) -> list[int]:
        """The fence of `KEY` that each server remembers, 0 where it remembers none."""
        return [int(server.run("GET", NAMES.fence) or 0) for server in self.servers]

    def occupy(self, indexes: Iterable[int], token: str = "c" * 32) -> None:
        """Somebody's lock on some of the servers."""
        for index in indexes:
            lock = f"h:{token}:5:{encode_holder(Holder('other'))}"
            self.servers[index].run("SET", NAMES.lock, lock, "PX", 30_000)

    def leave_record(self, index: int, fence: int, body: str = "done") -> None:
        """A record that only one server has."""
        self.servers[index].run("SET", NAMES.record(RECORD_ID), f"0:{fence}:{body}", "PX", 30_000)
        self.servers[index].run("SET", NAMES.fence, fence)

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
