"""A history of locks on five servers under random faults, checked.

``python -m benchmarks.history [--acquisitions N] [--seed N]``. Client processes take locks while at most two servers at
a time are killed, paused, flushed, or cut off, at most two lose their memory within any ttl + longest hold, and clients
are paused for longer than their leases, or killed. The schedule of the faults comes from the seed; how the processes
interleave does not.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from benchmarks.history_check import Report, check, read
from benchmarks.history_client import TABLES
from tests.support.network import Cable, Network
from tests.support.process import Process
from tests.support.servers import Server, valkey_binary

SERVERS = 5
FAULTY = 2  # at a time


class Faults:
    """What befalls the servers and the clients, one after the other."""

    def __init__(self, servers: list[Server], cables: list[Cable], ttl: float, seed: int) -> None:
        self.random = random.Random(seed)
        self.servers, self.cables = servers, cables
        self.window = ttl + 3.5 * ttl  # ttl + longest hold, that of a paused client
        self.ttl = ttl
        self.counts: Counter[str] = Counter()
        self.until: dict[int, tuple[float, str]] = {}  # the faulty servers
        self.forgot: list[float] = []
        self.paused: tuple[float, Process] | None = None

    def step(self, clients: list[Process]) -> None:
        """Mend what is due, and break something."""
        at = time.monotonic()
        for index, (end, kind) in list(self.until.items()):
            if end <= at:
                self.mend(index, kind)
        if self.paused is not None and self.paused[0] <= at:
            self.paused[1].resume()
            self.paused = None
        if len(self.until) < FAULTY and self.random.random() < 0.25:
            self.strike(at)
        if self.paused is None and self.random.random() < 0.02:
            victim = self.random.choice(clients)
            if self.random.random() < 0.2:
                victim.kill()
                victim.start()
                self.counts["client killed"] += 1
            else:
                victim.pause()
                self.paused = (at + self.random.uniform(1.0, 1.5) * self.ttl, victim)
                self.counts["client paused"] += 1

    def strike(self, at: float) -> None:
        """Let a fault befall a sound server."""
        index = self.random.choice([number for number in range(SERVERS) if number not in self.until])
        kind = self.random.choice(["kill", "pause", "flush", "hold", "swallow", "cut", "slow", "scripts"])
        self.forgot = [when for when in self.forgot if when > at - self.window]
        if kind in ("kill", "flush"):
            if len(self.forgot) >= 2:
                return
            # A killed server's memory is gone for as long as it is down, and after that.
            self.forgot.append(at + (self.ttl if kind == "kill" else 0.0))
        seconds = self.random.choice([0.02, 0.1, 0.5 * self.ttl, self.ttl])
        server, cable = self.servers[index], self.cables[index]
        if kind == "kill":
            server.kill()
        elif kind == "pause":
            server.pause()
        elif kind in ("flush", "scripts"):
            with server.client() as client:
                client.flushall() if kind == "flush" else client.script_flush()
            seconds = 0.0
        elif kind == "slow":
            cable.slow(self.random.uniform(0.001, 0.03))
        else:
            getattr(cable, kind)()
        self.counts[kind] += 1
        self.until[index] = (at + seconds, kind)

    def mend(self, index: int, kind: str) -> None:
        """End a server's fault."""
        if kind == "kill":
            self.servers[index].restart()
        elif kind == "pause":
            self.servers[index].resume()
        elif kind in ("hold", "swallow", "slow"):
            self.cables[index].heal()
        del self.until[index]

    def end(self) -> None:
        """Everything works again."""
        for index, (_, kind) in list(self.until.items()):
            self.mend(index, kind)
        if self.paused is not None:
            self.paused[1].resume()


def run(
    directory: Path,
    acquisitions: int,
    seed: int,
    *,
    ttl: float = 1.0,
    processes: int = 3,
    threads: int = 3,
    keys: int = 4,
) -> Report:
    """Make a history of at least ``acquisitions`` grants, and check it."""
    database, stop = directory / "data.sqlite", directory / "stop"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(TABLES)
    network = Network()
    servers: list[Server] = []
    clients: list[Process] = []
    try:
        servers += [Server(valkey_binary(), directory, name=f"server-{number}") for number in range(SERVERS)]
        cables = [network.cable(server.port) for server in servers]
        for number in range(processes):
            argv = [sys.executable, "-m", "benchmarks.history_client", str(directory / f"history-{number}")]
            argv += [str(database), f"{seed}/{number}", str(threads), str(keys), str(ttl), str(stop)]
            argv += [cable.url for cable in cables]
            log = directory / f"client-{number}.log"
            clients.append(Process(argv, log=log, env={"PYTHONPATH": os.getcwd()}, cwd=directory))
        faults = Faults(servers, cables, ttl, seed)
        while grants(directory) < acquisitions:
            faults.step(clients)
            for client in clients:
                if not client.running:
                    raise RuntimeError(f"a client ended:\n{client.log()}")
            time.sleep(0.05)
        faults.end()
        stop.touch()
        for client in clients:
            client.resume()
            client._popen.wait(30)
    finally:
        for process in clients:
            process.kill()
        network.close()
        for server in servers:
            server.stop()
    report = Report()
    report.counts.update({f"fault: {kind}": count for kind, count in faults.counts.items()})
    with sqlite3.connect(database) as connection:
        written = connection.execute("SELECT key, fence, token FROM written ORDER BY seq").fetchall()
    paths = sorted(directory.glob("history-*"))
    spans = [span for path in paths for span in read(whole(path.read_text().splitlines()), report)]
    check(spans, written, report)
    return report


def grants(directory: Path) -> int:
    """How many so far, roughly: two lines a grant."""
    return sum(path.read_bytes().count(b'"granted"') for path in directory.glob("history-*"))


def whole(lines: list[str]) -> list[str]:
    """Without what a killed client wrote by halves."""
    return [line for line in lines if line.startswith("{") and line.endswith("}")]


@click.command()
@click.option("--acquisitions", default=10_000, show_default=True, help="Grants in the history, at least.")
@click.option("--seed", default=1, show_default=True, help="Of the faults.")
def main(acquisitions: int, seed: int) -> None:
    """Make a history under faults, check it, and print the counts; exit code 1 where something was violated."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        report = run(Path(directory), acquisitions, seed)
    for name, count in sorted(report.counts.items()):
        click.echo(f"{count:8d}  {name}")
    click.echo(f"{len(report.violations):8d}  VIOLATIONS in {time.monotonic() - began:.0f} s, seed {seed}")
    for violation in report.violations[:20]:
        click.echo(f"          {violation}")
    sys.exit(bool(report.violations))


if __name__ == "__main__":
    main()
