"""What a store answers when it is asked for a lock. A conflict is an answer: `Taken`."""

from __future__ import annotations

from typing import NamedTuple


class Holder(NamedTuple):
    """Who holds a lock, for logs, events and lineage: no argument of the call is in it."""

    task_id: str | None = None
    task: str | None = None
    host: str | None = None
    pid: int | None = None


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
    """A quorum's vote went to nobody; another ballot, with another token and after a random delay, may win it.

    ``round_trip``: what one took, in seconds.
    """

    round_trip: float


Answer = Granted | Taken | Recorded | SplitVote
