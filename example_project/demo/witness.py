"""Seen from outside: the worker is started with ``--include`` of this module, which attaches itself to the shop.

Each run of a task's body is written down where it begins and where it ends, in a transaction of its own. So a body that
is killed leaves an open row, and two bodies at once are seen whatever the locks say. What happens outside of bodies is
told by Celery's and the plugin's signals.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from typing import Any

from celery import Task
from celery.signals import task_failure, worker_ready
from sqlalchemy import event

from celery_singleton_lock import signals

from ..shop import tasks
from ..shop.models import Payment, Session, Shipment
from .records import DONE, FAILED, FOUND, READY, Note, Run

_booked: list[str] = []
"""The events that the body at work has booked: a prefork process has one body at a time."""


def watch(task: Task) -> None:
    """Write down every run of this task's body. It is inside of the lock, which is the task's ``__call__``."""
    body = task.run
    signature = inspect.signature(body)

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        given = signature.bind(*args, **kwargs).arguments
        row = Run(task_id=task.request.id, task=task.name, pid=os.getpid(), started=started)
        row.order_id, row.event_id = given.get("order_id"), given.get("event_id")
        with Session.begin() as session:
            session.add(row)
        _booked.clear()
        try:
            result = body(*args, **kwargs)
            row.outcome = DONE if row.event_id is None or row.event_id in _booked else FOUND
            return result
        except BaseException as error:
            row.outcome = type(error).__name__
            raise
        finally:
            row.ended = time.monotonic()
            with Session.begin() as session:
                session.merge(row)

    task.run = run


@event.listens_for(Payment, "after_insert")
@event.listens_for(Shipment, "after_insert")
def _on_booking(_mapper: Any, _connection: Any, booking: Payment | Shipment) -> None:
    _booked.append(booking.event_id)


def _note(what: str, task: str = "", task_id: str | None = None) -> None:
    with Session.begin() as session:
        session.add(Note(what=what, task=task, task_id=task_id))


def _on_lock_signal(sender: Any, signal: Any, task_id: str | None = None, **_: Any) -> None:
    _note(signal.name, sender.name, task_id)


@task_failure.connect
def _on_failure(sender: Any, task_id: str, **_: Any) -> None:
    _note(FAILED, sender.name, task_id)


@worker_ready.connect
def _on_ready(**_: Any) -> None:
    _note(READY)


for _signal in (signals.lock_waiting, signals.lock_skipped, signals.lock_replayed, signals.lease_lost):
    _signal.connect(_on_lock_signal)
for _task in (tasks.charge, tasks.ship, tasks.daily_report):
    watch(_task)
