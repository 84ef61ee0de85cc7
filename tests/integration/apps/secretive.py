"""Tasks whose argument is a secret: it is in their key, and must be nowhere else."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_singleton_lock import single_instance

from .kit import QUICK, begin, notes, wait_for_go
from .locked.base import app

__all__ = ["app", "notes"]


def _held(name: str, **options: Any) -> Any:
    @app.task(bind=True, name=f"secretive.{name}")
    @single_instance(ttl=2, **options)
    def held(self: Task, secret: Any) -> str:
        begin(self, "secret")
        wait_for_go("secret")
        return "held"

    return held


held_default = _held("held_default", **QUICK)
skipped_default = _held("skipped_default", on_conflict="skip")
skipped_sequence = _held("skipped_sequence", on_conflict="skip", key=("secret",))
skipped_mapping = _held("skipped_mapping", on_conflict="skip")
raised_default = _held("raised_default", on_conflict="raise")
limited_default = _held("limited_default", retry_limit=1, **QUICK)
refused_default = _held("refused_default", on_unavailable="raise")
open_default = _held("open_default", on_unavailable="run")


@app.task(bind=True)
@single_instance(idempotency_key=("secret",))
def paid(self: Task, secret: str, amount: int) -> int:
    """Its idempotency key is a secret."""
    return amount


@app.task
@single_instance(key="order:{order[id]}")
def templated(order: Any) -> None:
    """Needs a field of its argument."""
