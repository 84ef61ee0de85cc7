"""The connections of one server's store: each call has one to itself, and a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from ..clock import now
from ..keys import Names
from .address import Address
from .forks import forget_in_children
from .link import FINAL, Link
from .refusal import is_elsewhere, unavailable
from .script import Request

#: What else to ask on the same connection, by all that was answered so far and the seconds that are left.
Then = Callable[[list[Any], float], Sequence[Request]]


class Replies(NamedTuple):
    """``unanswered``: the same requests went out before, on a connection that broke before it was answered."""

    values: list[Any]
    unanswered: bool


class Links:
    """The connections of one store. A forked child opens its own."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Link] = []
        forget_in_children(self)

    def call(
        self,
        names: Names | None,
        commands: Sequence[Request],
        seconds: float,
        behind: Callable[[], Request] | None = None,
        then: Then | None = None,
    ) -> Replies:
        """Send ``commands`` together and read their replies within ``seconds``. Raises `StoreUnavailable`.

        ``names``: what they are about; here one server has it all. A connection that breaks is replaced once, and so is
        one to a server that is the master no more where another may be, so every command must bear to be carried out
        twice. Where no answer comes in time, ``behind`` follows on the same connection, which is then closed.
        """
        end = now() + seconds
        unanswered = False  # the requests went out on a connection that broke: they may have been carried out, once
        may_follow = self.address.follows  # to another server, where this one did not carry them out or is not there
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                link = Link(self.address)
            try:
                values = link.exchange(commands, seconds)
                if not (may_follow and any(map(is_elsewhere, values)) and now() < end):
                    while then is not None and (more := then(values, end - now())):
                        values += link.exchange(more, end - now())
                    self._idle.append(link)
                    return Replies(values, unanswered)
                may_follow = False
            except RedisError as error:
                cut = link.owed > 0 and not isinstance(error, FINAL)
                lost = not link.owed and may_follow
                link.close(behind)
                # Twice at most: who is cut off again learns that nobody can tell.
                if not (cut or lost) or (cut and unanswered) or now() >= end:
                    raise unavailable(error) from error
                unanswered = unanswered or cut
                may_follow = may_follow and not lost
            except BaseException:  # a time limit, say, while a reply is still to come
                link.close(behind)
                raise
            link.close()
            self.close()  # the idle ones are most likely as dead
            self.address.doubt()
            seconds = end - now()

    def call_all(self, commands: Sequence[tuple[Names, Request]], seconds: float) -> list[Any]:
        """The reply to each command, or the error that stands for it. Raises `StoreUnavailable`."""
        return self.call(None, [command for _, command in commands], seconds).values

    def servers(self, seconds: float) -> list[Address]:
        """Where the store's servers are now. Raises `StoreUnavailable`."""
        try:
            return [self.address.locate(seconds)]
        except RedisError as error:
            raise unavailable(error) from error

    def close(self) -> None:
        """Close the idle connections; the next call opens one."""
        while self._idle:
            self._idle.pop().close()

    def forget(self) -> None:
        """Leave the connections alone: they are another process's, whose replies must not be read here."""
        self._idle = []
