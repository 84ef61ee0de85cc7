"""Locks on one Redis or Valkey server: one round trip a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from ..errors import StoreUnavailable
from ..keys import Names
from ..protocol import (
    FENCE_TTL,
    Answer,
    Ask,
    Granted,
    Hold,
    Holder,
    Recorded,
    Taken,
    Write,
    call_timeout,
    refusal_time,
)
from .link import Address, unavailable
from .links import Links
from .script import ACQUIRE, PEEK, RELEASE, RENEW, Command

_FENCE_MS = int(FENCE_TTL * 1000)


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, never 0: PEXPIRE 0 would delete the lock."""
    return max(1, round(seconds * 1000))


class RedisStore:
    """The store contract on one server. Raises `LockConfigError` for a malformed URL; connects on first use."""

    shared = True

    def __init__(self, url: str, *, prefix: str, timeout: float) -> None:
        self.prefix = prefix
        self.timeout = timeout
        self._address = Address(url)
        self._links = Links(self._address)

    def __repr__(self) -> str:
        return f"<RedisStore {self._address.shown}>"

    def acquire(self, ask: Ask) -> Answer:
        """See `Store.acquire`."""
        names, token, holder, ttl, record_id, rank, _ = ask
        keys = [names.lock, names.fence, names.refused(token), names.listing]
        if record_id is not None:
            keys.append(names.record(record_id))
        command = ACQUIRE(keys, token, holder.encode(), milliseconds(ttl), _FENCE_MS, names.resource, rank, 0)
        undo = Hold(names, token, 0, ttl)
        bound = min(self.timeout, ask.bound)
        replies = self._links.call([command], bound, lambda: _release(undo, unanswered=True))
        verdict, *rest = _checked(replies.values[0])
        if verdict == b"granted":
            return Granted(int(rest[0]), replies.unanswered)
        if replies.unanswered:  # the late request may yet be carried out: it must find its token refused
            try:
                self.release(undo, unanswered=True)
            except StoreUnavailable:
                pass  # what it takes then ends with its ttl
        return Recorded.decode(rest[0], rest[1] / 1000) if verdict == b"recorded" else _taken(*rest)

    def renew(self, holds: Sequence[Hold], timeout: float) -> list[bool | None]:
        """See `Store.renew`."""
        commands = [_renew(hold) for hold in holds]
        return [_checked(reply) == 1 for reply in self._links.call(commands, timeout).values]

    def release(self, hold: Hold, *, rest: float = 0.0, write: Write | None = None, unanswered: bool = False) -> bool:
        """See `Store.release`."""
        command = _release(hold, rest, write, unanswered)
        reply = self._links.call([command], call_timeout(self.timeout, hold.ttl)).values[0]
        return bool(_checked(reply) == 1)

    def peek(self, names: Names) -> Taken | None:
        """See `Store.peek`."""
        verdict, *rest = _checked(self._links.call([PEEK([names.lock])], self.timeout).values[0])
        return _taken(*rest) if verdict == b"taken" else None

    def close(self) -> None:
        """See `Store.close`."""
        self._links.close()


def _renew(hold: Hold, *, again: bool = False) -> Command:
    names = hold.names
    keys = [names.lock, names.fence, names.refused(hold.token), names.listing]
    holder = hold.holder if again else ""
    return RENEW(keys, hold.token, milliseconds(hold.ttl), _FENCE_MS, names.resource, hold.fence, holder)


def _release(hold: Hold, rest: float = 0.0, write: Write | None = None, unanswered: bool = False) -> Command:
    names = hold.names
    keys = [names.lock, names.fence, names.refused(hold.token), names.listing]
    refusal = milliseconds(refusal_time(hold.ttl)) if unanswered else 0
    args = (hold.token, hold.fence, milliseconds(rest) if rest > 0 else 0, refusal, names.resource, 0)
    if write is None:
        return RELEASE(keys, *args)
    keys.append(names.record(write.record_id))
    return RELEASE(keys, *args, write.encode(hold.fence), milliseconds(write.ttl))


def _checked(reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        raise unavailable(reply) from reply
    return reply


def _taken(lock: bytes, left: int) -> Taken:
    remaining = left / 1000 if left >= 0 else None
    parts = lock.split(b":", 3)
    if len(parts) != 4 or parts[0] not in (b"h", b"r") or not parts[2].isdigit():
        return Taken(Holder(), remaining)  # set by hand, or by another program
    state, token, fence, holder = parts
    return Taken(Holder.decode(holder), remaining, state == b"r", token.decode(), int(fence))
