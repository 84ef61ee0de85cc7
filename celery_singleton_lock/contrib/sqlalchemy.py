"""The fence and the once-only check inside the user's own SQLAlchemy transaction.

::

    @app.task(acks_late=True, reject_on_worker_lost=True)
    @single_instance(key="order:{order_id}", idempotency_key="{event_id}")
    def charge(order_id, event_id, amount):
        with Session.begin() as session:
            try:
                claim(session)
            except AlreadyDone:
                return
            session.add(Payment(order_id=order_id, amount=amount))

``metadata`` holds the two tables: ``metadata.create_all(engine)`` once, at deployment, or with Alembic
``target_metadata = [Base.metadata, celery_singleton_lock.contrib.sqlalchemy.metadata]``. They must be in the database
of the data they guard.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.orm import Session, scoped_session

from ..errors import LockKeyError, SingletonLockError
from ..keys.names import digest
from ..locks.lease import Lease, current_lease

__all__ = ["AlreadyDone", "NoFence", "StaleFence", "claim", "done", "fences", "forget", "metadata"]

metadata = sa.MetaData()

#: One row per resource: its newest fence. ``resource`` is the key's SHA-256 in hex and begins with its key id.
fences = sa.Table(
    "singleton_lock_fence",
    metadata,
    sa.Column("resource", sa.String(64), primary_key=True),
    sa.Column("fence", sa.BigInteger, nullable=False),
)

#: One row per piece of work that was committed, under the fence that did it. ``id`` is a hash, too.
done = sa.Table(
    "singleton_lock_done",
    metadata,
    sa.Column("resource", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("created", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now(), index=True),
)


@dataclass(eq=False, repr=False)
class StaleFence(SingletonLockError):
    """A newer run has claimed the resource: this one must write nothing.

    ``key_id``: 16 hex digits; ``fence``: this run's; ``newest``: the one that the database has.
    """

    key_id: str
    fence: int
    newest: int

    def __str__(self) -> str:
        return f"fence {self.fence} of lock {self.key_id} is stale: a run with fence {self.newest} came after it"


@dataclass(eq=False, repr=False)
class NoFence(SingletonLockError):
    """There is no fence to claim with: no lock is held here, or it was run without one (``on_unavailable="run"``).

    ``key_id``: 16 hex digits of the lease that has no fence, or None where there is no lease at all.
    """

    key_id: str | None = None

    def __str__(self) -> str:
        if self.key_id is None:
            return "no lock is held here, so there is no fence to claim with; call claim() inside the locked body"
        return f"the lease of lock {self.key_id} has no fence to claim with"


@dataclass(eq=False, repr=False)
class AlreadyDone(SingletonLockError):
    """The work was committed before: there is nothing left to do.

    ``key_id``: 16 hex digits; ``fence``: of the run that did it; ``when``: its transaction's time by the database's
    clock (naive where the database keeps no time zone: UTC on SQLite).
    """

    key_id: str
    fence: int
    when: datetime

    def __str__(self) -> str:
        return f"the work was done before under lock {self.key_id}, with fence {self.fence} at {self.when}"


#: What each open transaction has claimed: a second claim of the same is no repeat, and may follow other statements.
_claimed: WeakKeyDictionary[sa.Transaction, set[tuple[str, str | None, int]]] = WeakKeyDictionary()


def claim(
    session: Session | scoped_session[Any] | sa.Connection,
    lease: Lease | None = None,
    idempotency_key: str | Literal[False] | None = None,
) -> None:
    """Make this transaction the resource's only one, refuse it if it is stale, and book its work once.

    It must be the transaction's first statement, and every transaction that writes for the lock must begin with one.
    The resource's row stays locked until the transaction ends, so that claims of one resource follow each other in the
    order of their fences; one that stands still is waited for, as long as the database allows (PostgreSQL's
    ``idle_in_transaction_session_timeout``). What the session had loaded before is expired.

    ``lease``: by default the running body's. ``idempotency_key``: names the work within the resource, stored as a
    hash; by default the run's own record id, which is the task's name with its idempotency key or, without one,
    its message, the same for every attempt (a string of your own has no task's name in it). Where records are off there
    is none, and only the fence is checked; False checks the fence alone. A run of several transactions needs a name for
    each. An asynchronous session: ``await session.run_sync(lambda s: claim(s))``.

    Raises `AlreadyDone`: the transaction is in order, and may be committed (it holds nothing but the fence) or rolled
    back. Raises `StaleFence`, `NoFence` and `LeaseLost`: roll back. Raises SQLAlchemy's InvalidRequestError where the
    session has begun its work, has pending changes, or is in a savepoint or in autocommit mode. The database's own
    errors (deadlock, serialization failure, SQLite's "database is locked") pass through: try the task again.
    """
    lease = current_lease() if lease is None else lease
    if lease is None:
        raise NoFence()
    if not lease.fence:
        raise NoFence(lease.key_id)
    lease.ensure_held()
    resource, work = hashlib.sha256(lease.key.encode()).hexdigest(), _work_id(lease, idempotency_key)
    connection = _begin(session, (resource, work, lease.fence))
    if connection is None:
        return
    _refuse_autocommit(connection)
    _raise_fence(connection, resource, lease.fence)
    _refuse_autocommit(connection, written=True)
    # The row is locked from here on: whoever claimed it before has committed or is gone, and what is read is final.
    same_work = sa.and_(done.c.resource == fences.c.resource, done.c.id == work)
    newest, fence, when = connection.execute(
        sa.select(fences.c.fence, done.c.fence, done.c.created)
        .select_from(fences.outerjoin(done, same_work))
        .where(fences.c.resource == resource)
    ).one()
    if newest > lease.fence:
        raise StaleFence(lease.key_id, lease.fence, newest)
    if when is not None:
        raise AlreadyDone(lease.key_id, fence, when)
    if work is not None:
        connection.execute(sa.insert(done).values(resource=resource, id=work, fence=lease.fence))
    transaction = _transaction(connection)
    assert transaction is not None
    _claimed.setdefault(transaction, set()).add((resource, work, lease.fence))


def forget(session: Session | scoped_session[Any] | sa.Connection, older_than: float | timedelta) -> int:
    """Delete the rows of work done more than ``older_than`` (seconds or a timedelta) ago; the number of them.

    After that the same work would be done again: keep them for longer than anybody repeats a message. The fences stay,
    one row per resource.
    """
    age = older_than if isinstance(older_than, timedelta) else timedelta(seconds=older_than)
    if age < timedelta(0):
        raise ValueError("older_than must not be negative")
    now = session.execute(sa.select(sa.func.now())).scalar_one()  # the clock that wrote ``created``
    deleted: Any = session.execute(sa.delete(done).where(done.c.created < now - age))
    return int(deleted.rowcount)


def _work_id(lease: Lease, idempotency_key: str | Literal[False] | None) -> str | None:
    if idempotency_key is False:
        return None
    if idempotency_key is None:
        return None if lease.record_id is None else digest("record", lease.record_id)
    if not isinstance(idempotency_key, str) or not idempotency_key:
        raise LockKeyError("idempotency_key", "it must be a string that is not empty, False or None")
    return digest("key", lease.key, idempotency_key)


def _begin(
    session: Session | scoped_session[Any] | sa.Connection, this: tuple[str, str | None, int]
) -> sa.Connection | None:
    """The connection of a transaction that is fit to be claimed; None where it has claimed exactly this before."""
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(session, Session):
        connection, begun = _session_connection(session)
    elif isinstance(session, sa.Connection):
        connection, begun = session, False  # whether a bare connection has run statements, nothing tells
    elif hasattr(session, "run_sync") or "asyncio" in type(session).__module__:
        raise TypeError("claim() cannot await: call `await session.run_sync(lambda s: claim(s))`")
    else:
        raise TypeError(f"claim() takes a SQLAlchemy Session or Connection, not {type(session).__name__}")
    transaction = _transaction(connection)
    claimed = _claimed.get(transaction, set()) if transaction is not None else set()
    if this in claimed:
        return None
    if session.in_nested_transaction():
        raise InvalidRequestError("claim() must come before any savepoint: a rollback to it would lose the claim")
    if isinstance(session, Session):
        if session.new or session.dirty or session.deleted:
            raise InvalidRequestError("claim() must come before any change: the session has pending changes")
        if begun and not claimed:
            raise InvalidRequestError(
                "claim() must be the first statement of its transaction, and this session has used its connection; "
                "end that transaction first (or pass session.connection() if it was only configured)"
            )
        session.expire_all()  # a read after the claim must not be answered from before it
    return connection


def _session_connection(session: Session) -> tuple[sa.Connection, bool]:
    """The session's connection for the tables, and whether it was in use in this transaction already."""
    fresh = []

    def note(_session: Session, _transaction: Any, connection: sa.Connection) -> None:
        fresh.append(connection)

    event.listen(session, "after_begin", note)
    try:
        # An UPDATE, so that a session which routes reads and writes answers with the writer. Nothing is flushed.
        connection = session.connection(bind_arguments={"clause": sa.update(fences)})
    finally:
        event.remove(session, "after_begin", note)
    return connection, not fresh


def _transaction(connection: sa.Connection) -> sa.Transaction | None:
    return connection.get_nested_transaction() or connection.get_transaction()


def _raise_fence(connection: sa.Connection, resource: str, fence: int) -> None:
    """Lock the resource's row and raise its fence, in one statement.

    A write, so that SQLite's lock comes before any read, and a snapshot of REPEATABLE READ is not older than the lock.
    """
    dialect, row = connection.dialect.name, {"resource": resource, "fence": fence}
    if dialect == "postgresql":
        new = postgresql.insert(fences).values(row)
        connection.execute(new.on_conflict_do_update(index_elements=["resource"], set_=_higher(new.excluded.fence)))
    elif dialect == "sqlite":
        put = sqlite.insert(fences).values(row)
        connection.execute(put.on_conflict_do_update(index_elements=["resource"], set_=_higher(put.excluded.fence)))
    elif dialect in ("mysql", "mariadb"):
        # INSERT first: an UPDATE that finds no row would lock a gap, and two first claims beside each other deadlock.
        add = mysql.insert(fences).values(row)
        connection.execute(add.on_duplicate_key_update(_higher(add.inserted.fence)))
    else:
        again = sa.update(fences).where(fences.c.resource == resource).values(_higher(fence))
        if connection.execute(again).rowcount == 0:
            try:
                with connection.begin_nested():
                    connection.execute(sa.insert(fences).values(row))
            except IntegrityError:  # the first claim of another transaction, committed in between
                if connection.execute(again).rowcount == 0:
                    raise  # and after this one's snapshot: a serialization failure by another name


def _higher(fence: sa.ColumnElement[int] | int) -> dict[str, sa.ColumnElement[int]]:
    return {"fence": sa.case((fences.c.fence < fence, fence), else_=fences.c.fence)}


def _refuse_autocommit(connection: sa.Connection, written: bool = False) -> None:
    """Raise where each statement is committed by itself, so that no row stays locked."""
    driver: Any = connection.connection.dbapi_connection
    engines = getattr(connection.dialect, "_on_connect_isolation_level", None)  # create_engine(isolation_level=...)
    level = connection.get_execution_options().get("isolation_level", engines)
    committed = written and connection.dialect.name == "sqlite" and not getattr(driver, "in_transaction", True)
    if level == "AUTOCOMMIT" or getattr(driver, "autocommit", False) is True or committed:
        raise InvalidRequestError("claim() needs a transaction, and this connection is in autocommit mode")
