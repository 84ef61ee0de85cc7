"""Locks on one Redis or Valkey server, alone, with replicas or under Sentinels: one round trip a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.exceptions import RedisError

from ..errors import StoreUnavailable
from ..keys import Names
from ..protocol import Answer, Ask, Granted, Hold, Taken, Write, call_timeout
from . import commands
from .address import Address
from .links import Links, Replies, Then
from .refusal import unavailable
from .script import Request, plain
from .sentinel import SentinelAddress
from .urls import scheme_of

#: What is left of a call's time, in seconds, when replicas should have acknowledged: a server looks at the end of a
#: WAIT ten times a second, and then an undo may have to follow.
RESERVE = 0.15


class Route(Protocol):
    """The way to the server that has a resource; see `Links` for each call."""

    def call(
        self,
        names: Names | None,
        commands: Sequence[Request],
        seconds: float,
        behind: Callable[[], Request] | None = None,
        then: Then | None = None,
    ) -> Replies: ...

    def call_all(self, commands: Sequence[tuple[Names, Request]], seconds: float) -> list[Any]: ...

    def servers(self, seconds: float) -> list[Address]: ...

    def close(self) -> None: ...


class RedisStore:
    """The store contract on one server. Raises `LockConfigError` for a malformed URL; connects on first use.

    ``min_replicas``: how many replicas must have acknowledged a lock before it counts as granted.
    """

    shared = True
    route: Route

    def __init__(self, url: str, *, prefix: str, timeout: float, min_replicas: int = 0) -> None:
        address = SentinelAddress(url) if scheme_of(url) == "sentinel" else Address(url)
        self._set_up(Links(address), address.shown, prefix, timeout, min_replicas)

    def _set_up(self, route: Route, shown: str, prefix: str, timeout: float, min_replicas: int) -> None:
        self.prefix = prefix
        self.timeout = timeout
        self.route = route
        self.shown = shown
        self._min_replicas = min_replicas

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shown}>"

    def acquire(self, ask: Ask) -> Answer:
        """See `Store.acquire`. With ``min_replicas`` a grant costs a second round trip, and the replicas' own."""
        undo = Hold(ask.names, ask.token, 0, ask.ttl)
        bound = ask.bound(self.timeout)
        command, behind = commands.acquire(ask), lambda: commands.release(undo, unanswered=True)
        then = self._wait(undo) if self._min_replicas else None
        replies = self.route.call(ask.names, [command], bound, behind, then)
        answer = commands.answer(replies.values[0])
        assert answer is not None
        if isinstance(answer, Granted):
            self._check_replicas(replies.values)
            return answer._replace(unanswered=replies.unanswered)
        if replies.unanswered:  # the late request may yet be carried out: it must find its token refused
            try:
                self.release(undo, unanswered=True)
            except StoreUnavailable:
                pass  # what it takes then ends with its ttl
        return answer

    def _wait(self, undo: Hold) -> Then:
        def then(values: list[Any], left: float) -> Sequence[Request]:
            if len(values) == 1 and isinstance(commands.answer(values[0]), Granted):
                return [plain("WAIT", self._min_replicas, commands.milliseconds(left - max(RESERVE, left / 4)))]
            if len(values) == 2 and self._replicas_problem(values):
                return [commands.release(undo)]
            return ()

        return then

    def _replicas_problem(self, values: list[Any]) -> StoreUnavailable | None:
        count = values[1]
        if isinstance(count, RedisError):
            return unavailable(count)
        if count < self._min_replicas:
            return StoreUnavailable(f"{count} of {self._min_replicas} replicas acknowledged the lock in time")
        return None

    def _check_replicas(self, values: list[Any]) -> None:
        problem = self._replicas_problem(values) if self._min_replicas else None
        if problem is not None:
            raise problem

    def renew(self, holds: Sequence[Hold], timeout: float) -> list[bool | None]:
        """See `Store.renew`."""
        replies = self.route.call_all([(hold.names, commands.renew(hold)) for hold in holds], timeout)
        failed = [reply for reply in replies if isinstance(reply, (RedisError, StoreUnavailable))]
        if failed and len(failed) == len(replies):
            commands.checked(failed[0])
        return [None if isinstance(reply, (RedisError, StoreUnavailable)) else reply == 1 for reply in replies]

    def release(self, hold: Hold, *, rest: float = 0.0, write: Write | None = None, unanswered: bool = False) -> bool:
        """See `Store.release`."""
        command = commands.release(hold, rest, write, unanswered)
        replies = self.route.call(hold.names, [command], call_timeout(self.timeout, hold.ttl))
        # Sent twice, the first may have freed it: what is not known is not called lost.
        return bool(commands.checked(replies.values[0]) == 1) or replies.unanswered

    def peek(self, names: Names) -> Taken | None:
        """See `Store.peek`."""
        answer = commands.answer(self.route.call(names, [commands.peek(names)], self.timeout).values[0])
        return answer if isinstance(answer, Taken) else None

    def close(self) -> None:
        """See `Store.close`."""
        self.route.close()
