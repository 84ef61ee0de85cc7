"""What is asked of a server, as commands, and what its replies mean."""

from __future__ import annotations

import re
from typing import Any

from redis.exceptions import RedisError

from ..errors import StoreUnavailable
from ..keys import Names
from ..protocol import FENCE_TTL, Ask, Granted, Hold, Holder, Recorded, Taken, Write, refusal_time
from .refusal import unavailable
from .script import ACQUIRE, COPY, PEEK, RELEASE, RENEW, Command

_LOCK = re.compile(rb"([hr]):([0-9a-f]+):(\d{1,20}):(.*)", re.DOTALL)
_FENCE_MS = int(FENCE_TTL * 1000)


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, never 0: PEXPIRE 0 would delete the lock."""
    return max(1, round(seconds * 1000))


def acquire(ask: Ask, proposal: int = 0) -> Command:
    """``proposal``: the least fence to grant; 0 leaves it to the server's clock."""
    names = ask.names
    keys = [names.lock, names.fence, names.refused(ask.token), names.listing]
    if ask.record_id is not None:
        keys.append(names.record(ask.record_id))
    ttl = milliseconds(ask.ttl)
    return ACQUIRE(keys, ask.token, ask.holder.encode(), ttl, _FENCE_MS, names.resource, ask.rank, proposal)


def renew(hold: Hold, *, again: bool = False) -> Command:
    """``again``: set the lock again where the server has forgotten it and knows no newer fence."""
    names = hold.names
    keys = [names.lock, names.fence, names.refused(hold.token), names.listing]
    holder = hold.holder if again else ""
    return RENEW(
        keys, hold.token, milliseconds(hold.ttl), _FENCE_MS, names.resource, hold.fence, holder, int(hold.exact)
    )


def release(
    hold: Hold, rest: float = 0.0, write: Write | None = None, unanswered: bool = False, *, raise_fence: bool = False
) -> Command:
    """``raise_fence``: the server's stored fence goes past the hold's, whoever holds the lock there."""
    names = hold.names
    keys = [names.lock, names.fence, names.refused(hold.token), names.listing]
    refusal = milliseconds(refusal_time(hold.ttl)) if unanswered else 0
    raised = _FENCE_MS if raise_fence else 0
    args = (hold.token, hold.fence, milliseconds(rest) if rest > 0 else 0, refusal, names.resource, raised)
    if write is None:
        return RELEASE(keys, *args)
    keys.append(names.record(write.record_id))
    return RELEASE(keys, *args, write.encode(hold.fence), milliseconds(write.ttl))


def copy(names: Names, record: Recorded, record_id: str) -> Command:
    """Keep a record that another server has, unless a newer one is there."""
    return COPY([names.record(record_id)], record.encode(), record.fence, milliseconds(record.ttl))


def peek(names: Names) -> Command:
    """Who holds the lock."""
    return PEEK([names.lock])


def answer(reply: Any) -> Granted | Taken | Recorded | None:
    """What the reply to `acquire` or `peek` means; None where the lock is free. Raises `StoreUnavailable`."""
    if isinstance(reply, bytes):
        return Granted(int(reply))
    verdict, *rest = checked(reply)
    if verdict == b"recorded":
        return Recorded.decode(rest[0], rest[1] / 1000)
    return _taken(*rest) if verdict == b"taken" else None


def checked(reply: Any) -> Any:
    """The reply itself. Raises `StoreUnavailable` for a server's error."""
    if isinstance(reply, StoreUnavailable):
        raise reply
    if isinstance(reply, RedisError):
        raise unavailable(reply) from reply
    return reply


def _taken(lock: bytes, left: int) -> Taken:
    remaining = left / 1000 if left >= 0 else None
    found = _LOCK.fullmatch(lock)
    if found is None:
        return Taken(Holder(), remaining)  # set by hand, or by another program
    state, token, fence, holder = found.groups()
    return Taken(Holder.decode(holder), remaining, state == b"r", token.decode(), int(fence))
