"""One key for equal values in every way that Celery has to call a task (B19)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain

from celery_singleton_lock import single_instance

from ..support.locks import own_lease
from .inline_worker import InlineWorker

CALLS: dict[str, Callable[[Any], Any]] = {
    "position": lambda task: task.delay(7),
    "name": lambda task: task.delay(order_id=7),
    "default given": lambda task: task.delay(7, "eu"),
    "default by name": lambda task: task.delay(7, region="eu"),
    "all by name": lambda task: task.apply_async(kwargs={"region": "eu", "order_id": 7}),
    "keyword-only default": lambda task: task.delay(7, note=None),
    "signature": lambda task: task.s(7).delay(),
    "immutable signature": lambda task: task.si(order_id=7).delay(),
    "partial": lambda task: task.s("eu").delay(7),
    "partial by name": lambda task: task.s(region="eu").apply_async((7,)),
    "clone": lambda task: task.s().clone((7,)).delay(),
    "tuple": lambda task: task.apply_async(args=(7,)),
    "list": lambda task: task.apply_async(args=[7]),
    "by task name": lambda task: task.app.send_task(task.name, [7]),
    "by task name and names": lambda task: task.app.send_task(task.name, kwargs={"order_id": 7}),
    "chain": lambda task: chain(task.app.tasks["seven"].s(), task.s()).delay(),
    "chain with a partial": lambda task: chain(task.app.tasks["seven"].s(), task.s("eu")).delay(),
    "link": lambda task: task.app.tasks["seven"].apply_async(link=task.s()),
}


@pytest.fixture
def charge(app: Celery) -> Any:
    """A bound task with every kind of argument, without a key: all of them are in it."""

    @app.task(name="seven", lazy=False)
    def seven() -> int:
        return 7

    @app.task(bind=True, name="charge", lazy=False)
    @single_instance
    def charge(self: Any, order_id: int, region: str = "eu", *, note: str | None = None, **extra: Any) -> str:
        return own_lease().key

    return charge


def key_of(call: Callable[[Any], Any], task: Any, worker: InlineWorker) -> str:
    """The key of the task's run, after those that go before it."""
    call(task)
    while worker.waiting():
        outcome = worker.run()
    key: str = outcome.result
    return key


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_same_key(charge: Any, worker: InlineWorker, call: Callable[[Any], Any]) -> None:
    """Whatever the way, the same bound values give the same key (B19)."""
    assert key_of(call, charge, worker) == key_of(CALLS["position"], charge, worker) == charge(7)


@pytest.mark.parametrize(
    "other",
    [
        lambda task: task.delay(8),
        lambda task: task.delay("7"),
        lambda task: task.delay(7, "us"),
        lambda task: task.delay(7, note=""),
        lambda task: task.delay(7, colour="red"),
    ],
)
def test_other_key(charge: Any, worker: InlineWorker, other: Callable[[Any], Any]) -> None:
    """Other values, also of another type or in `**extra`, give another key (B19)."""
    assert key_of(other, charge, worker) != charge(7)


def test_explicit_name_names_the_key(charge: Any) -> None:
    """The key is the task's name and a digest: not the module it was imported by, and no value (B24)."""
    name, _, digest = charge(7).partition(":")
    assert (name, len(digest)) == ("charge", 64)
