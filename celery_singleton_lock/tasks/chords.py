"""Whether a chord has counted one of its members: a message that comes again must not be counted twice."""

from __future__ import annotations

import logging
from typing import Any

from celery import Task

logger = logging.getLogger(__name__)

#: How long to wait, in seconds, for a finished member to report to its chord, which follows its record at once; a run
#: that has not reported by then has died.
REPORT_TIMEOUT = 10.0


def is_counted(task: Task, request: Any) -> bool:
    """Whether the chord of ``request`` has its task's result already.

    Known on Redis's result backend alone; for others, and where it cannot be asked, False.
    """
    group, index = request.group, request.group_index
    backend = task.backend
    ordered = getattr(backend, "_chord_zset", None)
    if not request.chord or not group or ordered is None:
        return False
    key = backend.get_key_for_group(group, ".j")
    try:
        if not ordered:
            members = backend.client.lrange(key, 0, -1)
        elif index is None:
            members = backend.client.zrange(key, 0, -1)
        else:
            members = backend.client.zrangebyscore(key, index, index)
        return any(backend.decode(member)[1] == request.id for member in members)
    except Exception as error:  # noqa: BLE001  # the count is Celery's affair; ours is the lock
        logger.warning("whether a chord has counted task %s cannot be told: %s", request.id, type(error).__name__)
        return False
