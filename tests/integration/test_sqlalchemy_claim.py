"""The transaction helper on real databases: what is in the tables afterwards, whoever raced, paused or was killed.

SQLite files always; PostgreSQL where its server and a driver are installed. Run as a program, this file is the worker
that the tests kill.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from glob import glob
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from celery_singleton_lock.clock import now
from celery_singleton_lock.contrib import sqlalchemy as contrib
from celery_singleton_lock.contrib.sqlalchemy import AlreadyDone, NoFence, StaleFence, claim, done, fences, forget
from celery_singleton_lock.errors import LeaseLost, LockKeyError, SingletonLockError
from celery_singleton_lock.lease import Lease, holding

from ..support.waiting import eventually

ROOT = Path(__file__).parents[2]


class Base(DeclarativeBase):
    """The user's own tables."""


class Booking(Base):
    __tablename__ = "booking"
    seq: Mapped[int] = mapped_column(primary_key=True)
    resource: Mapped[str] = mapped_column(sa.String(40))
    work: Mapped[str] = mapped_column(sa.String(40))
    fence: Mapped[int] = mapped_column(sa.BigInteger)


class Account(Base):
    __tablename__ = "account"
    resource: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    total: Mapped[int]


def lease_of(fence: int, work: str | None = None, key: str = "order:1") -> Lease:
    """A lease as a granted lock gives it."""
    return Lease(key, "0" * 32, fence, 30.0, sent=now(), record_id=work)


def engine_for(url: str) -> sa.Engine:
    """An engine without a pool, patient with SQLite's one writer."""
    engine = sa.create_engine(url, poolclass=NullPool, connect_args={"timeout": 30} if "sqlite" in url else {})
    if "no-upsert" in url:  # claim() takes the way for databases of which it knows no upsert
        engine.dialect.name = "another"
    return engine


# --- the databases ---------------------------------------------------------------------------------------------------


POSTGRESQL = sorted(glob("/usr/lib/postgresql/*/bin"))[-1:]
DRIVER = [name for name in ("psycopg", "psycopg2") if importlib.util.find_spec(name)][:1]
DATABASES = ["sqlite", "sqlite, no-upsert"]
if POSTGRESQL and DRIVER and (os.geteuid() != 0 or shutil.which("setpriv")):
    DATABASES += ["postgresql", "postgresql, no-upsert", "postgresql, repeatable read"]


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """A PostgreSQL server of this run's own, on a socket in a private directory; ended with the module."""
    home = tempfile.mkdtemp(prefix="claim-")
    drop: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(home, "postgres")
        drop = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL"]
    tools, data = POSTGRESQL[0], f"{home}/data"
    initdb = [f"{tools}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
    subprocess.run([*drop, *initdb], cwd=home, check=True, stdout=subprocess.DEVNULL)
    server = subprocess.Popen(
        [*drop, f"{tools}/postgres", "-D", data, "-k", home, "-c", "listen_addresses=", "-c", "fsync=off"],
        cwd=home,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"postgresql+{DRIVER[0]}://postgres@/postgres?host={home}"
        eventually(lambda: _answers(url), 30, "PostgreSQL answers")
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # a fast shutdown
        server.wait(30)
        shutil.rmtree(home)


def _answers(url: str) -> bool:
    try:
        with engine_for(url).connect():
            return True
    except OperationalError:
        return False


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with empty tables."""
    kind, _, variant = request.param.partition(", ")
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db{variant}"
    else:
        url = request.getfixturevalue("postgresql") + f"&application_name={variant}"
        if variant == "repeatable read":
            url += r"&options=-c default_transaction_isolation=repeatable\ read"
    engine = engine_for(url)
    for tables in (contrib.metadata, Base.metadata):
        tables.drop_all(engine)
        tables.create_all(engine)
    return url


@pytest.fixture
def engine(url: str) -> sa.Engine:
    """An engine for that database."""
    return engine_for(url)


def rows(engine: sa.Engine, *columns: Any) -> list[tuple[Any, ...]]:
    """What is committed, in order."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.select(*columns).order_by(*columns))]


# --- one claim after another -----------------------------------------------------------------------------------------


def test_a_claim_leaves_its_fence_and_its_work(engine: sa.Engine) -> None:
    """One row holds the resource's fence and one the work, both under hashes that begin with the key id."""
    lease = lease_of(7, "a-record", key="card:4111")
    with Session(engine) as session, session.begin(), holding(lease):
        claim(session)
    [(resource, fence)] = rows(engine, *fences.c)
    [(done_resource, work, done_fence, created)] = rows(engine, *done.c)
    assert (len(resource), resource[:16], fence) == (64, lease.key_id, 7)
    assert (done_resource, len(work), done_fence) == (resource, 64, 7)
    assert created is not None
    assert "a-record" not in work


def test_an_older_fence_is_refused(engine: sa.Engine) -> None:
    """Once a newer run has committed its claim, an older one gets StaleFence and the rows stay as they were."""
    with Session(engine) as session, session.begin():
        claim(session, lease_of(20, "new"))
    with pytest.raises(StaleFence) as caught, Session(engine) as session, session.begin():
        claim(session, lease_of(19, "old"))
    assert caught.value.args == (lease_of(1).key_id, 19, 20)
    assert [fence for _, fence in rows(engine, *fences.c)] == [20]
    assert [fence for (fence,) in rows(engine, done.c.fence)] == [20]


def test_the_same_work_is_done_once(engine: sa.Engine) -> None:
    """A repeat under a newer fence gets AlreadyDone, and its transaction may be committed."""
    first = None
    for fence in (1, 2):
        with Session(engine) as session, session.begin():
            try:
                claim(session, lease_of(fence, "event"))
            except AlreadyDone as already:
                first = already.fence
                continue
            session.add(Booking(resource="order:1", work="event", fence=fence))
    assert first == 1
    assert rows(engine, Booking.work, Booking.fence) == [("event", 1)]
    assert [fence for _, fence in rows(engine, *fences.c)] == [2]


def test_a_commit_tried_again_by_the_same_run_is_a_repeat(engine: sa.Engine) -> None:
    """The same fence is not stale, but its work is not booked again: the reply to its commit may have been lost."""
    lease = lease_of(5, "event")
    with Session(engine) as session, session.begin():
        claim(session, lease)
    with pytest.raises(AlreadyDone), Session(engine) as session, session.begin():
        claim(session, lease)
    with Session(engine) as session, session.begin():
        claim(session, lease, "a second step")
        session.add(Booking(resource="order:1", work="step", fence=5))
    assert len(rows(engine, *done.c)) == 2


def test_a_rolled_back_claim_leaves_nothing(engine: sa.Engine) -> None:
    """A body that fails after its claim may be tried again: its work is not done."""
    with Session(engine) as session:
        claim(session, lease_of(1, "event"))
        session.add(Booking(resource="order:1", work="event", fence=1))
        session.flush()
        session.rollback()
    assert rows(engine, *fences.c) == rows(engine, *done.c) == []
    with Session(engine) as session, session.begin():
        claim(session, lease_of(2, "event"))
    assert len(rows(engine, *done.c)) == 1


def test_without_a_record_only_the_fence_is_checked(engine: sa.Engine) -> None:
    """Records off, or the key False: the fence is raised, and no work is stored."""
    for fence in (1, 2):
        with Session(engine) as session, session.begin():
            claim(session, lease_of(fence))
    for fence in (3, 4):
        with Session(engine) as session, session.begin():
            claim(session, lease_of(fence, "event"), False)
    assert [fence for _, fence in rows(engine, *fences.c)] == [4]
    assert rows(engine, *done.c) == []


def test_a_key_of_ones_own_belongs_to_the_resource(engine: sa.Engine) -> None:
    """One idempotency key names two pieces of work on two resources, and is stored as two hashes."""
    for key in ("order:1", "order:2"):
        with Session(engine) as session, session.begin():
            claim(session, lease_of(1, key=key), "s3cret")
    with pytest.raises(AlreadyDone), Session(engine) as session, session.begin():
        claim(session, lease_of(2, key="order:2"), "s3cret")
    ids = [work for (work,) in rows(engine, done.c.id)]
    assert len(set(ids)) == 2
    assert "s3cret" not in "".join(ids)


@pytest.mark.parametrize("key", ["", 7, b"x", True])
def test_a_bad_idempotency_key_is_refused(engine: sa.Engine, key: Any) -> None:
    """Anything but a string with something in it, False or None names the argument, and touches no table."""
    with pytest.raises(LockKeyError, match="idempotency_key"), Session(engine) as session, session.begin():
        claim(session, lease_of(1), key)
    assert rows(engine, *fences.c) == []


def test_no_lease_or_a_lost_one_writes_nothing(engine: sa.Engine) -> None:
    """Without a lock there is NoFence, without a fence too; a lost or a released lease is LeaseLost."""
    lost, ended = lease_of(3), lease_of(4)
    lost.lose("a test")
    ended.end()
    for lease, error in ((None, NoFence), (lease_of(0), NoFence), (lost, LeaseLost), (ended, LeaseLost)):
        with pytest.raises(error), Session(engine) as session, session.begin():
            claim(session, lease)
    assert rows(engine, *fences.c) == []


def test_claims_of_one_transaction(engine: sa.Engine) -> None:
    """A claim made twice counts once, even behind other statements, and a second resource can be claimed as well."""
    one, two = lease_of(1, "event"), lease_of(2, "event", key="order:2")
    with Session(engine) as session, session.begin():
        claim(session, one)
        claim(session, two)
        session.add(Booking(resource="order:1", work="event", fence=1))
        claim(session, one)
        session.flush()
        claim(session.connection(), two)
    assert len(rows(engine, *fences.c)) == len(rows(engine, *done.c)) == 2


# --- the session it is given -----------------------------------------------------------------------------------------


def test_a_connection_or_a_scoped_session_will_do(engine: sa.Engine) -> None:
    """A Connection, begun or not, and a scoped_session claim like a Session."""
    with engine.begin() as connection:
        claim(connection, lease_of(1, "a"))
    with engine.connect() as connection:
        claim(connection, lease_of(2, "b"))
        connection.commit()
    registry = scoped_session(sessionmaker(engine))
    claim(registry, lease_of(3, "c"))
    registry.commit()
    registry.remove()
    assert [fence for (fence,) in rows(engine, done.c.fence)] == [1, 2, 3]


def test_an_asynchronous_session_is_told_how_to_call() -> None:
    """claim() cannot await: the error shows the call that works."""
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import AsyncSession

    with pytest.raises(TypeError, match=r"await session\.run_sync\(lambda s: claim\(s\)\)"):
        claim(AsyncSession(), lease_of(1))  # type: ignore[arg-type]


def test_what_is_not_a_session_is_named() -> None:
    """Anything else is an error that says what is wanted."""
    with pytest.raises(TypeError, match="not Engine"):
        claim(sa.create_engine("sqlite://"), lease_of(1))  # type: ignore[arg-type]


def test_a_transaction_that_has_begun_its_work_is_refused(engine: sa.Engine) -> None:
    """What was read before the fence may be out of date: the session's earlier statement is an error."""
    with Session(engine) as session:
        session.scalars(sa.select(Booking)).all()
        with pytest.raises(InvalidRequestError, match="first statement"):
            claim(session, lease_of(1))
        claim(session.connection(), lease_of(1))  # the way for a connection that was only configured
        session.rollback()
        claim(session, lease_of(1))


def test_pending_changes_are_refused_and_not_flushed(engine: sa.Engine) -> None:
    """An object added before the claim would be written in spite of AlreadyDone: it is an error instead."""
    with Session(engine) as session, session.begin():
        session.add(Booking(resource="order:1", work="event", fence=1))
        with pytest.raises(InvalidRequestError, match="pending changes"):
            claim(session, lease_of(1))
        assert len(session.new) == 1
        session.expunge_all()
    assert rows(engine, Booking.seq) == rows(engine, *fences.c) == []


def test_a_savepoint_and_autocommit_are_refused(engine: sa.Engine) -> None:
    """A claim that a savepoint could undo, or that holds no lock after its statement, is an error."""
    with Session(engine) as session, session.begin_nested(), pytest.raises(InvalidRequestError, match="savepoint"):
        claim(session, lease_of(1))
    for loose in (
        engine.execution_options(isolation_level="AUTOCOMMIT"),
        sa.create_engine(engine.url, poolclass=NullPool, isolation_level="AUTOCOMMIT"),
    ):
        with Session(loose) as session, pytest.raises(InvalidRequestError, match="autocommit"):
            claim(session, lease_of(1, "event"))
    assert rows(engine, *done.c) == []


def test_what_was_loaded_before_is_read_again(engine: sa.Engine) -> None:
    """An object kept from an earlier transaction shows what the run before this one committed."""
    with Session(engine, expire_on_commit=False) as session:
        session.add(Account(resource="order:1", total=1))
        session.commit()
        kept = session.get(Account, "order:1")
        session.commit()
        with Session(engine) as other, other.begin():
            claim(other, lease_of(1, "a"))
            other.execute(sa.update(Account).values(total=2))
        claim(session, lease_of(2, "b"))
        assert kept is not None
        assert kept.total == 2


def test_a_session_in_a_callers_transaction_claims_for_it(engine: sa.Engine) -> None:
    """The test-suite recipe, a session joined to an outer transaction by savepoints, works and rolls back."""
    with engine.connect() as connection:
        outer = connection.begin()
        connection.execute(sa.select(Booking.seq))
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            claim(session, lease_of(1, "event"))
            session.rollback()
            claim(session, lease_of(2, "event"))
            session.commit()
        outer.rollback()
    assert rows(engine, *fences.c) == []


def test_a_session_that_routes_by_statement_claims_on_the_writer(engine: sa.Engine) -> None:
    """Where reads go to a replica, the claim goes where the writes go, and what is written is in its transaction."""
    replica = sa.create_engine("sqlite://")

    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> sa.Engine:
            return engine if self._flushing or isinstance(clause, (sa.Update, sa.Delete)) else replica

    with Routing() as session, session.begin():
        claim(session, lease_of(1, "event"))
        session.add(Booking(resource="order:1", work="event", fence=1))
    replica.dispose()
    assert len(rows(engine, *done.c)) == len(rows(engine, Booking.seq)) == 1


def test_work_is_forgotten_by_age(engine: sa.Engine) -> None:
    """Rows older than asked go, by the database's own clock; the fences stay."""
    with Session(engine) as session, session.begin():
        claim(session, lease_of(1, "event"))
    with Session(engine) as session, session.begin():
        assert forget(session, 3600) == 0
        session.execute(sa.update(done).values(created=sa.text("'2020-01-01 00:00:00'")))
        assert forget(session, 3600) == 1
        with pytest.raises(ValueError, match="negative"):
            forget(session, -1)
    assert rows(engine, *done.c) == []
    assert len(rows(engine, *fences.c)) == 1


def test_the_errors_survive_pickling_and_show_no_values() -> None:
    """Each error is a SingletonLockError, rebuilt equal from its args, and names the lock by its key id."""
    with_when = AlreadyDone("0123456789abcdef", 1, datetime(2030, 1, 2, tzinfo=timezone.utc))
    for error in (StaleFence("0123456789abcdef", 1, 2), NoFence("0123456789abcdef"), NoFence(), with_when):
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(error, SingletonLockError)
        assert type(again) is type(error)
        assert (again.args, str(again), vars(again)) == (error.args, str(error), vars(error))
        assert error.args == (None,) or "0123456789abcdef" in str(error)


# --- at the same time ------------------------------------------------------------------------------------------------


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


# --- the program -----------------------------------------------------------------------------------------------------

PROGRAM = [sys.executable, "-m", "tests.integration.test_sqlalchemy_claim"]
RESOURCES, MESSAGES = 3, 15


def run(url: str, message: int, fence: int, moment: str = "", pause: float = 0.0) -> str:
    """One run of a message: claim, read, stand still, write; killed before or after the commit if asked."""
    key = f"order:{message % RESOURCES}"
    with Session(engine_for(url)) as session:
        try:
            claim(session, lease_of(fence, f"event-{message}", key))
            total = session.scalar(sa.select(Account.total).where(Account.resource == key)) or 0
            time.sleep(pause)
            session.add(Booking(resource=key, work=f"event-{message}", fence=fence))
            session.execute(sa.update(Account).where(Account.resource == key).values(total=total + 1))
            if moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            session.commit()
        except SingletonLockError as error:
            return type(error).__name__
        except OperationalError:  # a serialization failure
            return "again"
    if moment == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return "booked"


def deliver(url: str, counter: str, seed: str) -> None:
    """A worker: every message, each run in a child process of its own, again until one has answered it."""
    dice, ends = random.Random(int(seed)), Counter[str]()
    outcomes = ["booked", "AlreadyDone", "StaleFence", "again"]
    for message in dice.sample(range(MESSAGES), MESSAGES):
        end = ""
        while end not in ("booked", "AlreadyDone"):
            fence, moment = next_fence(counter), dice.choice(["", "", "before", "after"])
            late, pause = dice.random() * 0.02, dice.random() * 0.005
            if dice.random() < 0.2:  # a run that slept through others' leases
                fence = (fence + 1) // 2
            child = os.fork()
            if not child:
                code = -1
                try:
                    time.sleep(late)
                    code = outcomes.index(run(url, message, fence, moment, pause))
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            end = "killed" if code == -signal.SIGKILL else outcomes[code]
            ends[end] += 1
    print(json.dumps(ends))


def next_fence(counter: str) -> int:
    """The next of the fences that all workers count in one file."""
    import fcntl

    with open(counter, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fence = int(file.read()) + 1
        file.seek(0)
        file.write(str(fence))
        file.flush()
        return fence


if __name__ == "__main__":
    if sys.argv[1] == "deliver":
        deliver(*sys.argv[2:])
    else:
        run(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
