"""The app, and how its tasks note what happens to them where the test can read it."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Task
from celery.signals import before_task_publish, worker_init

from celery_singleton_lock import current_lease, signals

from ..private import Private

app = Private("locked", config_source="tests.integration.apps.settings")
app.conf.task_track_started = True
app.conf.task_default_queue = os.environ.get("TEST_DEFAULT_QUEUE", "celery")
app.conf.accept_content = ["json", "pickle"]
notes = redis.Redis.from_url(os.environ["TEST_NOTES_URL"], decode_responses=True, socket_timeout=60)

#: Lock waits that suit a test.
QUICK: dict[str, Any] = {"retry_backoff": 0.1, "retry_backoff_max": 0.2}
#: A message that comes again when its run was killed.
LATE = {"acks_late": True, "reject_on_worker_lost": True}


def say(where: str, **fields: Any) -> None:
    """Notes ``fields`` under ``where``."""
    notes.rpush(where, json.dumps(fields))


def _say_signal(sender: Any, signal: Any, **fields: Any) -> None:
    say(f"signal:{signal.name}:{fields['task_id']}", task=sender.name, **fields)


def _say_published(headers: Any = None, **_: Any) -> None:
    notes.rpush("published", headers["id"])


@worker_init.connect(weak=False)
def _listen(**_: Any) -> None:
    for signal in signals.ALL:
        signal.connect(_say_signal, weak=False)
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


def begin(task: Task, resource: str) -> None:
    """Notes that a body has begun."""
    lease = current_lease()
    say(
        f"begun:{resource}",
        task_id=task.request.id,
        parent_id=task.request.parent_id,
        retries=task.request.retries,
        pid=os.getpid(),
        token=lease.token if lease else None,
        fence=lease.fence if lease else None,
    )
    notes.incr(f"runs:{resource}")


def wait_for_go(resource: str) -> None:
    """Returns when the test says so."""
    if notes.blpop([f"go:{resource}"], 30) is None:
        raise TimeoutError("the test did not say go")


def lease_state() -> dict[str, Any]:
    """The lease of the running body, as it sees it."""
    lease = current_lease()
    if lease is None:
        return {"key": None}
    return {"key": lease.key, "token": lease.token, "fence": lease.fence, "held": lease.remaining() > 0}
