"""The app, and what its tasks note besides what all do."""

from __future__ import annotations

import os
from typing import Any

from celery import Task
from celery.signals import before_task_publish, worker_init

from celery_singleton_lock import current_lease

from ..kit import make_app, notes, say

app = make_app("locked")
app.conf.task_track_started = True
app.conf.task_default_queue = os.environ.get("TEST_DEFAULT_QUEUE", "celery")
app.conf.accept_content = ["json", "pickle"]


def _say_published(headers: Any = None, **_: Any) -> None:
    notes.rpush("published", headers["id"])


@worker_init.connect(weak=False)
def _listen(**_: Any) -> None:
    before_task_publish.connect(_say_published, weak=False)


class Told(Task):  # type: ignore[misc]
    """Notes the hooks that Celery calls."""

    abstract = True

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        say(f"hooks:{task_id}", hook="on_retry", error=type(exc).__name__)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        say(f"hooks:{task_id}", hook="on_failure", error=type(exc).__name__)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        say(f"hooks:{task_id}", hook="on_success")


def lease_state() -> dict[str, Any]:
    """The lease of the running body, as it sees it."""
    lease = current_lease()
    if lease is None:
        return {"key": None}
    return {"key": lease.key, "token": lease.token, "fence": lease.fence, "held": lease.remaining() > 0}
