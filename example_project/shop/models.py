"""The shop's tables. SQLite, in the file ``SHOP_DATABASE``.

Nothing here keeps an event from being booked twice but `claim`, called by the tasks: a unique constraint on
``event_id`` would hide the fault that this example looks for.
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import URL, ForeignKey, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

from celery_singleton_lock.contrib.sqlalchemy import metadata as lock_tables


class Base(DeclarativeBase):
    """The shop's own tables. The two of ``contrib.sqlalchemy`` come beside them."""


class Order(Base):
    """An order. Amounts are in cents."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    due: Mapped[int]
    paid: Mapped[int] = mapped_column(default=0)


class Payment(Base):
    """A booked payment."""

    __tablename__ = "payments"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    event_id: Mapped[str] = mapped_column(index=True)
    amount: Mapped[int]


class Shipment(Base):
    """A parcel on its way."""

    __tablename__ = "shipments"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    event_id: Mapped[str] = mapped_column(index=True)


class Report(Base):
    """A daily report."""

    __tablename__ = "reports"

    id: Mapped[int] = mapped_column(primary_key=True)
    payments: Mapped[int]
    total: Mapped[int]


engine = create_engine(
    URL.create("sqlite", database=os.environ["SHOP_DATABASE"]),
    poolclass=NullPool,  # no connection stays open, so a forked child has none of its parent's
    connect_args={"timeout": 30},  # seconds that a writer waits for the others
)
Session = sessionmaker(engine, expire_on_commit=False)


@event.listens_for(engine, "connect")
def _set_up(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")  # with WAL: no commit waits for the disk


def create_tables() -> None:
    """Set up an empty database."""
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    Base.metadata.create_all(engine)
    lock_tables.create_all(engine)
