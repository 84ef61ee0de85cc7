"""One client process of the history checker: threads that take locks, work, and write down what they know.

``python -m benchmarks.history_client OUT DATABASE SEED THREADS KEYS TTL STOP URL...``; the file STOP ends it.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.locks.answers import Answer, Granted, Taken
from celery_singleton_lock.locks.clock import now
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.lease import Lease
from celery_singleton_lock.locks.protocol import AcquireRequest, Store
from celery_singleton_lock.stores.quorum import QuorumStore

TABLES = """
CREATE TABLE IF NOT EXISTS row (key TEXT PRIMARY KEY, fence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS written (seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, fence INTEGER, token TEXT);
"""


class Timed(threading.local):
    """When the last acquire of this thread was answered, by the clock that all processes share."""

    at = 0.0


def timed(store: Store) -> tuple[Store, Timed]:
    """``store``, and when it answered."""
    seen = Timed()
    original = store.acquire

    def acquire(request: AcquireRequest) -> Answer:
        answer = original(request)
        seen.at = now()
        return answer

    store.acquire = acquire  # type: ignore[method-assign]  # a spy
    return store, seen


class Client:
    """One thread: acquire, work under the lease, release; again."""

    def __init__(self, arguments: list[str], number: int, store: Store, seen: Timed, out: Any) -> None:
        _, database, seed, _, keys, ttl, stop, *_ = arguments
        self.random = random.Random(f"{seed}/{number}")
        self.keys, self.ttl, self.stop = int(keys), float(ttl), Path(stop)
        self.store, self.seen, self.out, self.database = store, seen, out, database
        self.counts = {"taken": 0, "unavailable": 0, "contended": 0, "release_failed": 0}

    def run(self) -> None:
        """Until the file ``stop`` is there."""
        self.connection = sqlite3.connect(self.database, timeout=30, isolation_level=None)
        while not self.stop.exists():
            self.turn()
        self.note(counts=self.counts)

    def note(self, **fields: Any) -> None:
        """One line of the history; one write, so that lines of threads do not mix."""
        self.out.write(json.dumps(fields) + "\n")
        self.out.flush()

    def turn(self) -> None:
        """One attempt."""
        key = f"key:{self.random.randrange(self.keys)}"
        lost: list[float] = []
        guard = Guard(self.store, key, ttl=self.ttl, on_lost=lambda lease: lost.append(min(now(), lease.deadline)))
        sent = now()
        try:
            answer = guard.acquire()
        except StoreUnavailable as error:
            self.counts["contended" if error.contended else "unavailable"] += 1
            time.sleep(self.random.uniform(0, 0.01))
            return
        if isinstance(answer, Taken):
            self.counts["taken"] += 1
            time.sleep(self.random.uniform(0, 0.01))
            return
        assert isinstance(answer, Granted)
        lease = guard.lease
        assert lease is not None
        self.note(key=key, fence=answer.fence, token=lease.token, sent=sent, granted=self.seen.at)
        self.body(key, lease)
        end = now()
        told = lost[0] if lost else lease.deadline if lease.lost else None
        try:
            guard.release()
        except StoreUnavailable:
            self.counts["release_failed"] += 1
        told = told if told is not None or not lost else lost[0]
        self.note(token=lease.token, end=end, told=told, refused=self.refused)

    def body(self, key: str, lease: Lease) -> None:
        """Checked writes, at once and after a while; the while is longer than the ttl now and then."""
        self.refused = 0
        self.write(key, lease)
        long = self.random.random()
        time.sleep(
            self.random.uniform(1.0, 2.0) * self.ttl
            if long < 0.004
            else self.random.uniform(0, 0.15 * self.ttl)
            if long < 0.03
            else 0.0
        )
        if long < 0.1:
            self.write(key, lease)

    def write(self, key: str, lease: Lease) -> None:
        """A transaction that the fence decides, not the lease: it is sent though the lease may be lost."""
        run = self.connection.execute
        run("BEGIN IMMEDIATE")
        run(
            "INSERT INTO row VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET fence = excluded.fence"
            " WHERE excluded.fence > row.fence",
            (key, lease.fence),
        )
        (newest,) = run("SELECT fence FROM row WHERE key = ?", (key,)).fetchone()
        if newest == lease.fence:
            run("INSERT INTO written (key, fence, token) VALUES (?, ?, ?)", (key, lease.fence, lease.token))
        else:
            self.refused += 1
        run("COMMIT")


def main() -> None:
    """Run the threads."""
    arguments = sys.argv[1:]
    store, seen = timed(open_store(arguments[7:], timeout=float(arguments[5]) / 4))
    assert isinstance(store, QuorumStore)
    with Path(arguments[0]).open("a") as out:
        out.write(f'\n{{"started": {now()}}}\n')  # the line before it may have been written by halves
        out.flush()
        clients = [Client(arguments, number, store, seen, out) for number in range(int(arguments[3]))]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
