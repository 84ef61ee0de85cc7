"""Celery tasks that run alone on the resource they name: leases, fencing tokens, idempotency records."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import (
        IdempotencyMismatch,
        LeaseLost,
        LockConfigError,
        LockKeyError,
        LockTaken,
        SingletonLockError,
        StoreUnavailable,
    )
    from .locks.lease import Lease, current_lease
    from .locks.lock import Lock
    from .locks.records import is_replayed, is_skipped
    from .stores import open_store
    from .tasks.base import SingleInstanceTask
    from .tasks.decorator import single_instance

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

_MODULE_OF = {
    "Lease": "locks.lease",
    "Lock": "locks.lock",
    "SingleInstanceTask": "tasks.base",
    "current_lease": "locks.lease",
    "is_replayed": "locks.records",
    "is_skipped": "locks.records",
    "open_store": "stores",
    "single_instance": "tasks.decorator",
}


def __getattr__(name: str) -> Any:
    # Names are loaded when asked for: `Lock` and `open_store` work without importing Celery.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value
