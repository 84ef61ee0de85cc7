"""Tasks that hold their resource until the test lets them go, one for each way to meet a conflict; and plain ones."""

from __future__ import annotations

import os
from typing import Any

from celery import Task

from celery_singleton_lock import single_instance

from ..kit import LATE, QUICK, begin, notes, say, wait_for_go
from .base import Told, app


def _holder(name: str, celery: dict[str, Any] | None = None, **options: Any) -> Any:
    @app.task(bind=True, base=Told, name=f"locked.{name}", **(celery or {}))
    @single_instance(key="res:{resource}", **{"ttl": 3, **QUICK, **options})
    def hold(self: Task, resource: str, value: Any = "held") -> Any:
        begin(self, resource)
        wait_for_go(resource)
        return value

    return hold


hold_retry = _holder("hold_retry")
hold_skip = _holder("hold_skip", on_conflict="skip")
hold_wait = _holder("hold_wait", on_conflict="wait", wait_timeout=15)
hold_raise = _holder("hold_raise", on_conflict="raise")
hold_briefly = _holder("hold_briefly", on_conflict="wait", wait_timeout=0.3)
hold_limited = _holder("hold_limited", retry_limit=2)
hold_until = _holder("hold_until", retry_timeout=0.5)
hold_late = _holder("hold_late", LATE, on_conflict="skip", ttl=1)
hold_short = _holder("hold_short", on_conflict="raise", ttl=1)
hold_longer = _holder("hold_longer", on_conflict="raise", ttl=4)
skip_with_zero = _holder("skip_with_zero", on_conflict="skip", skip_result=0)
open_run = _holder("open_run", on_unavailable="run")
open_raise = _holder("open_raise", on_unavailable="raise")


@app.task(bind=True)
@single_instance(key="res:{resource}", ttl=3, **QUICK)
def fails(self: Task, resource: str) -> None:
    """Raises when the test says so."""
    begin(self, resource)
    wait_for_go(resource)
    raise ValueError("the body's own")


@app.task(bind=True)
@single_instance(key="res:{resource}", ttl=3, **QUICK)
def reads_first(self: Task, resource: str) -> int:
    """Reads a value when it begins, and works with that until the test lets it end."""
    value = int(notes.get(f"value:{resource}") or 0)
    begin(self, resource)
    wait_for_go(resource)
    return value


@app.task(bind=True, **LATE)
@single_instance(key="res:{resource}", on_conflict="skip", ttl=3, **QUICK)
def hold_counted(self: Task, resource: str) -> str:
    """Says how many are inside, itself counted."""
    say(f"inside:{resource}", count=notes.incr(f"within:{resource}"), pid=os.getpid())
    begin(self, resource)
    wait_for_go(resource)
    notes.decr(f"within:{resource}")
    return "held"


@app.task(bind=True, base=Told)
@single_instance(key="res:{resource}", on_conflict="skip", **QUICK)
def sends_child(self: Task, resource: str) -> str:
    """Sends a task for its own resource while it holds that."""
    begin(self, resource)
    child: str = hold_skip.delay(resource, "child").id
    notes.set(f"child:{resource}", child)
    wait_for_go(resource)
    return child


@app.task
@single_instance(key=lambda order: f"res:{order['id']}", on_conflict="skip")
def from_order(order: Any) -> str:
    """A key that cannot be built from every argument."""
    return "ran"


@app.task(base=Told)
def echo(value: Any = None) -> Any:
    """No lock: says what it got."""
    return value


@app.task(base=Told)
def collect(values: list[Any]) -> list[Any]:
    """No lock: the body of a chord."""
    return values


@app.task
def noted(value: Any, where: str) -> None:
    """No lock: a link that says what it got."""
    say(where, value=value)


@app.task
def noted_error(request: Any, exc: Any, traceback: Any, where: str) -> None:
    """A link_error that sees the exception itself."""
    fields = {name: getattr(exc, name, None) for name in ("key_id", "holder", "waited", "remaining")}
    say(where, error=type(exc).__name__, **fields)
