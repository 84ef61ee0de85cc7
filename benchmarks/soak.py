"""A soak: thousands of tasks on few resources, while children and workers are killed, limited and revoked.

``python -m benchmarks.soak [--tasks 20000] [--resources 50] [--seed 1] [--rabbitmq]``. Two prefork workers, acks_late,
reject_on_worker_lost, a visibility timeout of seconds, and the transaction helper on SQLite. The verdict reads the
database's own record: nobody went in beside somebody else, nothing was lost, nothing was booked twice.

A Redis broker itself can lose a message: kombu takes it off the queue and notes in a second step that it has done so.
A worker that is killed in between leaves a message that was sent, and that nobody received. The logs show it, and it
is counted apart; ``--control`` runs the same without locks, and shows the same; on RabbitMQ there is no such moment.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import click
import psutil
import sqlalchemy as sa

from celery_singleton_lock.contrib.sqlalchemy import metadata
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import Server, valkey_binary
from tests.support.worker import Worker

VISIBILITY = 6.0
_NUMBER = re.compile(r"\[soak-(\d+)\]")
CHILDREN = 4


class Soak:
    """One run: a server, a database, two workers, and what is done to them."""

    def __init__(self, directory: Path, tasks: int, resources: int, seed: int, rabbitmq: bool) -> None:
        self.directory, self.tasks, self.resources, self.seed = directory, tasks, resources, seed
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.revoked: set[int] = set()
        self.server = Server(valkey_binary(), directory)
        self.rabbitmq = RabbitMQ(directory) if rabbitmq else None
        self.env = {
            "SOAK_BROKER": self.rabbitmq.url if self.rabbitmq else self.server.url(0),
            "SOAK_LOCKS": self.server.url(2),
            "SOAK_DATABASE": f"sqlite:///{directory / 'soak.db'}",
            "SOAK_VISIBILITY": str(VISIBILITY),
        }
        os.environ.update(self.env)
        from . import soak_app

        self.app: Any = soak_app
        metadata.create_all(soak_app.engine)
        self.names = itertools.count()
        self.workers = [self._worker(), self._worker()]

    def _worker(self) -> Worker:
        worker = Worker(
            "benchmarks.soak_app",
            name=f"soak{next(self.names)}",
            directory=self.directory,
            concurrency=CHILDREN,
            env=self.env,
            wait=False,
        )
        worker.wait_until_ready(60)
        return worker

    def send(self) -> None:
        """Every task, with the limits of its kind."""
        limits = {"soft": {"soft_time_limit": 1}, "hard": {"time_limit": 1}}
        with self.app.app.producer_or_acquire() as producer:
            for number in range(self.tasks):
                kind = self.app.kind_of(self.seed, number)
                self.counts[f"sent {kind}"] += 1
                self.app.book.apply_async(
                    [number, self.random.randrange(self.resources), kind],
                    task_id=f"soak-{number}",
                    producer=producer,
                    **limits.get(kind, {}),
                )

    def booked(self) -> int:
        """How many tasks have booked so far."""
        events = self.app.events
        with self.app.engine.connect() as connection:
            query = sa.select(sa.func.count(sa.distinct(events.c.number))).where(events.c.what == "out")
            return int(connection.execute(query).scalar_one())

    def disturb(self) -> None:
        """One thing that goes wrong."""
        what = self.random.choices(["child", "worker", "parent", "revoke"], weights=[70, 6, 6, 18])[0]
        at = self.random.randrange(len(self.workers))
        worker = self.workers[at]
        self.counts[f"done {what}"] += 1
        if what == "child":
            children = worker.children()
            if children:
                _kill(self.random.choice(children))
        elif what == "revoke":
            number = self.random.randrange(self.tasks)
            self.revoked.add(number)
            name = self.random.choice(["SIGTERM", "SIGKILL"])
            self.app.app.control.revoke(f"soak-{number}", terminate=True, signal=name)
        else:
            if what == "parent":  # its children go on without it for a moment
                _kill(worker.pid)
                time.sleep(0.5)
            worker.kill()
            self.workers[at] = self._worker()

    def restore(self) -> None:
        """What a worker does every 100 s: messages that were taken longer ago than the visibility timeout come back.

        RabbitMQ gives them back by itself, as soon as the worker's connection is gone.
        """
        if self.rabbitmq:
            return
        with self.app.app.connection() as connection:
            connection.default_channel.qos.restore_visible(interval=1)

    def run(self, patience: float) -> None:
        """Send, disturb, and wait until everything is booked. ``patience``: seconds without progress."""
        self.send()
        calm = time.monotonic() + patience
        seen = -1
        while True:
            booked = self.booked()
            if self.missing() == set() or time.monotonic() > calm:
                return
            if booked != seen:
                seen, calm = booked, time.monotonic() + patience
            if booked < self.tasks * 0.97:  # the last ones are left in peace, so that there is an end
                self.disturb()
            self.restore()
            time.sleep(self.random.uniform(0.2, 0.8))

    def missing(self) -> set[int]:
        """The tasks that are not booked though nobody revoked them."""
        events = self.app.events
        with self.app.engine.connect() as connection:
            out = set(connection.execute(sa.select(events.c.number).where(events.c.what == "out")).scalars())
        return set(range(self.tasks)) - out - self.revoked

    def messages(self) -> int:
        """How many are in the queue, or on a Redis broker were taken from it and not acknowledged."""
        if self.rabbitmq:
            with self.app.app.connection() as connection:
                return int(connection.default_channel.queue_declare("celery", passive=True).message_count)
        with self.server.client(0) as client:
            return int(client.llen("celery") + client.hlen("unacked"))

    def settle(self) -> None:
        """Let the last copies end, then stop the workers."""
        end = time.monotonic() + 4 * VISIBILITY + 30
        while time.monotonic() < end and self.messages():
            self.restore()
            time.sleep(0.5)
        pids = [pid for worker in self.workers for pid in (worker.pid, *worker.children())]
        for worker in self.workers:
            worker.send(signal.SIGTERM)
        end = time.monotonic() + 30
        while time.monotonic() < end and any(worker.running for worker in self.workers):
            time.sleep(0.1)
        self.counts["processes left"] = sum(map(_runs, pids))
        self.counts["messages left"] = self.messages()  # now with those that RabbitMQ got back from the workers
        with self.server.client(2) as client:
            end = time.monotonic() + 5
            while time.monotonic() < end and client.keys("*:lock:*"):
                time.sleep(0.2)
            self.counts["locks left"] = len(client.keys("*:lock:*"))
            self.counts["keys without an end"] = sum(client.ttl(key) == -1 for key in client.scan_iter(count=1000))

    def verdict(self) -> None:
        """Count what must be none, by the database's record."""
        events = self.app.events
        with self.app.engine.connect() as connection:
            rows = connection.execute(sa.select(events).order_by(events.c.id)).all()
        newest: dict[int, int] = {}
        outs: Counter[int] = Counter()
        for row in rows:
            self.counts[f"bodies {row.what}"] += 1
            if row.what == "in":
                if row.fence <= newest.get(row.resource, 0):
                    self.counts["overlaps"] += 1
                newest[row.resource] = row.fence
            else:
                outs[row.number] += 1
                if row.fence != newest.get(row.resource):
                    self.counts["overlaps"] += 1
        self.counts["booked"] = len(outs)
        self.counts["booked twice"] = sum(count > 1 for count in outs.values())
        self.counts["lost"] = len(self.missing())
        self.counts["revoked before they booked"] = len(self.revoked - outs.keys())

    def blame_the_broker(self) -> None:
        """Of the lost messages, those that were sent and acknowledged in good order, and received by nobody."""
        lines: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for log in self.directory.glob("soak*.log"):
            for line in log.read_text(errors="replace").splitlines():
                found = _NUMBER.search(line)
                if found and line.startswith("["):
                    lines[int(found[1])].append((line[1:24], line))
        for number in self.missing():
            last = ""
            for _, line in sorted(lines[number]):
                if line.endswith("received"):
                    last = "received"
                elif "] retry: Retry" in line:  # its message was published, this one acknowledged
                    last = ""
            if not last:
                self.counts["lost"] -= 1
                self.counts["lost by the broker"] += 1

    def close(self) -> None:
        """End everything."""
        for worker in self.workers:
            worker.kill()
        self.app.app.close()
        self.app.engine.dispose()
        self.server.stop()
        if self.rabbitmq:
            self.rabbitmq.stop()


#: What a soak that went well has none of.
NONE = ("overlaps", "booked twice", "lost", "messages left", "processes left", "locks left", "keys without an end")


def soak(directory: Path, tasks: int, resources: int, seed: int, rabbitmq: bool) -> dict[str, int]:
    """Run one soak; its counts."""
    run = Soak(directory, tasks, resources, seed, rabbitmq)
    try:
        start = time.monotonic()
        run.run(patience=60.0)
        run.settle()
        run.verdict()
        run.blame_the_broker()
        run.counts["seconds"] = round(time.monotonic() - start)
        for log in directory.glob("soak*.log"):
            text = log.read_text(errors="replace")
            run.counts["locks freed by a parent"] += text.count("freed lock")
            run.counts["lock waits"] += text.count("sent again in")
            run.counts["answered from records"] += text.count("answered from the record")
            run.counts["ended silently"] += text.count("ends here")
            run.counts["bodies refused as stale"] += text.count("s: StaleFence(")
            run.counts["leases lost"] += text.count("is LOST")
    finally:
        run.close()
    return {**dict.fromkeys(NONE, 0), **run.counts}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@click.command()
@click.option("--tasks", default=20_000)
@click.option("--resources", default=50)
@click.option("--seed", default=1)
@click.option("--json", "as_json", is_flag=True, help="the counts as one line of JSON")
@click.option("--rabbitmq", is_flag=True, help="with RabbitMQ as the broker, instead of Redis")
@click.option("--control", is_flag=True, help="without locks: what Celery and its broker do by themselves")
def main(tasks: int, resources: int, seed: int, as_json: bool, rabbitmq: bool, control: bool) -> None:
    """Run the soak, print its counts, and fail where one is not 0 that must be.

    With locks hardly a body should be "refused as stale": it would have run beside another one.
    """
    if control:
        os.environ["SOAK_CONTROL"] = "1"
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        counts = soak(Path(directory), tasks, resources, seed, rabbitmq)
    if as_json:
        print(json.dumps(counts))
    else:
        for name in sorted(counts):
            print(f"{counts[name]:8d}  {name}{'' if name not in NONE else '   (must be 0)'}")
    sys.exit(any(counts[name] for name in NONE))


if __name__ == "__main__":
    main()
