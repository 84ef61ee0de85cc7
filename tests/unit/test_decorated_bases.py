"""A decorated task class as a base of others: each of those has the lock, its checks, and the worker's part."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task
from kombu.utils.imports import symbol_by_name

from celery_singleton_lock import LockConfigError, current_lease, single_instance
from celery_singleton_lock.worker.startup import StartupChecks

from ..support.locks import own_lease

KEY = "order:{order_id}"


@pytest.fixture
def base() -> type[Task]:
    """``@single_instance`` on an abstract class."""

    @single_instance(key=KEY, ttl=5)
    class Base(Task):  # type: ignore[misc]  # Celery has no types
        abstract = True

    return Base


def test_its_options_are_checked(app: Celery, base: type[Task]) -> None:
    """A task of such a base is checked when it is bound, as any other (B25)."""

    def charge(order_id: int) -> None:
        """Its options come to nonsense."""

    with pytest.raises(LockConfigError, match="lock_ttl: give seconds"):
        app.task(base=base, lazy=False, lock_ttl="abc")(charge)
    with pytest.raises(LockConfigError, match="at_least: 10 s is longer than ttl"):
        app.task(base=base, lazy=False, name="other", lock_at_least=10)(charge)


def test_its_worker_makes_the_checks(app: Celery, base: type[Task]) -> None:
    """A worker of such tasks alone makes the start-up checks, too."""

    @app.task(base=base, lazy=False)
    def charge(order_id: int) -> None:
        """Alone."""

    assert symbol_by_name(*app.steps["worker"]) is StartupChecks


@pytest.mark.parametrize("handing_on", [True, False])
def test_a_call_of_its_own(app: Celery, base: type[Task], handing_on: bool) -> None:
    """A `__call__` that a subclass brings runs inside of the lock, not around it."""
    calls: list[bool] = []

    class Own(base):  # type: ignore[misc]  # Celery has no types
        name = "shop.own"

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(current_lease() is not None)
            return super().__call__(*args, **kwargs) if handing_on else self.run(*args, **kwargs)

        def run(self, order_id: int) -> str:
            return own_lease().key

    assert app.register_task(Own())(7) == "order:7"
    assert calls == [True]


def test_an_on_bound_of_its_own(app: Celery, base: type[Task]) -> None:
    """Celery's `on_bound` is an empty hook: a subclass whose own calls no super() has its lock and checks, too."""

    class Own(base):  # type: ignore[misc]  # Celery has no types
        name = "shop.own"

        @classmethod
        def on_bound(cls, app: Celery) -> None:
            """Something else."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.run(*args, **kwargs)

        def run(self, order_id: int) -> str:
            return own_lease().key

    assert app.register_task(Own())(7) == "order:7"
    assert symbol_by_name(*app.steps["worker"]) is StartupChecks


def test_an_init_subclass_of_its_own(app: Celery) -> None:
    """A decorated class may have an `__init_subclass__`: it is called, and its subclasses have the lock."""
    made: list[str] = []

    @single_instance(key=KEY)
    class Base(Task):  # type: ignore[misc]  # Celery has no types
        abstract = True

        def __init_subclass__(cls, **kwargs: Any) -> None:
            made.append(cls.__name__)

    @app.task(base=Base, lazy=False)
    def charge(order_id: int) -> str:
        return own_lease().key

    assert charge(7) == "order:7"
    assert made == ["charge"]
