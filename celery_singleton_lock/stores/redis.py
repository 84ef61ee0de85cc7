"""Locks on one Redis or Valkey server, alone, with replicas or under Sentinels: one round trip a call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from redis.exceptions import RedisError

from ..errors import StoreUnavailable
from ..keys.names import Names
from ..locks.answers import Answer, Granted, Taken
from ..locks.protocol import AcquireRequest, HeldLock, RecordWrite, ServerState
from ..locks.terms import call_timeout
from ..transport.address import Address
from ..transport.connection import Exchange, FollowUp, Links, Replies
from ..transport.errors import to_store_unavailable
from ..transport.requests import Request, plain
from ..transport.sentinel import SentinelAddress
from ..transport.urls import Url
from . import scripts
from .inspect import look

#: What is left of a call's time, in seconds, when replicas should have acknowledged: a server looks at the end of a
#: WAIT ten times a second, and then an undo may have to follow.
RESERVE = 0.15


class Route(Protocol):
    """The way to the server that has a resource."""

    def call(self, exchange: Exchange, seconds: float) -> Replies:
        """See `Links.call`."""

    def call_all(self, commands: Sequence[tuple[str, Request]], seconds: float) -> list[Any]:
        """See `Links.call_all`."""

    def servers(self, seconds: float) -> list[Address]:
        """See `Links.servers`."""

    def close(self) -> None:
        """See `Links.close`."""


class RedisStore:
    """The store contract on one server, alone, with replicas or under Sentinels; connects on first use.

    ``route``: the way to its server; ``display_name``: for logs; ``min_replicas``: how many replicas must have
    acknowledged a lock before it counts as granted.
    """

    shared = True
    majority = 1

    def __init__(self, route: Route, display_name: str, *, prefix: str, timeout: float, min_replicas: int = 0) -> None:
        self.prefix = prefix
        self.timeout = timeout
        self.route = route
        self.display_name = display_name
        self._min_replicas = min_replicas

    @classmethod
    def at(cls, url: Url, *, prefix: str, timeout: float, min_replicas: int = 0) -> RedisStore:
        """The store on the server, or behind the Sentinels, of ``url``. Raises `LockConfigError`."""
        address = SentinelAddress(url) if url.kind == "sentinel" else Address(url)
        return cls(Links(address), url.display_name, prefix=prefix, timeout=timeout, min_replicas=min_replicas)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.display_name}>"

    def acquire(self, request: AcquireRequest) -> Answer:
        """See `Store.acquire`. With ``min_replicas`` a grant costs a second round trip, and the replicas' own."""
        lock = HeldLock(request.names, request.token, 0, request.ttl)
        bound = request.timeout if request.timeout is not None else call_timeout(self.timeout, request.ttl)
        undo = partial(scripts.release, lock, unanswered=True)
        follow_up = self._wait_for_replicas(lock) if self._min_replicas else None
        exchange = Exchange(request.names.bucket, [scripts.acquire(request)], undo, follow_up)
        replies = self.route.call(exchange, bound)
        answer = scripts.answer(replies.values[0])
        assert answer is not None
        if isinstance(answer, Granted):
            if self._min_replicas and (problem := self._replicas_problem(replies.values)) is not None:
                raise problem
            return Granted(answer.fence, unanswered=True) if replies.unanswered else answer
        if replies.unanswered:  # the late request may yet be carried out: it must find its token's tombstone
            with suppress(StoreUnavailable):  # what it takes then ends with its ttl
                self.release(lock, unanswered=True)
        return answer

    def _wait_for_replicas(self, lock: HeldLock) -> FollowUp:
        def follow_up(values: list[Any], left: float) -> Sequence[Request]:
            if len(values) == 1 and isinstance(scripts.answer(values[0]), Granted):
                return [plain("WAIT", self._min_replicas, scripts.milliseconds(left - max(RESERVE, left / 4)))]
            if len(values) == 2 and self._replicas_problem(values):
                return [scripts.release(lock)]
            return ()

        return follow_up

    def _replicas_problem(self, values: list[Any]) -> StoreUnavailable | None:
        count = values[1]
        if isinstance(count, RedisError):
            return to_store_unavailable(count)
        if count < self._min_replicas:
            return StoreUnavailable(f"{count} of {self._min_replicas} replicas acknowledged the lock in time")
        return None

    def renew(self, locks: Sequence[HeldLock], timeout: float) -> list[bool | None]:
        """See `Store.renew`."""
        replies = self.route.call_all([(lock.names.bucket, scripts.renew(lock)) for lock in locks], timeout)
        failed = [reply for reply in replies if isinstance(reply, (RedisError, StoreUnavailable))]
        if failed and len(failed) == len(replies):
            scripts.checked(failed[0])
        return [None if isinstance(reply, (RedisError, StoreUnavailable)) else reply == 1 for reply in replies]

    def release(
        self, lock: HeldLock, *, rest: float = 0.0, write: RecordWrite | None = None, unanswered: bool = False
    ) -> bool:
        """See `Store.release`."""
        exchange = Exchange(lock.names.bucket, [scripts.release(lock, rest, write, unanswered)])
        replies = self.route.call(exchange, call_timeout(self.timeout, lock.ttl))
        # Sent twice, the first may have freed it: what is not known is not called lost.
        return bool(scripts.checked(replies.values[0]) == 1) or replies.unanswered

    def peek(self, names: Names) -> Taken | None:
        """See `Store.peek`."""
        replies = self.route.call(Exchange(names.bucket, [scripts.peek(names)]), self.timeout)
        answer = scripts.answer(replies.values[0])
        return answer if isinstance(answer, Taken) else None

    def inspect(self) -> list[ServerState]:
        """See `Store.inspect`."""
        try:
            return [look(address, self.timeout) for address in self.route.servers(self.timeout)]
        except StoreUnavailable as error:
            return [ServerState(self.display_name, error)]

    def close(self) -> None:
        """See `Store.close`."""
        self.route.close()
