"""The tasks of the soak: they book in a database, which records who was in on what, and when."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import sqlalchemy as sa
from celery import Celery, Task
from celery.exceptions import SoftTimeLimitExceeded

from celery_singleton_lock import current_lease, single_instance
from celery_singleton_lock.contrib.sqlalchemy import AlreadyDone, StaleFence, claim, metadata

app = Celery("soak", broker=os.environ["SOAK_BROKER"])
app.conf.update(
    singleton_lock_url=os.environ["SOAK_LOCKS"],
    broker_transport_options={"visibility_timeout": float(os.environ["SOAK_VISIBILITY"])},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=2,
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_acks_on_failure_or_timeout=False,
)
engine = sa.create_engine(os.environ["SOAK_DATABASE"], connect_args={"timeout": 60}, poolclass=sa.pool.NullPool)

#: What happened on a resource, in the order of the commits: a body went in under a fence, or booked and went out.
events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("resource", sa.Integer, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("what", sa.String(8), nullable=False),
    sa.Column("number", sa.Integer, nullable=False, index=True),
)


@sa.event.listens_for(engine, "connect")
def _pragmas(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing; only a power cut would


def kind_of(seed: int, number: int) -> str:
    """What the task of this number does at its first run."""
    return random.Random(f"{seed}:{number}").choices(
        ["plain", "retry", "soft", "hard", "slow"], weights=[80, 12, 2, 1, 5]
    )[0]


@app.task(bind=True, max_retries=None)
@single_instance(
    key="resource:{resource}",
    ttl=3,
    retry_backoff=0.05,
    retry_backoff_max=0.5,
    enabled=not os.environ.get("SOAK_CONTROL"),
)
def book(self: Task, number: int, resource: int, kind: str) -> str:
    """Goes in, works, books once and goes out."""
    lease = current_lease()
    assert lease is not None
    try:
        with engine.begin() as connection:
            claim(connection, idempotency_key=False)
            first = not connection.execute(sa.select(events.c.id).where(events.c.number == number).limit(1)).first()
            connection.execute(events.insert().values(resource=resource, fence=lease.fence, what="in", number=number))
        if first:
            work(kind)
            if kind == "retry":
                raise self.retry(countdown=0.1)
        with engine.begin() as connection:
            claim(connection)
            connection.execute(events.insert().values(resource=resource, fence=lease.fence, what="out", number=number))
    except SoftTimeLimitExceeded as error:
        raise self.retry(exc=error, countdown=0.1) from error
    except (AlreadyDone, StaleFence) as error:
        if isinstance(error, StaleFence):  # the newer run may be another message's: this one's work is still to be done
            raise self.retry(exc=error, countdown=0.1) from error
        return "done before"
    return "booked"


def work(kind: str) -> None:
    """As long as the kind asks for."""
    time.sleep({"soft": 30.0, "hard": 30.0, "slow": 0.3}.get(kind, 0.002))
