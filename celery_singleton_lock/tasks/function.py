"""What Celery has made of a task's function: its signature, and the models that its arguments are validated with."""

from __future__ import annotations

import inspect
from typing import Any

from celery import Task
from celery.app.base import pydantic_wrapper

from ..errors import LockConfigError
from ..keys.binding import models


def check_is_plain(fun: Any) -> None:
    """Refuse an async function, which Celery does not run. Raises `LockConfigError`."""
    if inspect.iscoroutinefunction(getattr(fun, "__func__", fun)):
        raise LockConfigError(
            f"{fun.__qualname__} is async, which Celery does not run: its lock would be freed before its body begins; "
            "make it a plain function"
        )


def signature_of(task: type[Task]) -> inspect.Signature:
    """The signature of a task's body without its ``self``: the original one, below whatever wraps it."""
    run = inspect.getattr_static(task, "run")
    if isinstance(run, (staticmethod, classmethod)):
        return inspect.signature(run.__func__)
    signature = inspect.signature(run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def validation_of(task: type[Task]) -> tuple[dict[str, type], dict[str, Any]] | None:
    """The models that Celery validates a ``pydantic=True`` task's arguments with, and how; None for other tasks.

    Celery keeps this in the closure of its wrapper around ``run``, and nowhere else in 5.6.
    """
    run: Any = inspect.getattr_static(task, "run")
    while run is not None:
        code = getattr(run, "__code__", None)
        if code is not None and code in pydantic_wrapper.__code__.co_consts:
            closure = {**inspect.getclosurevars(run).nonlocals}
            for inner in list(closure.values()):  # since 5.7 a function of its own validates
                if inspect.isfunction(inner) and inner.__code__ in pydantic_wrapper.__code__.co_consts:
                    closure.update(inspect.getclosurevars(inner).nonlocals)
            options = {"strict": closure.get("strict", False), "context": closure.get("context")}
            return models(closure["task_fun"]), options
        run = getattr(run, "__wrapped__", None) or getattr(run, "__func__", None)
    return None
