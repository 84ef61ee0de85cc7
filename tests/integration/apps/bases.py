"""Every base and every way to make a task that is alone on ``res:{key}``."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, Task, shared_task
from celery.contrib.abortable import AbortableTask
from celery.exceptions import Ignore, Reject, Retry

from celery_singleton_lock import SingleInstanceTask, current_lease, single_instance

from .kit import notes

OPTIONS: dict[str, Any] = {"key": "res:{key}", "retry_backoff": 0.1, "retry_backoff_max": 0.2}
LOCK: dict[str, Any] = {f"lock_{name}": value for name, value in OPTIONS.items()}


def body(task: Task, key: str) -> list[Any]:
    """What every task here does: it notes the lease it runs under, and retries itself once."""
    lease = current_lease()
    assert lease is not None
    notes.rpush(f"leases:{key}", json.dumps([lease.key, lease.token, task.request.id, task.request.retries]))
    if task.request.retries == 0:
        raise task.retry(countdown=0)
    return [lease.key, task.request.id]


@shared_task(bind=True, name="bases.shared_before_the_app")
@single_instance(**OPTIONS)
def shared_before_the_app(self: Task, key: str) -> Any:
    return body(self, key)


class Everywhere(Task):  # type: ignore[misc]
    """The app's own base class, with a __call__ of its own."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        notes.incr("everywhere")
        return super().__call__(*args, **kwargs)


app = Celery("bases", config_source="tests.integration.apps.settings", task_cls=Everywhere)
app.conf.task_annotations = {"bases.annotated": {"lock_ttl": 7}}


@app.task(bind=True, name="bases.annotated")
@single_instance(**OPTIONS)
def annotated(self: Task, key: str) -> Any:
    """Its ttl comes from task_annotations."""
    lease = current_lease()
    assert lease is not None
    assert lease.ttl == 7
    return body(self, key)


class Abortable(SingleInstanceTask, AbortableTask):  # type: ignore[misc]
    abstract = True


class AbortableLast(AbortableTask, SingleInstanceTask):  # type: ignore[misc]
    abstract = True


class Reports(Task):  # type: ignore[misc]
    """A user's base that wraps every call, and would report LockTaken as an error if it saw it."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:
            notes.rpush(f"reported:{args[0]}", json.dumps(type(error).__name__))
            raise


class Reporting(Reports, SingleInstanceTask):
    abstract = True


class ReportingLast(SingleInstanceTask, Reports):
    abstract = True


for base in (Abortable, AbortableLast, Reporting, ReportingLast):

    @app.task(bind=True, base=base, name=f"bases.{base.__name__}", **LOCK)
    def based(self: Task, key: str) -> Any:
        return body(self, key)


@app.task(bind=True, base=Abortable, name="bases.both", **LOCK)
@single_instance(**OPTIONS)
def both(self: Task, key: str) -> Any:
    """Decorator and base class together."""
    return body(self, key)


@app.task(bind=True, base=Reports, name="bases.own_call")
@single_instance(**OPTIONS)
def own_call(self: Task, key: str) -> Any:
    return body(self, key)


class Classy(SingleInstanceTask):
    """A class-based task."""

    name = "bases.Classy"
    lock_key = "res:{key}"
    lock_retry_backoff = 0.1
    lock_retry_backoff_max = 0.2

    def run(self, key: str) -> Any:
        return body(self, key)


app.register_task(Classy())


def tracked(task: Task) -> Task:
    """What an error tracker does to every task: it wraps run and __call__ on the task object, once it is made.

    What Celery itself raises to steer a task is no error to it."""
    for name in ("run", "__call__"):
        setattr(task, name, _reporting(getattr(task, name)))
    type(task).__call__ = _reporting(type(task).__call__)
    return task


def _reporting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (Ignore, Reject, Retry):
            raise
        except Exception as error:
            notes.rpush(f"tracked:{args[-1]}", json.dumps(type(error).__name__))
            raise

    return inner


@app.task(bind=True, name="bases.tracked_task")
@single_instance(**OPTIONS)
def tracked_task(self: Task, key: str) -> Any:
    return body(self, key)


app.finalize()
tracked(app.tasks["bases.tracked_task"])

#: Each of them, by name.
NAMES = sorted(name for name in app.tasks if name.startswith("bases."))


def _noise(name: str, **options: Any) -> Callable[[Callable[[Task, str], str]], Task]:
    """A task that would retry any error twice; its base reports them, and so does a tracker around it all."""

    def make(body: Callable[[Task, str], str]) -> Task:
        @app.task(
            bind=True,
            base=Reports,
            name=f"noise.{name}",
            autoretry_for=(Exception,),
            max_retries=2,
            default_retry_delay=0,
        )
        @single_instance(**{**OPTIONS, **options})
        def noisy(self: Task, key: str) -> str:
            notes.incr(f"runs:{key}")  # first: the test acts on the note
            notes.rpush(f"begun:{key}", json.dumps({"retries": self.request.retries}))
            return body(self, key)

        return tracked(app.tasks[f"noise.{name}"])

    return make


_WAYS: dict[str, dict[str, Any]] = {
    "raises": {"on_conflict": "raise"},
    "skips": {"on_conflict": "skip"},
    "waits": {},
    "gives_up": {"retry_limit": 3},
}
for name, options in _WAYS.items():

    @_noise(name, **options)
    def ran(self: Task, key: str) -> str:
        return "ran"


@_noise("aborted", ttl=0.6, on_lost="abort")
def aborted(self: Task, key: str) -> str:
    """Is ended by the loss of its lease."""
    time.sleep(60)
    return "slept"


@_noise("ensures", ttl=0.6)
def ensures(self: Task, key: str) -> str:
    """Raises LeaseLost itself."""
    lease = current_lease()
    assert lease is not None
    for _ in range(3000):
        time.sleep(0.02)
        lease.ensure_held()
    return "held"


@_noise("calls")
def calls(self: Task, key: str) -> str:
    """Calls another locked task, and lets its LockTaken out."""
    result: str = app.tasks["noise.waits"](f"{key}-inner")
    return result
