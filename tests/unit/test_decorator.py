"""`@single_instance` in every place where it may stand: one key, one lock, and a loud error where it cannot work."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, Task, _state, shared_task
from pydantic import BaseModel

from celery_singleton_lock import LockConfigError, SingleInstanceTask, current_lease, single_instance

from .inline_worker import InlineWorker

KEY = "order:{order_id}"
locked = single_instance(key=KEY)


def wrapping(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of somebody else's, made well."""

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    return wrapper


def hiding(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of somebody else's that forgets functools.wraps."""

    def hidden(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    return hidden


def body(order_id: int, region: str = "eu") -> Any:
    """What a body sees of its lock."""
    lease = current_lease()
    return lease.key if lease else None


def bound_body(self: Any, order_id: int, region: str = "eu") -> Any:
    """The same for a task that is bound."""
    assert isinstance(self, Task)
    return body(order_id, region)


class Run(Task):  # type: ignore[misc]  # Celery has no types
    """A class-based task, locked by a decorator on the class."""

    name = "by class"

    def run(self, order_id: int, region: str = "eu") -> Any:
        return body(order_id, region)


def class_based(app: Celery) -> Task:
    """A task class of SingleInstanceTask."""

    class Charge(SingleInstanceTask):
        name = "class based"
        lock_key = KEY

        def run(self, order_id: int, region: str = "eu") -> Any:
            return body(order_id, region)

    return app.register_task(Charge())


def decorated_class(app: Celery) -> Task:
    """A task class with the decorator on it."""
    return app.register_task(locked(type("Charge", (Run,), {"run": Run.run}))())


def from_pydantic(app: Celery) -> Task:
    """A task whose arguments are validated."""

    @app.task(pydantic=True)
    @locked
    def charge(order_id: int, region: str = "eu") -> Any:
        return body(order_id, region)

    return charge


FORMS: dict[str, Callable[[Celery], Task]] = {
    "plain": lambda app: app.task(locked(body)),
    "with parentheses": lambda app: app.task(name="named")(locked(body)),
    "bind": lambda app: app.task(bind=True)(locked(bound_body)),
    "autoretry": lambda app: app.task(autoretry_for=(Exception,))(locked(body)),
    "bind and autoretry": lambda app: app.task(bind=True, autoretry_for=(Exception,), retry_backoff=True)(
        locked(bound_body)
    ),
    "typing off": lambda app: app.task(typing=False)(locked(body)),
    "made at once": lambda app: app.task(lazy=False)(locked(body)),
    "wrapped below": lambda app: app.task(locked(wrapping(body))),
    "wrapped between": lambda app: app.task(wrapping(locked(body))),
    "pydantic": from_pydantic,
    "base class": lambda app: app.task(base=SingleInstanceTask, lock_key=KEY)(body),
    "base class and bind": lambda app: app.task(base=SingleInstanceTask, lock_key=KEY, bind=True)(bound_body),
    "base class and wrapper": lambda app: app.task(base=SingleInstanceTask, lock_key=KEY)(wrapping(body)),
    "base class and decorator": lambda app: app.task(base=SingleInstanceTask)(locked(body)),
    "class based": class_based,
    "decorated class": decorated_class,
}


@pytest.fixture(params=FORMS)
def task(request: pytest.FixtureRequest, app: Celery) -> Task:
    """A locked task in each of its forms."""
    made = FORMS[request.param](app)
    app.finalize()
    return made


def test_every_form_has_the_same_key(task: Task, worker: InlineWorker) -> None:
    """The same values, by position or by name, give one key in every form of a task, however it is called (B18)."""
    assert {task(7), task(order_id=7), task(7, "eu"), task(7, region="us")} == {"order:7"}
    assert {task.apply((7,)).get(), task.apply(kwargs={"order_id": 7}).get()} == {"order:7"}
    sent = [task.delay(7), task.apply_async(kwargs={"order_id": 7}), task.s(7).delay()]
    assert [worker.run().result for _ in sent] == ["order:7"] * 3


def test_run_is_the_bare_body(task: Task) -> None:
    """`task.run(...)` takes no lock in any form (B35)."""
    assert task.run(7) is None


def test_argument_check_at_send(task: Task, request: pytest.FixtureRequest) -> None:
    """Celery's own argument check at `delay()` sees through the decorator, where the form has such a check."""
    unchecked = ("typing off", "class based", "decorated class", "base class and wrapper")
    if request.node.callspec.params["task"] in unchecked:
        task.delay()
    else:
        with pytest.raises(TypeError, match="order_id"):
            task.delay()
        with pytest.raises(TypeError, match="nonsense"):
            task.delay(7, nonsense=1)


def test_shared_task(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared task, made before or after its app, has the lock."""
    monkeypatch.setattr(_state._tls, "current_app", app, raising=False)
    early = shared_task(name="early")(locked(body))
    app.finalize()
    late = shared_task(name="late")(locked(body))
    assert [early(7), late(7)] == ["order:7", "order:7"]


def test_function_keeps_its_face() -> None:
    """The decorated function keeps its name, its docstring and its signature."""
    decorated = locked(body)
    assert (decorated.__name__, decorated.__doc__, decorated.__module__) == (body.__name__, body.__doc__, __name__)
    assert inspect.signature(decorated) == inspect.signature(body)
    assert inspect.unwrap(decorated) is body


def test_task_keeps_its_docstring(app: Celery) -> None:
    """The task's documentation is the function's, as a plain text."""
    assert app.task(locked(body)).__doc__ == body.__doc__
    assert (app.task(name="x")(locked(lambda order_id: None)).__doc__ or "") == ""


def test_bare_decorator(app: Celery) -> None:
    """Without options every bound argument is the key, under the task's name (B19)."""

    @app.task(name="shop.charge")
    @single_instance
    def charge(order_id: int, region: str = "eu") -> Any:
        return body(order_id, region)

    assert charge(7).startswith("shop.charge:")
    assert charge(7) == charge(order_id=7, region="eu") != charge(7, "us")


@pytest.mark.parametrize("lazy", [True, False])
def test_above_the_task_decorator(app: Celery, lazy: bool) -> None:
    """Above `@app.task` it is refused at import, and a lazy task is not made by looking at it (B18)."""
    inner = app.task(lazy=lazy)(body)
    with pytest.raises(LockConfigError, match="put it below"):
        locked(inner)
    assert not lazy or not inner.__evaluated__()


def test_twice_is_refused() -> None:
    """Two decorators on one function are refused: their options belong to one."""
    with pytest.raises(LockConfigError, match="stands twice"):
        single_instance(ttl=5)(locked(body))


@pytest.mark.parametrize("thing", [5, "order:{order_id}", ["order_id"], {"ttl": 5}], ids=repr)
def test_what_is_no_function(thing: Any) -> None:
    """What is no function, such as an option without its name, is refused at import."""
    with pytest.raises(LockConfigError):
        single_instance(thing)(body)


def test_class_that_is_no_task() -> None:
    """A class that is no task class is refused at import."""
    with pytest.raises(LockConfigError, match="is no task class"):
        single_instance(type("Order", (), {}))


def test_hidden_signature_is_refused_at_import() -> None:
    """Over a wrapper that hides the arguments a key that names one is refused at import, with the reason (B18)."""
    with pytest.raises(LockConfigError, match=r"functools\.wraps"):
        locked(hiding(body))


def test_hidden_signature_with_the_default_key(app: Celery) -> None:
    """Over such a wrapper the default key is refused when the task is bound, not built from another form (B18)."""
    with pytest.raises(LockConfigError, match=r"functools\.wraps"):
        app.task(lazy=False)(single_instance(hiding(body)))


@pytest.mark.parametrize("options", [{}, {"bind": True}, {"autoretry_for": (Exception,), "max_retries": 3}], ids=str)
def test_hidden_decorator_fails_loudly(app: Celery, worker: InlineWorker, options: dict[str, Any]) -> None:
    """A wrapper that hides the decorator is an error at the first run, in every way to call; no body runs (B18)."""
    ran: list[int] = []

    def charge(*args: int) -> None:
        ran.append(args[-1])

    task = app.task(**options)(hiding(single_instance(key="order")(charge)))
    with pytest.raises(LockConfigError, match="no task has it"):
        task(7)
    task.delay(7)
    outcome = worker.run()
    if outcome.state == "RETRY":  # autoretry takes it for a failure like any other
        outcome = [worker.run() for _ in range(3)][-1]
    assert isinstance(outcome.result, LockConfigError)
    assert ran == []


def test_no_task_at_all() -> None:
    """A function that asks for a lock and is no task at all fails at its first call."""
    with pytest.raises(LockConfigError, match="no task has it"):
        locked(body)(7)


def test_instrumented_call(app: Celery, worker: InlineWorker) -> None:
    """A tracer's wrapper around the class's `__call__`, as error trackers make it, leaves the lock in place (B18)."""
    task = app.task(locked(body))
    app.finalize()
    real = app.tasks[task.name]
    type(real).__call__ = wrapping(type(real).__call__)
    task.delay(7)
    assert worker.run().result == "order:7"


class Order(BaseModel):
    """What a pydantic task takes."""

    id: int
    note: str = ""


def test_pydantic_models(app: Celery, worker: InlineWorker) -> None:
    """A model's field names the resource, whether the caller gave the model or its dict."""

    @app.task(pydantic=True, lazy=False)
    @single_instance(key="order:{order.id}")
    def charge(order: Order) -> Any:
        assert isinstance(order, Order)
        return body(order.id)

    assert charge.apply(({"id": 7},)).get() == "order:7"
    charge.delay({"id": 7, "note": "x"})
    assert worker.run().result == "order:7"


def test_async_body() -> None:
    """An async function, whose lock would be freed before its body begins, is refused."""

    async def later(order_id: int) -> None:
        """Never run."""

    with pytest.raises(LockConfigError, match="async"):
        single_instance(key=KEY)(later)


def test_async_body_of_a_task_class(app: Celery) -> None:
    """So it is in a task of the base class, when it is bound."""

    async def later(order_id: int) -> None:
        """Never run."""

    with pytest.raises(LockConfigError, match="async"):
        app.task(base=SingleInstanceTask, lazy=False)(later)
