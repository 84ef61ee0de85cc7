"""Tasks that call locked tasks as functions."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_singleton_lock import single_instance

from ..kit import say, wait_for_go
from .base import app, lease_state
from .held import hold_briefly, hold_skip


@app.task(bind=True)
@single_instance(key="res:{resource}")
def inner(self: Task, resource: str) -> dict[str, Any]:
    """Says which lease it runs under, and what the server keeps."""
    return {**lease_state(), "id": self.request.id}


CALLED = {"inner": inner, "hold_skip": hold_skip, "hold_briefly": hold_briefly}


@app.task(bind=True)
@single_instance(key="res:{resource}")
def outer(self: Task, resource: str, other: str, task: str = "inner") -> list[Any]:
    """Calls a locked task as a function: what it sees before, during, after, and the error if there was one."""
    before = lease_state()
    try:
        during = CALLED[task](other)
    except Exception as error:
        during = {"error": type(error).__name__, "holder": getattr(error, "holder", None)}
    say(f"called:{resource}", during=during)
    wait_for_go(resource)
    return [before, during, lease_state()]


@app.task(bind=True)
@single_instance(key="res:{resource}")
def nested(self: Task, resource: str, depth: int = 0, other: str = "") -> list[Any]:
    """Calls itself as a function, with its own key or another one."""
    if depth == 0:
        return [lease_state()]
    return [lease_state(), *nested(other or resource, depth - 1), lease_state()]


@app.task
def unlocked_caller(resource: str, task: str = "inner", how: str = "call") -> Any:
    """No lock: calls a locked task as a function, eagerly, or its bare body."""
    called = CALLED[task]
    if how == "run":
        return called.run(resource)
    if how == "apply":
        return called.apply([resource]).get(disable_sync_subtasks=False)
    return called(resource)
