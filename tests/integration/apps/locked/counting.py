"""Tasks that come in numbers."""

from __future__ import annotations

import time

from celery_singleton_lock import single_instance

from ..kit import notes
from .base import app


def count(name: str) -> None:
    """Read, sleep, write: two at once lose a step."""
    value = int(notes.get(f"counter:{name}") or 0)
    time.sleep(0.001)
    notes.set(f"counter:{name}", value + 1)


@app.task
@single_instance(key="counter:{name}", on_conflict="wait", wait_timeout=120)
def count_waiting(name: str) -> None:
    """One step of a counter that nothing else guards."""
    count(name)


@app.task
@single_instance(key="counter:{name}", retry_backoff=0.05, retry_backoff_max=0.1)
def count_retrying(name: str) -> None:
    """The same with lock waits."""
    count(name)


@app.task
@single_instance(key="many:{number}", ttl=1)
def one_of_many(number: int) -> int:
    """A quick one."""
    return number
