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


class SingletonLockError(Exception):
    """Anything this package raises on purpose."""


class LockTaken(SingletonLockError):
    """The resource is held by somebody else.

    ``key_id``: 16 hex digits; ``holder``: the holding run's task id, or None where it is not known; ``waited``: seconds
    since the first attempt; ``remaining``: seconds until the holder's lease ends, or None.
    """

    def __init__(
        self, key_id: str, holder: str | None = None, waited: float = 0.0, remaining: float | None = None
    ) -> None:
        super().__init__(key_id, holder, waited, remaining)
        self.key_id = key_id
        self.holder = holder
        self.waited = waited
        self.remaining = remaining

    def __str__(self) -> str:
        left = "" if self.remaining is None else f", {self.remaining:.1f} s of its lease left"
        waited = f"; waited {self.waited:.1f} s" if self.waited else ""
        return f"lock {self.key_id} is held by {self.holder or 'an unknown owner'}{left}{waited}"


class LeaseLost(SingletonLockError):
    """This run does not hold its resource any more: another one may be running.

    ``key_id``: 16 hex digits; ``reason``: why, in a few words.
    """

    def __init__(self, key_id: str, reason: str = "the lease ran out") -> None:
        super().__init__(key_id, reason)
        self.key_id = key_id
        self.reason = reason

    def __str__(self) -> str:
        return f"the lease of lock {self.key_id} is lost: {self.reason}"


class StoreUnavailable(SingletonLockError):
    """The lock servers gave no answer that can be trusted: neither granted nor taken.

    ``reason``: what went wrong, without passwords; ``denied``: the server turned the credentials down; ``contended``:
    the servers answered, but the lock may be somebody else's. No policy may treat the latter two as "run without a
    lock".
    """

    def __init__(self, reason: str, denied: bool = False, contended: bool = False) -> None:
        super().__init__(reason, denied, contended)
        self.reason = reason
        self.denied = denied
        self.contended = contended

    def __str__(self) -> str:
        return f"the lock store cannot be used: {self.reason}"


class IdempotencyMismatch(SingletonLockError):
    """The idempotency key has a record already, made by a call with other arguments.

    ``key_id``: 16 hex digits; ``task_id``: the run that made the record.
    """

    def __init__(self, key_id: str, task_id: str) -> None:
        super().__init__(key_id, task_id)
        self.key_id = key_id
        self.task_id = task_id

    def __str__(self) -> str:
        return (
            f"the idempotency key was used before by {self.task_id or 'a direct call'} with other arguments "
            f"(lock {self.key_id}); "
            "send the same payload, or a new idempotency key"
        )


class LockKeyError(SingletonLockError):
    """No stable key can be built from the call's arguments. ``field``: the argument; ``problem``: why."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"the lock key cannot be built from {self.field!r}: {self.problem}"


class LockConfigError(SingletonLockError):
    """An option or a setting is wrong. ``problem``: names it, and what to change.

    With Celery it is an ImproperlyConfigured, too: see tasks/__init__.py.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem
