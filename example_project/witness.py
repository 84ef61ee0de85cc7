"""What the verdict reads: each body writes down when it began and ended, each in a transaction of its own.

So a body that is killed leaves an open row, and two bodies at once are seen whatever the locks say. What happens
outside of bodies is told by the plugin's signals.
"""

# mypy: disallow-untyped-decorators = False
from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import current_task
from celery.signals import task_failure, worker_ready
from sqlalchemy import or_, select

from celery_singleton_lock import signals

from .models import Note, Run, Sent, Session

DONE, FOUND, KILLED = "done", "found booked", "killed"
"""Outcomes of a run; any other is the name of the exception that ended it."""

READY, FAILED = "worker ready", "failed"
"""Notes beside the names of the plugin's signals."""


class Watch:
    """A body's view of its own row. ``outcome``: set by the body."""

    def __init__(self, row: Run) -> None:
        self.row = row
        self.outcome = DONE


@contextmanager
def watched(order_id: int | None = None, event_id: str | None = None) -> Iterator[Watch]:
    """Write down the start and the end of the block: the body of the running task."""
    started = time.monotonic()
    task = current_task
    row = Run(task_id=task.request.id, task=task.name, order_id=order_id, event_id=event_id)
    row.pid, row.started = os.getpid(), started
    with Session.begin() as session:
        session.add(row)
    watch = Watch(row)
    try:
        yield watch
    except BaseException as error:
        watch.outcome = type(error).__name__
        raise
    finally:
        row.outcome, row.ended = watch.outcome, time.monotonic()
        with Session.begin() as session:
            session.merge(row)


def note(what: str, task: str = "", task_id: str | None = None) -> None:
    """Write down one happening."""
    with Session.begin() as session:
        session.add(Note(what=what, task=task, task_id=task_id))


def _on_lock_signal(sender: Any, signal: Any, task_id: str | None = None, **_: Any) -> None:
    note(signal.name, sender.name, task_id)


for _signal in (signals.lock_waiting, signals.lock_skipped, signals.lock_replayed, signals.lease_lost):
    _signal.connect(_on_lock_signal)


@task_failure.connect
def _on_failure(sender: Any, task_id: str, **_: Any) -> None:
    note(FAILED, sender.name, task_id)


@worker_ready.connect
def _on_ready(**_: Any) -> None:
    note(READY)


def unanswered() -> set[str]:
    """The ids of the messages that have neither been worked on to the end nor been answered otherwise."""
    worked = select(Run.task_id).where(Run.outcome.in_((DONE, FOUND)))
    told = select(Note.task_id).where(or_(Note.what == "lock_replayed", Note.what == FAILED))
    with Session() as session:
        return set(session.scalars(select(Sent.task_id).where(Sent.task_id.not_in(worked), Sent.task_id.not_in(told))))
