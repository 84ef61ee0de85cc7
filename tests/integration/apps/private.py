"""An app whose tasks are its own."""

from __future__ import annotations

from typing import Any

from celery import Celery


class Private(Celery):  # type: ignore[misc]
    """Celery gives an app's tasks to every other app of the process, also to the next test's copy of this one."""

    def task(self, *args: Any, **options: Any) -> Any:
        """See Celery."""
        return super().task(*args, **{"shared": False, **options})
