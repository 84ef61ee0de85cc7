"""The session that claim() is given: which do, which are refused, and what it does to their transactions."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from celery_singleton_lock.contrib.sqlalchemy import claim, done, fences

from .tables import Account, Booking, lease_of, rows


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
