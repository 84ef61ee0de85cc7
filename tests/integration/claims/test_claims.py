"""One claim after another, on real databases: what is in the tables afterwards."""

from __future__ import annotations

import pickle
from datetime import datetime, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from celery_singleton_lock.contrib.sqlalchemy import AlreadyDone, NoFence, StaleFence, claim, done, fences, forget
from celery_singleton_lock.errors import LeaseLost, LockKeyError, SingletonLockError
from celery_singleton_lock.locks.lease import lease_scope

from .tables import Booking, lease_of, rows


def test_a_claim_leaves_its_fence_and_its_work(engine: sa.Engine) -> None:
    """One row holds the resource's fence and one the work, both under hashes that begin with the key id."""
    lease = lease_of(7, "a-record", key="card:4111")
    with Session(engine) as session, session.begin(), lease_scope(lease):
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
