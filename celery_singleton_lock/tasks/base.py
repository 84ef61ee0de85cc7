"""The task class, and how a lock gets into any task class."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, Task

from .locked_task import LockedTask, decorator_options, forget_locked_task, is_locked, locked_task_of
from .options import ATTRIBUTE_PREFIX, NAMES, RESERVES_PREFIX, attribute_options
from .run import run_alone
from .settings import LockSettings

#: The boot step of a worker, by name: a process that only sends tasks does not need it.
_STARTUP_CHECKS = "celery_singleton_lock.worker.startup:StartupChecks"
#: Names of options that Celery has an option of its own for, or that mean too many things.
_COMMON = {"retry_backoff", "retry_backoff_max", "retry_jitter", "enabled"}


def install(cls: type[Task], decorator: Mapping[str, Any] | None = None) -> None:
    """Make the lock the outermost part of ``cls``'s own ``__call__``, which is what Celery's tracer runs.

    It is outside autoretry's ``run``, so that a conflict is no failure. Called twice (base class and decorator), it
    locks once and adds the options.
    """
    if decorator is not None:
        cls._singleton_lock_decorator = {**decorator_options(cls), **decorator}
    if hasattr(vars(cls).get("__call__"), "singleton_lock_inner"):
        return
    inner = _unlocked_call(cls)

    def __call__(self: Task, *args: Any, **kwargs: Any) -> Any:
        body = functools.partial(inner, self) if inner is not None else super(cls, self).__call__
        return run_alone(self, args, kwargs, body) if is_locked(type(self)) else body(*args, **kwargs)

    def on_bound(klass: type[Task], app: Celery) -> None:
        own_on_bound(klass, app) if own_on_bound else super(cls, klass).on_bound(app)
        if klass is cls and is_locked(klass):
            LockedTask(
                klass, app, decorator_options(klass), LockSettings(app)
            )  # only to check: settings may still change
            forget_locked_task(klass)  # it may have been another app's
            app.steps["worker"].add(_STARTUP_CHECKS)

    def singleton_lock_task(klass: type[Task]) -> LockedTask:
        return locked_task_of(klass)

    own = vars(cls).get("on_bound")
    own_on_bound = own.__func__ if own is not None else None
    __call__.singleton_lock_inner = inner  # type: ignore[attr-defined]
    cls.__call__ = __call__
    cls.on_bound = classmethod(on_bound)
    cls.singleton_lock_task = classmethod(singleton_lock_task)
    if not issubclass(cls, SingleInstanceTask):  # whose subclasses are locked as they are made, too
        _lock_subclasses(cls)


def _lock_subclasses(cls: type[Task]) -> None:
    own = vars(cls).get("__init_subclass__")

    def __init_subclass__(klass: type[Task], /, **kwargs: Any) -> None:
        own.__func__(klass, **kwargs) if own is not None else super(cls, klass).__init_subclass__(**kwargs)
        install(klass)  # it may bring a __call__ or an on_bound of its own

    cls.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment]


def _unlocked_call(cls: type[Task]) -> Callable[..., Any] | None:
    """The ``__call__`` that ``cls`` would have without any lock; None where it is Celery's own."""
    for base in cls.__mro__:
        call = vars(base).get("__call__")
        call = getattr(call, "singleton_lock_inner", call)
        if call is not None:
            return None if base is Task else call
    return None


class SingleInstanceTask(Task):  # type: ignore[misc]  # Celery has no types
    """A task base class that runs alone on the resource it names.

    Options are class attributes or ``app.task`` arguments with ``lock_`` before the option's name: ``lock_key``,
    ``lock_ttl`` (seconds), ``lock_on_conflict`` and so on. Raises `LockConfigError` at class creation for a bad one,
    and warns of one without ``lock_``.
    """

    abstract = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        where = f"task class {cls.__name__}"
        attribute_options(vars(cls), where)
        for name in sorted(vars(cls).keys() & set(NAMES) - _COMMON):
            warnings.warn(f"{where}: {name} is not an option of the lock; set {ATTRIBUTE_PREFIX}{name}", stacklevel=2)
        install(cls)


setattr(SingleInstanceTask, RESERVES_PREFIX, True)
