"""A cluster of servers, put together without a command line tool."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import redis

from .servers import Server, valkey_binary
from .waiting import eventually

SLOTS = 16384


def _port() -> int:
    """A free port below the ephemeral ones, as its bus's own (10000 above) is."""
    for _ in range(200):
        port = random.randrange(10_000, 22_000)
        try:
            for number in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port
    raise RuntimeError("no two free ports")


class Cluster:
    """``nodes``: masters that share the slots evenly, each with ``replicas`` of its own behind them in the list.

    ``options``: the servers' own.
    """

    def __init__(self, directory: Path, *options: str, masters: int = 3, replicas: int = 0) -> None:
        self.nodes: list[Server] = []
        self.masters = masters
        try:
            for number in range(masters * (1 + replicas)):
                self.nodes.append(_Node(directory, number, *options))
            self._join()
        except BaseException:
            self.stop()
            raise

    def _join(self) -> None:
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            if number < self.masters:
                node.run("CLUSTER", "ADDSLOTSRANGE", *self.slots(number))
            node.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.run("CLUSTER", "MEET", "127.0.0.1", first.port)
        eventually(
            lambda: all(self._known(node) == len(self.nodes) for node in self.nodes), message="the nodes' meeting"
        )
        for number in range(self.masters, len(self.nodes)):
            self.nodes[number].run("CLUSTER", "REPLICATE", self.id(self.nodes[number % self.masters]))
        eventually(lambda: all(self.ok(node) for node in self.nodes), message="the cluster's state")

    def slots(self, number: int) -> tuple[int, int]:
        """The first and the last slot of a master."""
        return SLOTS * number // self.masters, SLOTS * (number + 1) // self.masters - 1

    def _known(self, node: Server) -> int:
        return int(self._info(node)["cluster_known_nodes"])

    def _info(self, node: Server) -> dict[str, str]:
        lines = str(node.run("CLUSTER", "INFO")).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def ok(self, node: Server) -> bool:
        """Whether a node thinks that all slots are served."""
        try:
            return self._info(node)["cluster_state"] == "ok"
        except redis.RedisError:
            return False

    def id(self, node: Server) -> str:
        """A node's name in the cluster."""
        return str(node.run("CLUSTER", "MYID"))

    def move(self, slot: int, to: int) -> None:
        """Give a slot that is empty to the master ``to``; every master is told.

        The new owner's epoch is raised first, as a migration does: else what the old one has said of the slot before it
        was told, and is still on its way, may give it back.
        """
        name = self.id(self.nodes[to])
        self.nodes[to].run("CLUSTER", "BUMPEPOCH")
        for number in [to, *(number for number in range(self.masters) if number != to)]:
            self.nodes[number].run("CLUSTER", "SETSLOT", slot, "NODE", name)

    def url(self) -> str:
        """A URL of all the nodes."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def stop(self) -> None:
        """The end of every node."""
        for node in self.nodes:
            node.stop()


class _Node(Server):
    def __init__(self, directory: Path, number: int, *more: str) -> None:
        home = directory / f"node-{number}"
        home.mkdir()
        port = _port()
        self._own = port
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", str(port + 10_000))
        super().__init__(valkey_binary(), home, *options, *more, name=f"node-{number}")

    def _ready(self) -> bool:
        if self.port != self._own:  # the base class takes any free port; a node's bus needs one that goes with it
            self.process.kill()
            self.port = self._own
            self.process.argv[-1] = str(self.port)
            self.process.start()
        return super()._ready()
