"""A locked task's message as its worker receives it."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request


class Received(Request):  # type: ignore[misc]  # Celery has no types
    """Keeps the message's content type, which Celery does not hand on to the task: a wait must send it again as it
    was serialised."""

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        if message.properties is not None:
            message.properties.setdefault("content_type", message.content_type)
        super().__init__(message, *args, **kwargs)
