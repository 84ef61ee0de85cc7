"""Tasks of every shape. Each returns the locks that the server keeps while it runs."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
from collections.abc import Callable
from typing import Any

import redis
from celery import Task, shared_task
from pydantic import BaseModel

from celery_singleton_lock import SingleInstanceTask, current_lease, single_instance

from .private import Private

app = Private("shapes", config_source="tests.integration.apps.settings")
app.conf.accept_content = ["json", "pickle"]
server = redis.Redis.from_url(os.environ["TEST_LOCK_URL"], decode_responses=True)

KEY = "res:{order_id}"


def held() -> list[str]:
    """The names of all locks, after the server; the test runs one task at a time."""
    assert current_lease() is not None
    return sorted(map(str, server.keys("singleton-lock:1:{??}:lock:*")))


@app.task
@single_instance(key=KEY)
def plain(order_id: int, region: str = "eu") -> list[str]:
    return held()


@app.task(bind=True)
@single_instance(key=KEY)
def bound(self: Task, order_id: int, region: str = "eu") -> list[str]:
    return held()


@app.task(autoretry_for=(Exception,), retry_backoff=True)
@single_instance(key=KEY)
def autoretried(order_id: int, region: str = "eu") -> list[str]:
    return held()


@app.task(bind=True, autoretry_for=(Exception,))
@single_instance(key=KEY)
def bound_autoretried(self: Task, order_id: int, region: str = "eu") -> list[str]:
    return held()


@app.task(typing=False)
@single_instance(key=KEY)
def untyped(order_id: int, region: str = "eu") -> list[str]:
    return held()


def logged(fun: Callable[..., Any]) -> Callable[..., Any]:
    """What an error tracker or a tracer puts around a function."""

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    return wrapper


@app.task
@logged
@single_instance(key=KEY)
def wrapped_above(order_id: int, region: str = "eu") -> list[str]:
    return held()


@app.task
@single_instance(key=KEY)
@logged
def wrapped_below(order_id: int, region: str = "eu") -> list[str]:
    return held()


@app.task(pydantic=True)
@single_instance(key=KEY)
def validated(order_id: int, region: str = "eu") -> list[str]:
    return held()


@shared_task
@single_instance(key=KEY)
def shared(order_id: int, region: str = "eu") -> list[str]:
    return held()


@app.task(base=SingleInstanceTask, lock_key=KEY)
def by_base(order_id: int, region: str = "eu") -> list[str]:
    return held()


class ByClass(SingleInstanceTask):
    name = "shapes.by_class"
    lock_key = KEY

    def run(self, order_id: int, region: str = "eu") -> list[str]:
        return held()


by_class = app.register_task(ByClass())


@single_instance(key=KEY)
class DecoratedClass(Task):  # type: ignore[misc]
    name = "shapes.decorated_class"

    def run(self, order_id: int, region: str = "eu") -> list[str]:
        return held()


decorated_class = app.register_task(DecoratedClass())

#: All of the above: (order_id, region="eu"), one key.
SHAPES = (
    *("plain", "bound", "autoretried", "bound_autoretried", "untyped", "wrapped_above", "wrapped_below"),
    *("validated", "shared", "by_base", "by_class", "decorated_class"),
)


@app.task
@single_instance
def whole(order_id: int, region: str = "eu") -> list[str]:
    """The default key: every argument."""
    return held()


@app.task(bind=True)
@single_instance
def whole_bound(self: Task, order_id: int, region: str = "eu") -> list[str]:
    """The default key leaves self out."""
    return held()


@app.task
@single_instance(key=("order_id", "region"))
def named(order_id: int, region: str = "eu") -> list[str]:
    """Chosen arguments."""
    return held()


@app.task
@single_instance
def extra(order_id: int, *, region: str = "eu", **rest: Any) -> list[str]:
    """Keyword-only and ** arguments."""
    return held()


@app.task
def echo(value: Any) -> Any:
    """No lock."""
    return value


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Order(BaseModel):
    id: int
    tags: list[str] = []


@app.task
@single_instance
def anything(value: Any) -> list[str]:
    """The default key of any value."""
    return held()


@app.task(pydantic=True)
@single_instance(key="res:{order.id}")
def modelled(order: Order) -> list[str]:
    """A model, which travels as JSON and is made again in the worker."""
    assert isinstance(order, Order)
    return held()


@app.task(pydantic=True)
@single_instance
def modelled_whole(order: Order) -> list[str]:
    """The same with the default key."""
    return held()
