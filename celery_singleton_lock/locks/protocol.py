"""What a store of locks is asked: the port between guards and servers.

"I cannot know" is an exception, `StoreUnavailable`. All times are float seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..errors import StoreUnavailable
from ..keys.names import Names
from .answers import Answer, Holder, Taken


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

    def renew(self, locks: Sequence[HeldLock], timeout: float) -> list[bool | None]:
        """Reset each lock's expiry to its ttl, never to an earlier time.

        Per lock: True, False if it is no longer held, None if unknown. Raises `StoreUnavailable`.
        """

    def release(
        self, lock: HeldLock, *, rest: float = 0.0, write: RecordWrite | None = None, unanswered: bool = False
    ) -> bool:
        """Write the record, then free the lock or let it rest for ``rest`` seconds; False where it was not held.

        ``unanswered``: leave a tombstone of the token, so that a late request of it takes nothing. Raises
        `StoreUnavailable`.
        """

    def peek(self, names: Names) -> Taken | None:
        """Who holds the lock now; None where it is free. Raises `StoreUnavailable`."""

    def inspect(self) -> list[ServerState]:
        """What each of its servers says of itself, within ``timeout`` each; none for a store without.

        Raises `LockConfigError` where one server has two votes.
        """

    def close(self) -> None:
        """Close what is open; the next call opens again."""
