"""The user's own tables beside the helper's, a lease, and how to reach and read a database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import NullPool

from celery_singleton_lock.locks.clock import now
from celery_singleton_lock.locks.lease import Lease


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


def rows(engine: sa.Engine, *columns: Any) -> list[tuple[Any, ...]]:
    """What is committed, in order."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.select(*columns).order_by(*columns))]
