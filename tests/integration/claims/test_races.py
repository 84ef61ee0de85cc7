"""Claims at the same time: whoever raced, paused or was killed, the tables agree."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_singleton_lock.contrib.sqlalchemy import AlreadyDone, StaleFence, claim, done, fences

from .program import MESSAGES, PROGRAM, RESOURCES, run
from .tables import Account, Booking, lease_of, rows

ROOT = Path(__file__).parents[3]


def test_first_claims_at_once(engine: sa.Engine) -> None:
    """Two runs that claim a resource nobody has claimed before, for one piece of work: one of them books it."""
    for key in range(20):
        start = threading.Barrier(2)

        def run(fence: int, key: str = f"order:{key}", start: threading.Barrier = start) -> str:
            start.wait()
            with Session(engine) as session:
                while True:
                    try:
                        claim(session, lease_of(fence, "event", key))
                        session.add(Booking(resource=key, work="event", fence=fence))
                        session.commit()
                        return "booked"
                    except OperationalError:  # REPEATABLE READ: the other's commit came after this snapshot
                        session.rollback()
                    except AlreadyDone:
                        session.commit()
                        return "AlreadyDone"
                    except StaleFence:
                        return "StaleFence"

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(run, (1, 2))) in (["AlreadyDone", "booked"], ["StaleFence", "booked"])
    assert len(rows(engine, Booking.resource)) == len(rows(engine, *done.c)) == 20
    assert {fence for _, fence in rows(engine, *fences.c)} == {2}


def test_a_newer_run_waits_for_the_one_that_paused(engine: sa.Engine) -> None:
    """A stale run that stands still between its claim and its commit is waited for: both are booked, in order."""
    done_waiting = threading.Event()

    def newer() -> list[int]:
        with Session(engine) as session:
            while True:
                try:
                    claim(session, lease_of(20, "new"))
                    break
                except OperationalError:  # REPEATABLE READ: the older one's commit came after this snapshot
                    session.rollback()
            done_waiting.set()
            seen = list(session.scalars(sa.select(Booking.fence)))
            session.add(Booking(resource="order:1", work="new", fence=20))
            session.commit()
            return seen

    with ThreadPoolExecutor(1) as pool, Session(engine) as older:
        claim(older, lease_of(10, "old"))
        seen = pool.submit(newer)
        assert not done_waiting.wait(0.3)
        older.add(Booking(resource="order:1", work="old", fence=10))
        older.commit()
        assert seen.result(30) == [10]
    assert rows(engine, Booking.seq, Booking.fence) == [(1, 10), (2, 20)]


@pytest.mark.parametrize(("moment", "booked"), [("before", 20), ("after", 10)])
def test_a_killed_run_is_repeated_once(url: str, engine: sa.Engine, moment: str, booked: int) -> None:
    """Killed before its commit, the database undoes it and the redelivery books; after it, that is AlreadyDone."""
    child = subprocess.run([*PROGRAM, "run", url, "1", "10", moment], cwd=ROOT, timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert run(url, 1, 20) == ("booked" if moment == "before" else "AlreadyDone")
    assert rows(engine, Booking.fence) == [(booked,)]
    assert rows(engine, done.c.fence) == [(booked,)]


def test_whoever_dies_each_message_is_booked_once_and_in_order(url: str, engine: sa.Engine, tmp_path: Path) -> None:
    """Four workers deliver the same messages without any lock, with late and stale runs and kills: the tables agree."""
    counter = tmp_path / "fences"
    counter.write_text("0")
    with engine.begin() as connection:
        connection.execute(sa.insert(Account), [{"resource": f"order:{n}", "total": 0} for n in range(RESOURCES)])
    workers = [
        subprocess.Popen(
            [*PROGRAM, "deliver", url, str(counter), str(seed)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for seed in range(4)
    ]
    ends: Counter[str] = Counter()
    for worker in workers:
        ends.update(json.loads(worker.communicate(timeout=120)[0]))
        assert worker.returncode == 0
    booked = rows(engine, Booking.resource, Booking.seq, Booking.fence)
    works = rows(engine, Booking.work)
    assert works == sorted({(f"event-{n}",) for n in range(MESSAGES)})
    assert booked == sorted(booked, key=lambda row: (row[0], row[2]))
    assert sorted(fence for (fence,) in rows(engine, done.c.fence)) == sorted(fence for *_, fence in booked)
    totals = Counter(resource for resource, *_ in booked)
    assert dict(rows(engine, Account.resource, Account.total)) == totals
    assert ends["killed"] > 0
    assert ends["StaleFence"] > 0
    assert ends["AlreadyDone"] > MESSAGES
