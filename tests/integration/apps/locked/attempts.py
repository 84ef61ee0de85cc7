"""Tasks with several attempts, and what they know of their own message."""

from __future__ import annotations

import json
import time
from typing import Any

from celery import Task

from celery_singleton_lock import single_instance

from ..kit import LATE, QUICK, begin, notes, say, wait_for_go
from .base import Told, app


@app.task(bind=True, max_retries=3)
@single_instance(key="res:{resource}", on_conflict="skip", **QUICK)
def retries_itself(self: Task, resource: str) -> str:
    """Its own retry is in the queue half a second before its lock is free."""
    if self.request.retries == 0:
        try:
            raise self.retry(countdown=0)
        finally:
            time.sleep(0.5)
    notes.rpush("marker", resource)
    return "second attempt"


class Lingers(Task):  # type: ignore[misc]
    """Ends half a second after autoretry has published the retry."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        finally:
            if self.request.retries == 0:
                time.sleep(0.5)


@app.task(
    bind=True,
    base=Lingers,
    autoretry_for=(ValueError,),
    retry_backoff=False,
    default_retry_delay=0,
    max_retries=3,
)
@single_instance(key="res:{resource}", on_conflict="skip", **QUICK)
def retried_by_celery(self: Task, resource: str) -> str:
    """The same by autoretry_for."""
    if self.request.retries == 0:
        raise ValueError("the first attempt fails")
    notes.rpush("marker", resource)
    return "second attempt"


@app.task(bind=True)
@single_instance(key="res:{resource}", ttl=3, **QUICK)
def retried_later(self: Task, resource: str, countdown: float = 30) -> str:
    """Retries after a while."""
    begin(self, resource)
    if self.request.retries == 0:
        raise self.retry(countdown=countdown)
    return "second attempt"


def _flaky(name: str, *, max_retries: int | None, **options: Any) -> Any:
    @app.task(
        bind=True,
        base=Told,
        name=f"locked.{name}",
        autoretry_for=(ValueError,),
        default_retry_delay=0,
        max_retries=max_retries,
    )
    @single_instance(key="res:{resource}", retry_backoff=0.05, retry_backoff_max=0.1, **options)
    def flaky(self: Task, resource: str, failures: int) -> int:
        begin(self, resource)
        if self.request.retries < failures:
            raise ValueError("not yet")
        return int(self.request.retries)

    return flaky


flaky = _flaky("flaky", max_retries=1, retry_limit=10)
flaky_unlimited = _flaky("flaky_unlimited", max_retries=1, retry_limit=None)
flaky_endless = _flaky("flaky_endless", max_retries=None, retry_limit=None)


@app.task(bind=True, **LATE)
@single_instance(key="res:{resource}", on_conflict="skip", **QUICK)
def late_retry(self: Task, resource: str) -> str:
    """Its first attempt ends by sending a second one."""
    begin(self, resource)
    wait_for_go(resource)
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)
    return "second attempt"


@app.task(bind=True, **LATE)
@single_instance(key="res:{resource}", **QUICK)
def late_any(self: Task, resource: str, value: Any) -> str:
    """Acknowledged late, with an argument of any kind."""
    begin(self, resource)
    return type(value).__name__


@app.task(bind=True)
@single_instance(key="res:{resource}", **QUICK)
def dump(self: Task, resource: str, secret: str = "") -> str:
    """Says everything that it knows of its own message."""
    fields = {name: value for name, value in vars(self.request).items() if not name.startswith("_")}
    say(f"request:{resource}", **json.loads(json.dumps(fields, default=repr)))
    return resource


@app.task
def sends_dump(resource: str) -> str:
    """No lock: sends a locked task."""
    child: str = dump.delay(resource).id
    return child
