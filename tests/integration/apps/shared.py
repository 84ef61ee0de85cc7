"""Tasks of no app in particular, for workers that pytest-celery builds."""

import os

from celery import shared_task


@shared_task
def pids() -> list[int]:
    """The pids of the process that runs the task and of its parent."""
    return [os.getpid(), os.getppid()]
