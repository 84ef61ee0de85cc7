"""Several servers at once, and what is known of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import redis

from celery_singleton_lock.stores.quorum import QuorumStore

from .servers import Server
from .waiting import eventually


def settle(store: QuorumStore, timeout: float = 5.0) -> None:
    """Returns when every reply that is owed to the store has come: a call ends with its majority, the rest follows."""

    def settled() -> bool:
        return sum(node.settle()[1] for node in store.nodes) == 0

    eventually(settled, timeout, "the last replies")


def connect(store: QuorumStore, timeout: float = 5.0) -> None:
    """Returns when every server has a connection: the first calls go to a majority, whichever is there first."""

    def connected() -> bool:
        for node in store.nodes:
            if node.settle() == (0, 0):
                node.connect_soon()
        settle(store)
        return all(node.settle()[0] for node in store.nodes)

    eventually(connected, timeout, "a connection to every server")


class QuorumDoor:
    """The keys of all servers, by clients of the test's own."""

    def __init__(self, store: QuorumStore, clients: Sequence[redis.Redis]) -> None:
        self.store = store
        self.clients = clients

    def leave(self, name: str, seconds: float) -> None:
        """Give the key another end on every server."""
        settle(self.store)
        for client in self.clients:
            client.pexpire(name, round(seconds * 1000))

    def lifetimes(self) -> dict[str, float]:
        """Every key of any server, with the longest of its lifetimes."""
        settle(self.store)
        found: dict[str, float] = {}
        for client in self.clients:
            for name in client.keys("*"):
                left = client.pttl(name)
                if left != -2:
                    found[name] = max(found.get(name, 0.0), math.inf if left == -1 else left / 1000)
        return found


def everywhere(clients: Sequence[redis.Redis], name: str) -> list[str | None]:
    """The text of one key on each server."""
    return [client.get(name) for client in clients]


def urls(servers: Sequence[Server]) -> list[str]:
    """What `open_store` takes."""
    return [server.url() for server in servers]
