"""What the apps share: their configuration, and how their tasks note what happens where a test can read it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Task
from celery.signals import worker_init

from celery_singleton_lock import current_lease, signals

from .private import Private

notes = redis.Redis.from_url(os.environ["TEST_NOTES_URL"], decode_responses=True, socket_timeout=60)

#: Lock waits that suit a test.
QUICK: dict[str, Any] = {"retry_backoff": 0.1, "retry_backoff_max": 0.2}
#: A message that comes again when its run was killed.
LATE: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True}


def make_app(name: str) -> Private:
    """An app of this name, with the settings that a test gives to it alone."""
    app = Private(name, config_source="tests.integration.apps.settings")
    app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")))
    return app


def say(where: str, **fields: Any) -> None:
    """Notes ``fields`` under ``where``."""
    notes.rpush(where, json.dumps(fields, default=repr))


def _say_signal(sender: Any, signal: Any, **fields: Any) -> None:
    say(f"signal:{signal.name}:{fields['task_id']}", task=sender.name, **fields)


@worker_init.connect(weak=False)
def _listen(**_: Any) -> None:
    for signal in signals.ALL:
        signal.connect(_say_signal, weak=False)


def begin(task: Task, name: str) -> int:
    """Notes that a body has begun; the number of the run."""
    lease = current_lease()
    # Counted first: a test that has read the note may kill the run, and look at the count.
    number = int(notes.incr(f"runs:{name}"))
    say(
        f"begun:{name}",
        task_id=task.request.id,
        parent_id=task.request.parent_id,
        retries=task.request.retries,
        pid=os.getpid(),
        at=time.time(),
        token=lease.token if lease else None,
        fence=lease.fence if lease else None,
    )
    return number


def wait_for_go(name: str) -> None:
    """Returns when the test says so, to this body alone."""
    if notes.blpop([f"go:{name}"], 30) is None:
        raise TimeoutError("the test did not say go")


def wait(name: str, seconds: float) -> None:
    """Returns after ``seconds``, or when the test says so, to every body that waits."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not notes.exists(f"go:{name}"):
        time.sleep(0.02)
