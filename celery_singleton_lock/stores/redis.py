"""Locks on one Redis or Valkey server: one round trip a call."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import StoreUnavailable
from ..keys import Names
from ..protocol import Answer, Ask, Granted, Hold, Taken, Write, call_timeout
from . import commands
from .link import Address
from .links import Links


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
        undo = Hold(ask.names, ask.token, 0, ask.ttl)
        bound = min(self.timeout, ask.bound)
        replies = self._links.call([commands.acquire(ask)], bound, lambda: commands.release(undo, unanswered=True))
        answer = commands.answer(replies.values[0])
        assert answer is not None
        if isinstance(answer, Granted):
            return answer._replace(unanswered=replies.unanswered)
        if replies.unanswered:  # the late request may yet be carried out: it must find its token refused
            try:
                self.release(undo, unanswered=True)
            except StoreUnavailable:
                pass  # what it takes then ends with its ttl
        return answer

    def renew(self, holds: Sequence[Hold], timeout: float) -> list[bool | None]:
        """See `Store.renew`."""
        replies = self._links.call([commands.renew(hold) for hold in holds], timeout)
        return [commands.checked(reply) == 1 for reply in replies.values]

    def release(self, hold: Hold, *, rest: float = 0.0, write: Write | None = None, unanswered: bool = False) -> bool:
        """See `Store.release`."""
        command = commands.release(hold, rest, write, unanswered)
        return bool(commands.checked(self._links.call([command], call_timeout(self.timeout, hold.ttl)).values[0]) == 1)

    def peek(self, names: Names) -> Taken | None:
        """See `Store.peek`."""
        answer = commands.answer(self._links.call([commands.peek(names)], self.timeout).values[0])
        return answer if isinstance(answer, Taken) else None

    def close(self) -> None:
        """See `Store.close`."""
        self._links.close()
