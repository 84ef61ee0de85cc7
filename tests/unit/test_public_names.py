"""The names that the package promises, and that it loads no more than is asked for."""

from __future__ import annotations

import pytest

import celery_singleton_lock

from ..support.programs import run_python

PROMISED = {
    *("single_instance", "SingleInstanceTask", "current_lease", "Lease", "Lock", "open_store", "is_skipped"),
    *("is_replayed", "SingletonLockError", "LockTaken", "LeaseLost", "StoreUnavailable", "IdempotencyMismatch"),
    *("LockKeyError", "LockConfigError"),
}


def test_promised_names() -> None:
    """The package exports the names that README lists, and nothing else by `*`."""
    assert set(celery_singleton_lock.__all__) == PROMISED
    for name in PROMISED:
        assert getattr(celery_singleton_lock, name).__name__ == name


def test_unknown_name() -> None:
    """A name that is not there is an AttributeError as from any module."""
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        celery_singleton_lock.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("name", "unloaded"),
    [("Lock", ("celery.app", "redis", "sqlalchemy")), ("LockTaken", ("celery.app", "redis")), ("Lease", ("redis",))],
)
def test_loads_no_more_than_is_asked_for(name: str, unloaded: tuple[str, ...]) -> None:
    """The lock library loads neither Celery's app nor a driver before they are needed."""
    run_python(
        "-c", f"import sys, celery_singleton_lock as c; c.{name}; assert not sys.modules.keys() & {set(unloaded)!r}"
    )


LOCK = """
import sys
from celery_singleton_lock import Lock, open_store

with Lock(open_store("memory://"), "order:7") as lease:
    lease.ensure_held()
assert not [name for name in sys.modules if name.partition(".")[0] in ("celery", "kombu", "billiard")]
"""


def test_locks_need_no_celery() -> None:
    """A lock is taken and released in a process that loads nothing of Celery, kombu and billiard."""
    run_python("-c", LOCK)


ERROR = """
import pickle
from celery_singleton_lock import LockConfigError, open_store

try:
    open_store("nonsense")
except LockConfigError as error:
    early = error
import celery_singleton_lock.tasks
from celery.exceptions import ImproperlyConfigured

assert issubclass(LockConfigError, ImproperlyConfigured) and isinstance(early, ImproperlyConfigured)
again = pickle.loads(pickle.dumps(early))
assert (type(again), again.args, str(again)) == (LockConfigError, early.args, str(early))
"""


def test_config_error_is_celerys_too() -> None:
    """With Celery's side a wrong setting is its ImproperlyConfigured, also one that was raised before, and pickles."""
    run_python("-c", ERROR)


STEP = """
import sys
from celery import Celery, bootsteps
from celery_singleton_lock import single_instance
from kombu.utils.imports import symbol_by_name

app = Celery("shop", broker="memory://")


@app.task(lazy=False)
@single_instance
def charge():
    pass


assert not [name for name in sys.modules if name.startswith("celery_singleton_lock.worker")]
(step,) = app.steps["worker"]
assert issubclass(symbol_by_name(step), bootsteps.Step)
"""


def test_the_worker_finds_its_step_by_name() -> None:
    """A process that only sends tasks does not load the worker's part; the boot step that names it is there."""
    run_python("-c", STEP)
