"""Tasks that look at their own lease, or at what their process does for it."""

from __future__ import annotations

import threading
import time
from typing import Any

from celery import Task

from celery_singleton_lock import SingleInstanceTask, current_lease, single_instance

from ..kit import QUICK, begin, notes, say, wait_for_go
from .base import Told, app


def _watcher(name: str, ttl: float) -> Any:
    @app.task(bind=True, base=Told, name=f"locked.{name}")
    @single_instance(key="res:{resource}", ttl=ttl, on_conflict="skip", idempotency_key="{event}")
    def watch(self: Task, resource: str, event: str, seconds: float = 60.0) -> dict[str, Any]:
        begin(self, resource)
        lease = current_lease()
        assert lease is not None
        end = time.monotonic() + seconds
        lost_at = None
        while lost_at is None and time.monotonic() < end and not notes.exists(f"stop:{resource}"):
            if lease.lost:
                lost_at = time.time()
                say(f"lost:{resource}", at=lost_at, remaining=lease.remaining())
            time.sleep(0.01)
        if lost_at is not None:
            wait_for_go(resource)
        return {"lost_at": lost_at, "reason": lease.reason, "run": self.request.id}

    return watch


#: They look at their own lease all the time.
watch = _watcher("watch", 3)
watch_slowly = _watcher("watch_slowly", 6)
watch_long = _watcher("watch_long", 1.5)
watch_brief = _watcher("watch_brief", 0.4)


@app.task(bind=True)
@single_instance(key="res:{resource}")
def own_lease(self: Task, resource: str) -> list[Any]:
    """Its lease at the beginning and, after others have begun beside it, at the end."""
    first = current_lease()
    begin(self, resource)
    wait_for_go(resource)
    last = current_lease()
    assert first is not None
    assert last is not None
    return [first.key, first.token, last.key, last.token, last.lost]


@app.task
def renewal_threads() -> int:
    """No lock: how many threads renew leases in this process."""
    return sum(thread.name == "singleton-lock-renewal" for thread in threading.enumerate())


@app.task(bind=True)
@single_instance(key="res:{resource}", ttl=4, at_least=3, **QUICK)
def rests(self: Task, resource: str, attempts: int = 1) -> int:
    """Its resource rests after it, but not for its own next attempt."""
    begin(self, resource)
    if self.request.retries + 1 < attempts:
        raise self.retry(countdown=0)
    return int(self.request.retries)


class Daily(SingleInstanceTask):
    """Options as attributes."""

    abstract = True
    lock_on_conflict = "skip"


@app.task(bind=True, base=Daily, name="locked.tick", lock_key="tick:{name}", lock_at_least=0.7)
def tick(self: Task, name: str) -> str:
    """What beat sends: once a slot, however many beats there are."""
    lease = current_lease()
    assert lease is not None
    say(f"ticks:{name}", task_id=self.request.id, fence=lease.fence)
    return "ticked"
