"""Every error of the package.

::

    Exception
    └── SingletonLockError
        ├── LockTaken             somebody else holds the resource
        ├── LeaseLost             this run no longer holds it
        ├── StoreUnavailable      the lock servers cannot say
        ├── IdempotencyMismatch   the key was used before, with another payload
        ├── LockKeyError          no stable key can be built from the arguments
        └── LockConfigError       an option or a setting is wrong (also Celery's ImproperlyConfigured)

The ``args`` of each error are its constructor's arguments, so that a pickled or JSON-stored one is rebuilt equal.
No message shows an argument's value, a key or a password: a key appears as its *key id*.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


class SingletonLockError(Exception):
    """Anything this package raises on purpose. Each kind is a dataclass of what it says."""

    def __post_init__(self) -> None:
        super().__init__(*[getattr(self, field.name) for field in fields(self)])  # type: ignore[arg-type]


@dataclass(eq=False, repr=False)
class LockTaken(SingletonLockError):
    """The resource is held by somebody else.

    ``key_id``: 16 hex digits; ``holder``: the holding run's task id, or None where it is not known; ``waited``: seconds
    since the first attempt; ``remaining``: seconds until the holder's lease ends, or None.
    """

    key_id: str
    holder: str | None = None
    waited: float = 0.0
    remaining: float | None = None

    def __str__(self) -> str:
        left = "" if self.remaining is None else f", {self.remaining:.1f} s of its lease left"
        waited = f"; waited {self.waited:.1f} s" if self.waited else ""
        return f"lock {self.key_id} is held by {self.holder or 'an unknown owner'}{left}{waited}"


@dataclass(eq=False, repr=False)
class LeaseLost(SingletonLockError):
    """The run does not hold its resource any more: another one may be running.

    ``key_id``: 16 hex digits; ``reason``: why, in a few words.
    """

    key_id: str
    reason: str = "the lease ran out"

    def __str__(self) -> str:
        return f"the lease of lock {self.key_id} is lost: {self.reason}"


@dataclass(eq=False, repr=False)
class StoreUnavailable(SingletonLockError):
    """The lock servers gave no answer that can be trusted: neither granted nor taken.

    ``reason``: what went wrong, without passwords; ``denied``: the server rejected the credentials; ``contended``: the
    servers answered, but the lock may be somebody else's. No policy may treat the latter two as "run without a lock".
    """

    reason: str
    denied: bool = False
    contended: bool = False

    def __str__(self) -> str:
        return f"the lock store cannot be used: {self.reason}"


@dataclass(eq=False, repr=False)
class IdempotencyMismatch(SingletonLockError):
    """The idempotency key has a record already, made by a call with other arguments.

    ``key_id``: 16 hex digits; ``task_id``: the run that made the record.
    """

    key_id: str
    task_id: str

    def __str__(self) -> str:
        return (
            f"the idempotency key was used before by {self.task_id or 'a direct call'} with other arguments "
            f"(lock {self.key_id}); "
            "send the same payload, or a new idempotency key"
        )


@dataclass(eq=False, repr=False)
class LockKeyError(SingletonLockError):
    """No stable key can be built from the call's arguments. ``field``: the argument; ``problem``: why."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"the lock key cannot be built from {self.field!r}: {self.problem}"


@dataclass(eq=False, repr=False)
class LockConfigError(SingletonLockError):
    """An option or a setting is wrong. ``problem``: names it, and what to change.

    With Celery it is an ImproperlyConfigured, too: see tasks/__init__.py.
    """

    problem: str

    def __str__(self) -> str:
        return self.problem
