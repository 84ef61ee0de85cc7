"""Tasks with idempotency keys."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_singleton_lock import single_instance

from ..kit import QUICK, begin, notes, wait_for_go
from .base import Told, app


@app.task(bind=True, base=Told)
@single_instance(key="res:{resource}", idempotency_key="{event}", idempotency_max_bytes=5000, **QUICK)
def pay(self: Task, resource: str, event: str, what: str = "amount", amount: Any = 0) -> Any:
    """Once per event: returns ``amount``, or what ``what`` says."""
    begin(self, resource)
    if what == "fail" and notes.incr(f"failed:{resource}") == 1:
        raise ValueError("the first run fails")
    if what == "hold":
        wait_for_go(resource)
    if what == "object":
        return object()
    if what == "exception":
        return ValueError("returned, not raised")
    if what == "set":
        return {amount}
    if what == "bytes":
        return b"\xff\x00"
    if what == "big":
        return "x" * 5_000_000
    return amount


@app.task(bind=True, base=Told)
@single_instance(idempotency_key="{event}", on_conflict="skip", idempotency_ttl=1)
def pay_briefly(self: Task, resource: str, event: str) -> str:
    """Its record answers for a second."""
    begin(self, resource)
    return str(self.request.id)


@app.task(bind=True, base=Told)
@single_instance(key="res:{resource}", idempotency_key="{event}", **QUICK)
def ship(self: Task, resource: str, event: str) -> str:
    """Another task on the same resource, with the same event ids."""
    begin(self, resource)
    return "shipped"


@app.task(bind=True, base=Told)
@single_instance(key="res:{resource}", **QUICK)
def keyless(self: Task, resource: str, amount: int = 0) -> int:
    """Idempotency only where the call asks for it."""
    begin(self, resource)
    return amount
