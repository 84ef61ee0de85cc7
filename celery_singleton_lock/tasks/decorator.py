"""``@single_instance``: the lock as a decorator under ``@app.task``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, overload

from celery import Task
from celery.local import Proxy

from ..errors import LockConfigError
from ..keys.spec import compile_key
from .base import install
from .function import check_is_plain
from .options import check_options

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class _Carrier(str):
    """A function's docstring that brings the lock along.

    Celery makes a class of a decorated function with ``type()``, which calls ``__set_name__`` on the values of the
    class body; the function's ``__doc__`` is one of them, and a ``functools.wraps`` in between hands it on. It is the
    one place from which a plain function can give its task class a ``__call__`` of its own.
    """

    options: Mapping[str, Any]
    installed: bool

    def __set_name__(self, owner: type, name: str) -> None:
        if name == "__doc__" and isinstance(owner, type) and issubclass(owner, Task):
            install(owner, self.options)
            self.installed = True


@overload
def single_instance(fun: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def single_instance(**options: Any) -> Callable[[F], F]: ...
def single_instance(fun: Any = None, /, **options: Any) -> Any:
    """Run the task alone on the resource that its arguments name. Goes under ``@app.task`` or ``@shared_task``.

    Bare, or with options (see docs/options.md): ``key``, ``ttl`` (seconds), ``on_conflict`` and so on. Also for a task
    class. Raises `LockConfigError` for an unknown option, a bad value, or the wrong place.
    """
    checked = check_options(options)
    return _decorate(fun, checked) if fun is not None else functools.partial(_decorate, options=checked)


def _decorate(fun: Any, options: Mapping[str, Any]) -> Any:
    if issubclass(type(fun), Proxy) or isinstance(fun, Task):  # a lazy task must not be made by looking at it
        raise LockConfigError("@single_instance stands above @app.task; put it below, next to the function")
    if isinstance(getattr(fun, "__doc__", None), _Carrier):
        raise LockConfigError(f"@single_instance stands twice on {fun.__qualname__}; give all options to one")
    if isinstance(fun, type):
        if not issubclass(fun, Task):
            raise LockConfigError(f"@single_instance: {fun.__name__} is no task class; derive it from celery.Task")
        install(fun, options)
        return fun
    if not callable(fun):
        raise LockConfigError(f"@single_instance decorates a function, not {type(fun).__name__}; give options by name")
    check_is_plain(fun)
    signature = inspect.signature(fun)
    for name in ("key", "idempotency_key"):
        if options.get(name) is not None and options[name] is not False:
            compile_key(options[name], option=name).check(signature)

    @functools.wraps(fun)
    def locked(*args: Any, **kwargs: Any) -> Any:
        if not carrier.installed:
            raise LockConfigError(
                f"{fun.__qualname__} asks for a lock, but no task has it: put @single_instance next to the function, "
                "@app.task on top, and functools.wraps into every decorator between them"
            )
        return fun(*args, **kwargs)

    carrier = _Carrier(fun.__doc__ or "")
    carrier.options = options
    carrier.installed = False
    locked.__doc__ = carrier
    locked.__signature__ = signature  # type: ignore[attr-defined]  # Celery's argument check reads it
    return locked
