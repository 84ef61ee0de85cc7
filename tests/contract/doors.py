"""How a test gets at the keys behind a store, past the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import redis


class BackDoor(Protocol):
    """The keys behind a store."""

    def leave(self, name: str, seconds: float) -> None:
        """Key ``name`` has ``seconds`` to live from now; with 0 it has come to its end."""

    def lifetimes(self) -> dict[str, float]:
        """Every key behind the store, and the seconds it has to live; infinity where it has no end."""


class ServerDoor:
    """The keys of one server or of several, by clients of the test's own.

    ``settle``: returns when what the store has sent was carried out everywhere.
    """

    def __init__(self, clients: Sequence[redis.Redis], settle: Callable[[], object] = bool) -> None:
        self.clients = clients
        self.settle = settle

    def leave(self, name: str, seconds: float) -> None:
        """Give the key another end; one that is over deletes it, as its own end does."""
        self.settle()
        for client in self.clients:
            client.pexpire(name, round(seconds * 1000))

    def lifetimes(self) -> dict[str, float]:
        """Every key of any server, with the longest of its lifetimes."""
        self.settle()
        found: dict[str, float] = {}
        for client in self.clients:
            every: list[Any] = list(client.scan_iter())
            for name in every:
                left = client.pttl(name)
                if left != -2:
                    found[name] = max(found.get(name, 0.0), math.inf if left == -1 else left / 1000)
        return found
