"""The names that the package promises, and that it loads no more than is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import celery_singleton_lock

ROOT = Path(__file__).parents[2]
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
    code = f"import sys, celery_singleton_lock as c; c.{name}; print(*[m for m in {unloaded!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""
