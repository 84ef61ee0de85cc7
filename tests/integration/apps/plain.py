"""Tasks without a lock: they prove the test harness."""

import os
import time

from .private import Private

app = Private("plain", config_source="tests.integration.apps.settings")


@app.task
def pids() -> list[int]:
    """The pids of the process that runs the task and of its parent."""
    return [os.getpid(), os.getppid()]


@app.task(acks_late=True)
def slow(seconds: float) -> float:
    """Says in the worker's log that it has begun, then sleeps."""
    print("slow has begun", flush=True)
    time.sleep(seconds)
    return seconds
