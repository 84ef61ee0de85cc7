"""What a worker process adds before it takes its first message: checks, and what its pool makes possible."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery, Task, bootsteps
from kombu.utils.imports import symbol_by_name

from ..errors import LockConfigError
from ..tasks import abort
from ..tasks.locked_task import is_locked
from ..tasks.options import LOCK_ATTRIBUTES
from ..tasks.settings import settings_of
from . import checks
from .request import LockedRequest, PreforkRequest

logger = logging.getLogger(__name__)


class StartupChecks(bootsteps.Step):  # type: ignore[misc]  # Celery has no types
    """Refuses to start a worker whose locks could not work, and says once what it starts without."""

    name = "SingletonLockChecks"

    def create(self, parent: Any) -> None:
        """Check every locked task of the worker's app. Raises `LockConfigError`."""
        locked = [(task, type(task).singleton_lock_task()) for task in locked_tasks(parent.app)]
        _check_forgotten(parent.app)
        off = sorted(each.name for _, each in locked if not each.options.enabled)
        if off:
            logger.warning(
                "single-instance locks are switched OFF (enabled=False) for %s: their runs may overlap, and their "
                "fences come from the local clock",
                ", ".join(off),
            )
        if len(off) == len(locked):
            return
        pool = parent.pool_cls.__module__.rpartition(".")[2]
        if not settings_of(parent.app).store.shared and pool == "prefork":
            raise LockConfigError(
                "singleton_lock_url: memory:// is not shared between prefork's processes, so nothing would be locked; "
                'set it to a server, for example "redis://localhost:6379/0", or start the worker with --pool=solo'
            )
        for task, _ in locked:
            _extend_request(type(task), pool)
        limits = checks.Limits(getattr(parent, "time_limit", None), getattr(parent, "soft_time_limit", None))
        checks.check(settings_of(parent.app), locked, limits)
        if pool in ("prefork", "solo"):
            abort.enable()
        else:
            warned = sorted(each.name for _, each in locked if each.options.on_lost == "abort")
            if warned:
                logger.warning(
                    'on_lost="abort" acts as "warn" in the %s pool, which cannot end a body, for %s',
                    pool,
                    ", ".join(warned),
                )


def _extend_request(task: type[Task], pool: str) -> None:
    ours = PreforkRequest if pool == "prefork" else LockedRequest
    own = symbol_by_name(task.Request)
    if not issubclass(own, ours):
        task.Request = type("Request", (ours, own), {})


def _check_forgotten(app: Celery) -> None:
    for task in app.tasks.values():
        asked = sorted(LOCK_ATTRIBUTES & vars(type(task)).keys())
        if asked and not hasattr(type(task), "singleton_lock_task"):
            raise LockConfigError(
                f"task {task.name} has {', '.join(asked)} and no lock: "
                "give it base=SingleInstanceTask, or @single_instance"
            )


def locked_tasks(app: Celery) -> list[Task]:
    """Every task of ``app`` that asks for a lock."""
    return [task for task in app.tasks.values() if is_locked(type(task))]
