"""What a store of locks is asked and what it answers: the port between guards and servers.

A conflict is a value (`Taken`); "I cannot know" is an exception (`StoreUnavailable`). All times are float seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..errors import StoreUnavailable
from ..keys.names import Names

#: What ``singleton_lock_prefix`` and ``singleton_lock_timeout`` (seconds) are where nobody says otherwise.
DEFAULT_PREFIX = "singleton-lock"
DEFAULT_TIMEOUT = 1.0
#: How long a resource's last fencing token is remembered after its last use, in seconds.
FENCE_TTL = 7 * 24 * 3600.0


class Holder(NamedTuple):
    """Who holds a lock, for logs, events and lineage: no argument of the call is in it."""

    task_id: str | None = None
    task: str | None = None
    host: str | None = None
    pid: int | None = None


class AcquireRequest(NamedTuple):
    """A request for one lock by one owner token. ``record_id`` and ``attempt`` ask for an earlier result, too.

    A record answers every request whose ``attempt`` is not above its own. ``timeout``: this call's bound, in seconds;
    None: the store's own for a lease of ``ttl``.
    """

    names: Names
    token: str
    holder: Holder
    ttl: float
    record_id: str | None = None
    attempt: int = 0
    timeout: float | None = None


class HeldLock(NamedTuple):
    """A granted lock, as renewal and release name it. ``holder``: as the lock was asked for; None: never restore it.

    ``may_shorten``: its expiry may become an earlier one, which an extension may ask for; a renewal never does.
    """

    names: Names
    token: str
    fence: int
    ttl: float
    holder: Holder | None = None
    may_shorten: bool = False


class RecordWrite(NamedTuple):
    """A record to keep: ``body`` answers a repeat of ``attempt`` or below for ``ttl`` seconds."""

    record_id: str
    attempt: int
    body: bytes
    ttl: float


class Granted(NamedTuple):
    """The lock is held. ``unanswered``: an earlier request of this token may still reach the server."""

    fence: int
    unanswered: bool = False


class Taken(NamedTuple):
    """Somebody else has the resource, for ``remaining`` more seconds unless renewed (None: nobody can tell).

    ``resting``: its body has ended, ``at_least`` has not. ``token``, ``fence``: the holder's; "" and 0 where the lock's
    text is not ours.
    """

    holder: Holder
    remaining: float | None
    resting: bool = False
    token: str = ""
    fence: int = 0


class Recorded(NamedTuple):
    """The work is done: what its run left. ``attempt``, ``fence``: that run's; ``ttl``: seconds that it stays."""

    body: bytes
    attempt: int = 0
    fence: int = 0
    ttl: float = 0.0


class SplitVote(NamedTuple):
    """A quorum's vote went to nobody; another attempt, with another token and after a random delay, may win it.

    ``round_trip``: what one took, in seconds.
    """

    round_trip: float


Answer = Granted | Taken | Recorded | SplitVote


class ServerState(NamedTuple):
    """What one server of a store says of itself, for start-up checks. ``error``: why it says nothing.

    ``policy``: by which it evicts keys at its memory's limit; None where it has no limit, evicts nothing or may not be
    asked. ``run_id``: names its process; None where it may not be asked.
    """

    display_name: str
    error: StoreUnavailable | None = None
    policy: str | None = None
    run_id: str | None = None


class Store(Protocol):
    """One deployment of locks. Every call is bounded in time and may be repeated without harm.

    ``prefix``: what every key begins with. ``shared``: other processes see its locks. ``timeout``: a call's bound.
    ``majority``: how many independent servers must agree.
    """

    prefix: str
    shared: bool
    timeout: float
    majority: int

    def acquire(self, request: AcquireRequest) -> Answer:
        """Take the lock, or say why not, in one round trip.

        Raises `StoreUnavailable`; then nothing stays taken for longer than the ttl.
        """
        ...

    def renew(self, locks: Sequence[HeldLock], timeout: float) -> list[bool | None]:
        """Reset each lock's expiry to its ttl, never to an earlier time.

        Per lock: True, False if it is no longer held, None if unknown. Raises `StoreUnavailable`.
        """
        ...

    def release(
        self, lock: HeldLock, *, rest: float = 0.0, write: RecordWrite | None = None, unanswered: bool = False
    ) -> bool:
        """Write the record, then free the lock or let it rest for ``rest`` seconds; False where it was not held.

        ``unanswered``: leave a tombstone of the token, so that a late request of it takes nothing. Raises
        `StoreUnavailable`.
        """
        ...

    def peek(self, names: Names) -> Taken | None:
        """Who holds the lock now; None where it is free. Raises `StoreUnavailable`."""
        ...

    def inspect(self) -> list[ServerState]:
        """What each of its servers says of itself, within ``timeout`` each; none for a store without.

        Raises `LockConfigError` where one server has two votes.
        """
        ...

    def close(self) -> None:
        """Close what is open; the next call opens again."""
        ...


def tombstone_ttl(ttl: float) -> float:
    """How long (seconds) the token of an unanswered request for a lease of ``ttl`` can take nothing."""
    return max(4 * ttl, 60.0)


def call_timeout(timeout: float, ttl: float) -> float:
    """The bound (seconds) of one call for a lease of ``ttl``: never more than a quarter of it."""
    return min(timeout, ttl / 4)
