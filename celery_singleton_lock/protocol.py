"""What a store of locks is asked and what it answers: the port between guards and servers.

A refusal is a value (`Taken`); "I cannot know" is an exception (`StoreUnavailable`). All times are float seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import NamedTuple, Protocol

from .keys import Names

#: How long a resource's last fencing token is remembered after its last use, in seconds.
FENCE_TTL = 7 * 24 * 3600.0


class Holder(NamedTuple):
    """Who holds a lock, for logs, events and lineage: no argument of the call is in it."""

    task_id: str | None = None
    task: str | None = None
    host: str | None = None
    pid: int | None = None

    def encode(self) -> str:
        """The holder as the compact JSON that stands in the lock."""
        task_id = "null" if self.task_id is None else quoted(str(self.task_id))
        return f"[{task_id},{_rest(self.task, self.host, self.pid)}]"

    @classmethod
    def decode(cls, text: str | bytes) -> Holder:
        """The holder from a lock's text; an unknown one where the text is somebody else's."""
        try:
            task_id, task, host, pid = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return cls()
        return cls(task_id, task, host, pid)


@lru_cache(maxsize=1024)
def _rest(task: str | None, host: str | None, pid: int | None) -> str:
    return json.dumps([task, host, pid], separators=(",", ":"))[1:-1]


class Ask(NamedTuple):
    """A request for one lock by one owner token. ``record_id`` and ``rank`` ask for an earlier result, too.

    A record answers every asker whose ``rank`` is not above its own. ``patience``: this call's bound, in seconds, where
    it is shorter than the store's own.
    """

    names: Names
    token: str
    holder: Holder
    ttl: float
    record_id: str | None = None
    rank: int = 0
    patience: float | None = None

    def bound(self, timeout: float) -> float:
        """How long the call may take, in seconds, where the store gives its calls ``timeout``."""
        return call_timeout(timeout if self.patience is None else min(timeout, self.patience), self.ttl)


class Hold(NamedTuple):
    """A granted lock, as renewal and release name it. ``holder``: as it stands in the lock.

    ``exact``: its expiry may become an earlier one, too, which an extension may ask for; a renewal never does.
    """

    names: Names
    token: str
    fence: int
    ttl: float
    holder: str = ""
    exact: bool = False


class Write(NamedTuple):
    """A record to keep: ``body`` answers a repeat of ``rank`` or below for ``ttl`` seconds."""

    record_id: str
    rank: int
    body: bytes
    ttl: float

    def encode(self, fence: int) -> bytes:
        """The record of the run that holds ``fence``, as it stands in a server."""
        return Recorded(self.body, self.rank, fence).encode()


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
    """The work is done: what its run left. ``rank``, ``fence``: that run's; ``ttl``: for how long yet, in seconds."""

    body: bytes
    rank: int = 0
    fence: int = 0
    ttl: float = 0.0

    def encode(self) -> bytes:
        """The record as it stands in a server."""
        return b"%d:%d:%b" % (self.rank, self.fence, self.body)

    @classmethod
    def decode(cls, text: bytes, ttl: float) -> Recorded:
        """The record of a server's text."""
        rank, fence, body = text.split(b":", 2)
        return cls(body, int(rank), int(fence), ttl)


class Split(NamedTuple):
    """A quorum's vote went to nobody; another attempt, with another token and after a random delay, may win it.

    ``round_trip``: what one took, in seconds.
    """

    round_trip: float


Answer = Granted | Taken | Recorded | Split


class Store(Protocol):
    """One deployment of locks. Every call is bounded in time and may be repeated without harm.

    ``prefix``: what every key begins with. ``shared``: other processes see its locks. ``timeout``: a call's bound.
    """

    prefix: str
    shared: bool
    timeout: float

    def acquire(self, ask: Ask) -> Answer:
        """Take the lock, or say why not, in one round trip. Raises `StoreUnavailable`; then nothing stays taken for
        longer than the ttl."""
        ...

    def renew(self, holds: Sequence[Hold], timeout: float) -> list[bool | None]:
        """Set each hold's expiry to its ttl again, where it is not a later one; False where it is not held any more,
        None where nobody can tell.

        Raises `StoreUnavailable`."""
        ...

    def release(self, hold: Hold, *, rest: float = 0.0, write: Write | None = None, unanswered: bool = False) -> bool:
        """Write the record, then free the lock or let it rest for ``rest`` seconds; False where it was not held.

        ``unanswered``: leave the token refused, so that a late request of it takes nothing. Raises
        `StoreUnavailable`."""
        ...

    def peek(self, names: Names) -> Taken | None:
        """Who holds the lock now; None where it is free. Raises `StoreUnavailable`."""
        ...

    def close(self) -> None:
        """Close what is open; the next call opens again."""
        ...


def refusal_time(ttl: float) -> float:
    """How long (seconds) the token of an unanswered request stays refused."""
    return max(4 * ttl, 60.0)


def call_timeout(timeout: float, ttl: float) -> float:
    """The bound (seconds) of one call for a lease of ``ttl``: never more than a quarter of it."""
    return min(timeout, ttl / 4)
