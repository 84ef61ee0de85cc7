"""Task classes of every make: the lock is in each exactly once, and none of them gets past it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, Task, chord
from celery.contrib.abortable import AbortableTask

from celery_singleton_lock import (
    Lock,
    LockConfigError,
    LockTaken,
    SingleInstanceTask,
    StoreUnavailable,
    current_lease,
    signals,
    single_instance,
)
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.tasks.settings import settings_of

from ..support.locks import own_lease
from .conftest import MakeApp
from .flaky_store import FlakyStore
from .inline_worker import InlineWorker

KEY = "order:{order_id}"


class Cooperative(Task):  # type: ignore[misc]  # Celery has no types
    """A user's base class whose `__call__` hands on."""

    abstract = True
    calls: list[bool]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(current_lease() is not None)
        return super().__call__(*args, **kwargs)


class Stubborn(Task):  # type: ignore[misc]  # Celery has no types
    """A user's base class whose `__call__` runs the body itself."""

    abstract = True
    calls: list[bool]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(current_lease() is not None)
        return self.run(*args, **kwargs)


class OwnSubclass(SingleInstanceTask):
    """A user's base class in between."""

    abstract = True


class OwnCall(SingleInstanceTask):
    """A subclass with a `__call__` of its own, with another one below it."""

    abstract = True
    calls: list[bool]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(current_lease() is not None)
        return super().__call__(*args, **kwargs)


BASES: dict[str, tuple[tuple[type[Task], ...], int]] = {
    "alone": ((SingleInstanceTask,), 0),
    "subclass": ((OwnSubclass,), 0),
    "cooperative first": ((Cooperative, SingleInstanceTask), 1),
    "cooperative second": ((SingleInstanceTask, Cooperative), 1),
    "stubborn first": ((Stubborn, SingleInstanceTask), 1),
    "stubborn second": ((SingleInstanceTask, Stubborn), 1),
    "abortable first": ((AbortableTask, SingleInstanceTask), 0),
    "abortable second": ((SingleInstanceTask, AbortableTask), 0),
    "own call": ((OwnCall,), 1),
    "own call above another": ((type("Above", (Cooperative, OwnCall), {"abstract": True}),), 2),
}
WAYS = ["attribute", "decorator", "both"]


@pytest.fixture
def acquired() -> Iterator[list[str]]:
    """The key ids of all locks taken meanwhile."""
    taken: list[str] = []

    def note(key_id: str, **_: Any) -> None:
        taken.append(key_id)

    signals.lock_acquired.connect(note)
    yield taken
    signals.lock_acquired.disconnect(note)


def base(name: str) -> type[Task]:
    """A base class of the table, with an empty list of its calls."""
    return type("Base", BASES[name][0], {"abstract": True, "calls": []})


def make(app: Celery, name: str, way: str) -> Any:
    """A task of one of the base classes, locked by attribute, decorator or both."""

    def charge(self: Any, order_id: int) -> tuple[str, str | None]:
        return own_lease().key, self.request.id

    options: dict[str, Any] = {"lock_key": KEY} if way != "decorator" else {"lock_ttl": 20}
    fun = single_instance(key=KEY)(charge) if way != "attribute" else charge
    return app.task(base=base(name), bind=True, lazy=False, **options)(fun)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BASES)
def test_locked_exactly_once(
    app: Celery, store: Store, worker: InlineWorker, acquired: list[str], name: str, way: str
) -> None:
    """Whatever the base class and its `__call__`, one lock is taken, around all of it, and the id is right (B52)."""
    task = make(app, name, way)
    assert task(7)[0] == "order:7"
    assert task.apply((7,), task_id="eager").get() == ("order:7", "eager")
    sent = task.apply_async((7,))
    outcome = worker.run()
    assert (outcome.state, outcome.result) == ("SUCCESS", ["order:7", sent.id])
    assert len(acquired) == 3
    assert task.calls == [True] * (3 * BASES[name][1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BASES)
def test_taken_is_taken(app: Celery, store: Store, worker: InlineWorker, name: str, way: str) -> None:
    """No base class's `__call__` gets past a lock that is taken (B52)."""
    task = make(app, name, way)
    with Lock(store, "order:7"):
        with pytest.raises(LockTaken):
            task(7)
        task.delay(7)
        assert worker.run().state == "RETRY"
    assert task.calls == []


@pytest.mark.parametrize("name", BASES)
def test_unlocked_run_asks_the_store_once(app: Celery, app_store: FlakyStore, name: str) -> None:
    """With `on_unavailable="run"` the body runs once, after one question, whatever the base class (B52)."""
    app_store.fault = StoreUnavailable("no answer")
    unlocked: list[bool] = []

    def note(unlocked: bool, told: list[bool] = unlocked, **_: Any) -> None:
        told.append(unlocked)

    @app.task(base=base(name), lazy=False, lock_key=KEY, lock_on_unavailable="run")
    def charge(order_id: int) -> bool:
        return current_lease() is None

    signals.lock_unavailable.connect(note)
    try:
        assert charge(7) is True
    finally:
        signals.lock_unavailable.disconnect(note)
    assert unlocked == [True]


@pytest.mark.parametrize("attribute", ["Task", "task_cls"])
def test_every_task_of_an_app(make_app: MakeApp, attribute: str) -> None:
    """`app.Task = SingleInstanceTask`, or `task_cls=`, locks every task of the app; Celery's own still work (B52)."""
    app = make_app(task_always_eager=True)
    setattr(app, attribute, SingleInstanceTask)
    app.finalize()

    @app.task(lazy=False)
    def charge(order_id: int) -> str:
        return own_lease().key

    @app.task(lazy=False)
    def collect(results: list[str]) -> int:
        return len(set(results))

    assert str(charge(7)).startswith(f"{charge.name}:")
    assert chord([charge.s(7), charge.s(8)])(collect.s()).get() == 2
    assert app.tasks["celery.map"](charge.s(), [7]) is not None


def test_nothing_is_kept_on_the_task(app: Celery) -> None:
    """A run leaves no state on the task object, which all threads share."""
    task = make(app, "alone", "both")
    task(7)  # Celery itself keeps a default request from the first call on
    before = dict(vars(task))
    task(8)
    assert vars(task) == before


def test_a_call_further_down(app: Celery) -> None:
    """A `__call__` of a class that stands behind the locked one is run, as Python's order of classes has it."""
    calls: list[bool] = []

    class Context(Task):  # type: ignore[misc]  # Celery has no types
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(current_lease() is not None)
            return super().__call__(*args, **kwargs)

    class Base(SingleInstanceTask):
        abstract = True
        lock_key = KEY

    class Own(Base, Context):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    @app.task(base=Own, lazy=False)
    def charge(order_id: int) -> int:
        return order_id

    assert charge(7) == 7
    assert calls == [True]


def test_a_class_on_two_apps(make_app: MakeApp) -> None:
    """A class-based task that is registered anew has its lock where its app has it now."""

    class Charge(SingleInstanceTask):
        name = "shop.charge"
        lock_key = KEY

        def run(self, order_id: int) -> int:
            return order_id

    first = make_app(singleton_lock_url=f"memory://{uuid4().hex}")
    assert first.register_task(Charge())(7) == 7
    second = make_app(singleton_lock_url=f"memory://{uuid4().hex}")
    charge = second.register_task(Charge())
    with Lock(settings_of(first).store, "order:7"):
        assert charge(7) == 7
    with Lock(settings_of(second).store, "order:7"), pytest.raises(LockTaken):
        charge(7)


def test_class_options_are_checked_at_once() -> None:
    """A wrong attribute of a task class is refused when the class is made, with its name as written (B25)."""
    with pytest.raises(LockConfigError, match=r"lock_tttl.*did you mean 'lock_ttl'"):
        type("Charge", (SingleInstanceTask,), {"lock_tttl": 5})
    with pytest.raises(LockConfigError, match="task class Charge: lock_ttl: give seconds"):
        type("Charge", (SingleInstanceTask,), {"lock_ttl": "5"})


def test_prefix_is_reserved_on_the_base_class_only(app: Celery) -> None:
    """`lock_` is reserved on a SingleInstanceTask; a stranger's class under the decorator may have such names."""

    class Stranger(Task):  # type: ignore[misc]  # Celery has no types
        abstract = True
        lock_owner = "me"

        def lock_door(self) -> None:
            """Something else."""

    def charge() -> int:
        return 1

    assert app.task(base=Stranger, lazy=False)(single_instance(key="x")(charge))() == 1
    with pytest.raises(LockConfigError, match="unknown option 'lock_owner'"):
        app.task(base=type("Own", (SingleInstanceTask, Stranger), {"abstract": True}), lazy=False, name="x")(charge)


def test_celery_singletons_attribute_is_a_warning() -> None:
    """celery-singleton's `lock_expiry` on a class is a warning that points to `lock_ttl`."""
    with pytest.warns(UserWarning, match="lock_expiry has no effect; set lock_ttl"):
        type("Charge", (SingleInstanceTask,), {"lock_expiry": 60})


def test_celery_singletons_attribute_of_a_decorated_task(app: Celery) -> None:
    """It is the same on a task that has its lock from the decorator."""

    def charge() -> None:
        """Nothing."""

    with pytest.warns(UserWarning, match="lock_expiry has no effect; set lock_ttl"):
        app.task(lazy=False, lock_expiry=60)(single_instance(key="x")(charge))


def test_an_option_without_its_prefix_is_a_warning(app: Celery, recwarn: pytest.WarningsRecorder) -> None:
    """An attribute `ttl` does nothing on a SingleInstanceTask, and says so; `retry_backoff` is Celery's own (B25)."""

    def charge() -> int:
        return 1

    task = app.task(base=SingleInstanceTask, lazy=False, ttl=5, lock_at_least=1, retry_backoff=True)(charge)
    assert [str(each.message) for each in recwarn] == [
        "task class charge: ttl is not an option of the lock; set lock_ttl"
    ]
    assert task.singleton_lock_task().options.ttl == 30.0
