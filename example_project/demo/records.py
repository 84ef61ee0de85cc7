"""What is written down about the shop: what was sent to it, and what its tasks did. In the shop's own database."""

from __future__ import annotations

from sqlalchemy import or_, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ..shop.models import Session

DONE, FOUND, KILLED = "done", "found booked", "killed"
"""Outcomes of a run; any other is the name of the exception that ended it."""

READY, FAILED = "worker ready", "failed"
"""Notes beside the names of the plugin's signals."""


class Base(DeclarativeBase):
    """Tables that the shop knows nothing of."""


class Sent(Base):
    """A message that was sent. Several may carry the same event."""

    __tablename__ = "sent"

    task_id: Mapped[str] = mapped_column(primary_key=True)
    task: Mapped[str]
    event_id: Mapped[str]
    order_id: Mapped[int]


class Run(Base):
    """A task's body at work. Times are seconds on the monotonic clock, which all processes of a machine share."""

    __tablename__ = "runs"

    id: Mapped[int] = mapped_column(primary_key=True)
    task_id: Mapped[str]
    task: Mapped[str]
    order_id: Mapped[int | None]
    event_id: Mapped[str | None] = mapped_column(index=True)
    pid: Mapped[int]
    started: Mapped[float]
    ended: Mapped[float | None]
    outcome: Mapped[str | None]


class Note(Base):
    """Something that happened to a message outside of a body: it waited, was skipped, was answered from its record."""

    __tablename__ = "notes"

    id: Mapped[int] = mapped_column(primary_key=True)
    task_id: Mapped[str | None] = mapped_column(index=True)
    task: Mapped[str]
    what: Mapped[str]


def unanswered() -> set[str]:
    """The ids of the messages that have neither been worked on to the end nor been answered otherwise."""
    worked = select(Run.task_id).where(Run.outcome.in_((DONE, FOUND)))
    told = select(Note.task_id).where(or_(Note.what == "lock_replayed", Note.what == FAILED))
    with Session() as session:
        return set(session.scalars(select(Sent.task_id).where(Sent.task_id.not_in(worked), Sent.task_id.not_in(told))))
