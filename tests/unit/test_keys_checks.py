"""What ``key=`` refuses, and against which signature: `celery_singleton_lock.keys`."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_singleton_lock import single_instance
from celery_singleton_lock.errors import LockConfigError, LockKeyError
from celery_singleton_lock.keys.binding import bind
from celery_singleton_lock.keys.spec import compile_key


def charge(order_id: Any, region: Any = "eu", *, amount: Any = None, **extra: Any) -> None: ...
def plain(order_id: Any, region: Any = "eu", *, amount: Any = None) -> None: ...
def nothing() -> None: ...


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("", r"key is empty; one lock for the whole task is written \(\)"),
        (" ", "key is empty"),
        (b"order", "not of type bytes"),
        (7, "not of type int"),
        (True, "not of type bool"),
        ({"order_id"}, "not of type set"),
        ({"order_id": 1}, "not of type dict"),
        (("order_id", 1), "a sequence holds names"),
        (("order:{order_id}",), "a sequence holds names"),
        (("",), "a sequence holds names"),
        (("order_id", "order_id"), "names the argument 'order_id' twice"),
        (lambda order_id, /: "x", "by name"),
        (dict.fromkeys, "by name|cannot be read"),
        (type("C", (), {"__call__": None})(), "cannot be read"),
    ],
)
def test_bad_keys(spec: object, problem: str) -> None:
    """B25: what is no key is refused when it is compiled, with what to write instead."""
    with pytest.raises(LockConfigError, match=problem):
        compile_key(spec)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("order:{ordr_id}", "key names no argument 'ordr_id'; did you mean 'order_id'?"),
        (("ordr_id",), "key names no argument 'ordr_id'; did you mean 'order_id'?"),
        (lambda ordr_id: "x", "key names no argument 'ordr_id'; did you mean 'order_id'?"),
        ("order:{colour[0]}", r"what comes in \*\*extra is written {extra\[colour\]}"),
        ("order:{self}", "key names no argument 'self'"),
    ],
)
def test_names_of_no_argument(spec: object, problem: str) -> None:
    """B25: a misspelt argument is an error at import that offers the closest one."""
    with pytest.raises(LockConfigError, match=problem):
        compile_key(spec).check(inspect.signature(charge))


def test_the_arguments_there_are() -> None:
    """Where no name is close, the error lists them."""
    with pytest.raises(LockConfigError, match="the task has 'order_id', 'region', 'amount'"):
        compile_key("x:{y}").check(inspect.signature(plain))
    with pytest.raises(LockConfigError, match="idempotency_key names no argument 'y'; the task has no arguments"):
        compile_key("{y}", option="idempotency_key").check(inspect.signature(nothing))


def _hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("spec", [None, "order:{order_id}", ("order_id",), lambda order_id: "x"])
def test_a_hidden_signature(spec: object) -> None:
    """B18: behind a wrapper that hides the signature no key is built from the wrong names; with wraps all is well."""
    wrapper = _hiding(plain)
    key = compile_key(spec)
    with pytest.raises(LockConfigError, match=r"a decorator hides its signature.*functools\.wraps"):
        key.check(inspect.signature(wrapper))
    signature = inspect.signature(functools.wraps(plain)(wrapper))
    key.check(signature)
    assert key.build(bind(signature, (7,), {})) == key.build(bind(signature, (), {"order_id": 7}))


def test_a_task_that_takes_anything() -> None:
    """B18: a task that is meant to take ``*args`` and ``**kwargs`` says so; other signatures with them need not."""
    signature = inspect.signature(_hiding(plain))
    compile_key(("args", "kwargs")).check(signature)
    compile_key(()).check(signature)
    compile_key(None).check(inspect.signature(lambda *args: None))
    compile_key(None).check(inspect.signature(lambda **kwargs: None))


def test_constant_that_is_an_arguments_name() -> None:
    """A constant key that is an argument's name is a slip: both right ways are named."""
    with pytest.raises(LockConfigError, match=r"\['order_id'\].*\{order_id\}"):
        single_instance(key="order_id")(charge)


def test_callables_error_shows_no_argument(app: Celery) -> None:
    """A key callable's own error, which may show an argument's value, is not in the traceback (B47)."""
    task = app.task(lazy=False)(single_instance(key=lambda order_id: f"order:{int(order_id)}")(charge))
    with pytest.raises(LockKeyError, match="ValueError") as caught:
        task("".join(["hunter", "2"]))
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_soft_limit_in_a_callable(app: Celery) -> None:
    """A soft time limit that strikes in a key callable is a soft time limit."""

    def slow(order_id: int) -> str:
        raise SoftTimeLimitExceeded

    task = app.task(lazy=False)(single_instance(key=slow)(charge))
    with pytest.raises(SoftTimeLimitExceeded):
        task(7)
