"""Acquire + release on five servers, beside peers and beside bare sockets, interleaved in one run.

``python -m benchmarks.quorum [--rounds N] [--cycles N]``. 1.00 is five raw sockets, asked at once, waiting for a
majority, with our own two scripts. Then the same with one server hung (SIGSTOP), and a look at what is left behind once
it answers again. Peers that are not installed are left out, and said so.
"""

from __future__ import annotations

import gc
import itertools
import logging
import select
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import click
import redis

from celery_singleton_lock import open_store
from celery_singleton_lock.keys.names import names
from celery_singleton_lock.locks.answers import Granted, Holder
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.protocol import AcquireRequest, HeldLock, RecordWrite
from celery_singleton_lock.stores import scripts as commands
from celery_singleton_lock.stores.quorum import QuorumStore
from tests.support.servers import Server, valkey_binary

BASELINE = "raw sockets, a majority"
OURS = "Guard: lease, fence, record"
MAJORITY = 3
LONGEST = 10  # seconds for one contestant's turn
PEER_TIMEOUT = 0.1  # a peer's socket timeout, in seconds, where it has none of its own
Cycle = Callable[[], None]


def raw(servers: Sequence[Server]) -> Cycle:
    """Two requests by our own scripts to five sockets; late replies are counted off before the next."""
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for server in servers]
    poll = select.poll()
    owed = {}
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setblocking(False)
        poll.register(one, select.POLLIN)
        owed[one.fileno()] = (one, [0])
    numbers = itertools.count()
    holder = Holder("task-id", "shop.charge", "host", 1)
    name = names("singleton-lock", "benchmark:raw")
    token = "a" * 32

    def send(request: bytes) -> None:
        for one, count in owed.values():
            try:
                one.sendall(request)
            except BlockingIOError:  # a hung server's
                continue
            count[0] += 1
        answered = 0
        while answered < MAJORITY:
            for number, _ in poll.poll(1000):
                one, count = owed[number]
                data = one.recv(65536)
                count[0] -= data.count(b"$16\r\n") + data.count(b":1\r\n") + data.count(b":0\r\n")  # fences, releases
                answered += count[0] == 0

    def cycle() -> None:
        record_id = f"{next(numbers):032x}"
        fence = int(time.time() * 1_000_000)
        send(commands.acquire(AcquireRequest(name, token, holder, 30.0, record_id, 0), fence).packed())
        write = RecordWrite(record_id, 0, b'{"v":1,"state":"done"}', 60.0)
        send(commands.release(HeldLock(name, token, fence, 30.0), 0.0, write, raise_fence=True).packed())

    return cycle


def ours(store: QuorumStore) -> Cycle:
    """What a worker does."""
    numbers = itertools.count()
    holder = Holder("task-id", "shop.charge", "host", 1)

    def cycle() -> None:
        record_id = f"{next(numbers):032x}"
        guard = Guard(store, "benchmark:ours", ttl=30.0, holder=holder, record_id=record_id, attempt=0)
        answer = guard.acquire()
        if not isinstance(answer, Granted):
            raise SystemExit(f"the benchmark's lock was not granted: {answer}")
        guard.release(RecordWrite(record_id, 0, b'{"v":1,"state":"done"}', 60.0))

    return cycle


def redlock_ng(servers: Sequence[Server]) -> Cycle:
    """redlock-ng."""
    from redlock import Redlock  # type: ignore[import-not-found]  # a peer, where it is installed

    manager = Redlock([server.url() for server in servers])

    def cycle() -> None:
        lock = manager.acquire("benchmark:ng", 30_000)
        if not lock:
            raise RuntimeError("not acquired")
        manager.release(lock)

    return cycle


def other_redlock(servers: Sequence[Server], directory: Path | None) -> Cycle:
    """redlock-py, whose module has the same name as redlock-ng's: it is loaded from where it lies alone."""
    if directory is None:
        raise ImportError("pip install --target DIR redlock-py, and give --redlock-py DIR")
    spec = spec_from_file_location("redlock_py", directory / "redlock" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    manager = module.Redlock(
        [{"host": "127.0.0.1", "port": server.port, "socket_timeout": PEER_TIMEOUT} for server in servers]
    )

    def cycle() -> None:
        lock = manager.lock("benchmark:py", 30_000)
        if not lock:
            raise RuntimeError("not acquired")
        manager.unlock(lock)

    return cycle


def pottery(servers: Sequence[Server]) -> Cycle:
    """pottery's Redlock."""
    from pottery import Redlock  # type: ignore[import-not-found]  # a peer, where it is installed

    clients = {redis.Redis(port=server.port, socket_timeout=PEER_TIMEOUT) for server in servers}

    def cycle() -> None:
        lock = Redlock(key="benchmark:pottery", masters=clients, auto_release_time=30)
        if not lock.acquire(timeout=1):
            raise RuntimeError("not acquired")
        lock.release()

    return cycle


def measure(cycle: Cycle, cycles: int) -> float:
    """The median time of a cycle, in seconds."""
    found = []
    for _ in range(cycles):
        began = time.perf_counter()
        cycle()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def give_up(*_: object) -> None:
    """A peer may try for ever."""
    raise TimeoutError(f"no end within {LONGEST} s")


def compare(contestants: dict[str, Cycle], rounds: int, cycles: int, peers: int) -> dict[str, float]:
    """The medians over interleaved rounds; a contestant that fails is reported and left out."""
    times: dict[str, list[float]] = {}
    signal.signal(signal.SIGALRM, give_up)
    gc.disable()
    for turn in range(rounds + 1):
        for name, cycle in list(contestants.items()):
            signal.alarm(LONGEST)
            try:
                found = measure(cycle, cycles if name in (BASELINE, OURS) else peers)
            except Exception as error:
                click.echo(f"  {name:<28} failed: {type(error).__name__}: {str(error)[:80]}")
                del contestants[name]
                continue
            finally:
                signal.alarm(0)
            if turn > 0:
                times.setdefault(name, []).append(found)
        gc.collect()
    gc.enable()
    return {name: statistics.median(found) for name, found in times.items()}


def show(title: str, medians: dict[str, float], healthy: dict[str, float]) -> None:
    """Print a table: the ratio to the bare sockets, and to the contestant's own healthy time."""
    click.echo(title)
    for name, seconds in medians.items():
        own = f"   {seconds / healthy[name]:5.2f} of its own healthy time" if healthy is not medians else ""
        click.echo(f"  {name:<28} {seconds / medians[BASELINE]:5.2f} ({seconds * 1e6:8.1f} us){own}")


def left_behind(server: Server, seconds: float) -> list[str]:
    """The locks that are still on the server after at most ``seconds``."""
    with server.client() as client:
        end = time.monotonic() + seconds
        while (found := client.keys("singleton-lock:*:lock:*")) and time.monotonic() < end:
            time.sleep(0.01)
        return [str(name) for name in found]


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Interleaved rounds.")
@click.option("--cycles", default=100, show_default=True, help="Cycles a round; a peer does a twentieth of them.")
@click.option("--redlock-py", type=Path, help="Where redlock-py was installed with pip's --target.")
def main(rounds: int, cycles: int, redlock_py: Path | None) -> None:
    """Compare one cycle's cost on five embedded Valkeys."""
    with tempfile.TemporaryDirectory() as directory:
        servers = [Server(valkey_binary(), Path(directory), name=f"server-{number}") for number in range(5)]
        store = open_store([server.url() for server in servers])
        assert isinstance(store, QuorumStore)
        try:
            contestants = {BASELINE: raw(servers), OURS: ours(store)}
            for _ in range(5):  # until every server knows the scripts
                contestants[OURS]()
                time.sleep(0.05)
            logging.disable()  # redlock-py logs each server that does not answer
            peers: dict[str, Callable[[], Cycle]] = {
                "redlock-ng": lambda: redlock_ng(servers),
                "redlock-py": lambda: other_redlock(servers, redlock_py),
                "pottery": lambda: pottery(servers),
            }
            for name, make in peers.items():
                try:
                    contestants[name] = make()
                except ImportError as error:
                    click.echo(f"  {name:<28} left out: {error}")
            healthy = compare(contestants, rounds, cycles, max(1, cycles // 20))
            show("five servers, all well", healthy, healthy)
            threads = threading.active_count()
            servers[4].pause()
            hung = compare(contestants, min(rounds, 5), cycles, 1)
            show("one of them hung", hung, healthy)
            servers[4].resume()
            click.echo(f"  locks left behind once it answers again: {left_behind(servers[4], 1.0)}")
            click.echo(f"  threads {threads} -> {threading.active_count()}")
        finally:
            store.close()
            for server in servers:
                server.stop()


if __name__ == "__main__":
    main()
