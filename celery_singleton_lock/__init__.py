"""Celery tasks that run alone on the resource they name: leases, fencing tokens, idempotency records."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decorator import single_instance
    from .errors import (
        IdempotencyMismatch,
        LeaseLost,
        LockConfigError,
        LockKeyError,
        LockTaken,
        SingletonLockError,
        StoreUnavailable,
    )
    from .lease import Lease, current_lease
    from .lock import Lock
    from .records import is_replayed, is_skipped
    from .stores import open_store
    from .task import SingleInstanceTask

__version__ = "0.1.0"

__all__ = [
    "IdempotencyMismatch",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockConfigError",
    "LockKeyError",
    "LockTaken",
    "SingleInstanceTask",
    "SingletonLockError",
    "StoreUnavailable",
    "current_lease",
    "is_replayed",
    "is_skipped",
    "open_store",
    "single_instance",
]

_ROOMS = {
    "Lease": "lease",
    "Lock": "lock",
    "SingleInstanceTask": "task",
    "current_lease": "lease",
    "is_replayed": "records",
    "is_skipped": "records",
    "open_store": "stores",
    "single_instance": "decorator",
}


def __getattr__(name: str) -> Any:
    # Names are loaded when asked for: `Lock` and `open_store` work without importing Celery.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_ROOMS.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value
