"""Every error: it survives pickling and JSON, is caught by its family's names, and says what happened in words."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import errors
from celery_singleton_lock.errors import (
    IdempotencyMismatch,
    LeaseLost,
    LockConfigError,
    LockKeyError,
    LockTaken,
    SingletonLockError,
    StoreUnavailable,
)

EXAMPLES = [
    LockTaken("0123456789abcdef"),
    LockTaken("0123456789abcdef", "task-1", 12.5, 3.25),
    LeaseLost("0123456789abcdef"),
    LeaseLost("0123456789abcdef", "max_hold is over"),
    StoreUnavailable("TimeoutError: no answer"),
    StoreUnavailable("AuthenticationError: no", True),
    IdempotencyMismatch("0123456789abcdef", "task-1"),
    LockKeyError("order_id", "it is None"),
    LockConfigError("ttl: give seconds"),
]
each_example = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def test_examples_cover_every_error() -> None:
    """Whoever adds an error to the package adds it to the examples here."""
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SingletonLockError)}
    assert classes == {SingletonLockError, *map(type, EXAMPLES)}


@each_example
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_round_trip(error: SingletonLockError, protocol: int) -> None:
    """A pickled error comes back with the same type, arguments, attributes and text."""
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (again.args, vars(again), str(again)) == (error.args, vars(error), str(error))


@each_example
def test_copies_are_equal(error: SingletonLockError) -> None:
    """A copied error is the same error."""
    again = copy.copy(error)
    assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))


@each_example
def test_args_are_the_constructor_arguments(error: SingletonLockError) -> None:
    """`args` holds each argument of the constructor in order, defaults filled in, under the attribute of its name."""
    names = list(inspect.signature(type(error)).parameters)
    assert error.args == tuple(getattr(error, name) for name in names)


@each_example
def test_json_result_round_trip(error: SingletonLockError, app: Celery) -> None:
    """An error stored as a JSON result is rebuilt as itself, so that link_error and `.get()` see it (B05)."""
    stored = json.loads(json.dumps(app.backend.prepare_exception(error, serializer="json")))
    again = app.backend.exception_to_python(stored)
    assert type(again).__name__ == type(error).__name__
    assert isinstance(again, type(error))
    assert (again.args, str(again)) == (error.args, str(error))


@each_example
def test_all_are_caught_by_the_base(error: SingletonLockError) -> None:
    """`except SingletonLockError` catches everything that the package raises on purpose."""
    assert isinstance(error, SingletonLockError)


def test_taken_says_who_and_how_long() -> None:
    """LockTaken's text has the key id, the holder, the rest of its lease and the time waited (B05)."""
    text = str(LockTaken("0123456789abcdef", "task-1", 12.5, 3.25))
    assert text == "lock 0123456789abcdef is held by task-1, 3.2 s of its lease left; waited 12.5 s"
    assert str(LockTaken("0123456789abcdef")) == "lock 0123456789abcdef is held by an unknown owner"


def test_denied_is_off_by_default() -> None:
    """A store that is merely out of reach did not turn the credentials down."""
    assert StoreUnavailable("x").denied is False


class OwnKind(LockTaken):
    """What a user may derive."""

    def __init__(self, key_id: str, *rest: Any) -> None:
        self.extra = "x"
        super().__init__(key_id, *rest)


def test_a_users_own_kind() -> None:
    """A subclass with a field of its own keeps its parent's arguments, and survives a pickle, notes and all."""
    error = OwnKind("k")
    vars(error)["__notes__"] = ["seen"]
    error.__init__("other")  # type: ignore[misc]  # once more, as a reduce does that calls it
    assert pickle.loads(pickle.dumps(error)).args == ("other", None, 0.0, None)
