"""Acquire + release, uncontended: beside two plain redis-py calls and redis.lock.Lock, interleaved in one run.

``python -m benchmarks.cycle [--rounds N] [--cycles N]``. Each contestant does ``cycles`` cycles a round, the rounds
interleave, and the table shows the ratio of medians to two plain ``execute_command`` calls: wall time, and the
client's own CPU time.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import redis

from celery_singleton_lock import open_store
from celery_singleton_lock.locks.answers import Granted, Holder
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.protocol import RecordWrite, Store
from tests.support.servers import Server, redis_binary, valkey_binary

BASELINE = "two plain calls"


class Cost(NamedTuple):
    """Seconds of one cycle."""

    wall: float
    cpu: float


def contestants(client: redis.Redis, store: Store) -> dict[str, Callable[[], None]]:
    """What is measured, by name: each call is one cycle."""
    lock = client.lock("benchmark:theirs", timeout=30)
    holder = Holder("task-id", "shop.charge", "host", 1)
    numbers = itertools.count()

    def plain() -> None:
        client.execute_command("GET", "benchmark:plain")
        client.execute_command("GET", "benchmark:plain")

    def theirs() -> None:
        lock.acquire()
        lock.release()

    def ours() -> None:
        record_id = f"{next(numbers):032x}"
        guard = Guard(store, "benchmark:ours", ttl=30.0, holder=holder, record_id=record_id, attempt=0)
        if not isinstance(guard.acquire(), Granted):
            raise SystemExit("the benchmark's lock is taken: does something else use this server?")
        guard.release(RecordWrite(record_id, 0, b'{"v":1,"state":"done"}', 60.0))

    return {BASELINE: plain, "redis.lock.Lock": theirs, "Guard: lease, fence, record": ours}


def measure(cycle: Callable[[], None], cycles: int) -> Cost:
    """The mean cost of ``cycles`` cycles."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(cycles):
        cycle()
    return Cost((time.perf_counter() - wall) / cycles, (time.process_time() - cpu) / cycles)


def compare(server: Server, rounds: int, cycles: int) -> None:
    """Print the table for one server."""
    client = redis.Redis.from_url(server.url(0))
    store = open_store(server.url(0))
    chosen = contestants(client, store)
    costs: dict[str, list[Cost]] = {name: [] for name in chosen}
    gc.disable()
    for turn in range(rounds + 1):
        for name, cycle in chosen.items():
            cost = measure(cycle, cycles)
            if turn > 0:  # the first one only warms up
                costs[name].append(cost)
        gc.collect()
    gc.enable()
    medians = {name: Cost(*map(statistics.median, zip(*found, strict=True))) for name, found in costs.items()}
    base = medians[BASELINE]
    info = client.info("server")
    click.echo(f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}")
    for name, cost in medians.items():
        click.echo(
            f"  {name:<28} wall {cost.wall / base.wall:5.2f} ({cost.wall * 1e6:6.1f} us)"
            f"   client cpu {cost.cpu / base.cpu:5.2f} ({cost.cpu * 1e6:6.1f} us)"
        )
    store.close()
    client.close()


@click.command()
@click.option("--rounds", default=30, show_default=True, help="Interleaved rounds.")
@click.option("--cycles", default=300, show_default=True, help="Cycles a round.")
def main(rounds: int, cycles: int) -> None:
    """Compare one cycle's cost on Valkey (embedded) and on Debian's redis-server."""
    with tempfile.TemporaryDirectory() as directory:
        for binary in (valkey_binary(), redis_binary()):
            server = Server(binary, Path(directory))
            try:
                compare(server, rounds, cycles)
            finally:
                server.stop()


if __name__ == "__main__":
    main()
