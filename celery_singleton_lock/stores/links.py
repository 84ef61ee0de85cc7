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
        unanswered = moved = False
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                link = Link(self.address)
            try:
                values = link.exchange(commands, seconds)
                if self.address.follows and not moved and any(map(is_elsewhere, values)) and now() < end:
                    moved = True
                    seconds = self._elsewhere(link, end)
                    continue
                while then is not None and (more := then(values, end - now())):
                    values += link.exchange(more, end - now())
                self._idle.append(link)
                return Replies(values, unanswered)
            except RedisError as error:
                cut = link.owed > 0 and not isinstance(error, FINAL)
                lost = not link.owed and not moved and self.address.follows
                link.close(behind)
                seconds = end - now()
                if not (cut or lost) or (cut and unanswered) or seconds <= 0:
                    raise unavailable(error) from error
                unanswered = unanswered or cut
                moved = moved or lost
                self.close()  # the idle ones are most likely as dead
                self.address.doubt()
            except BaseException:  # a time limit, say, while a reply is still to come
                link.close(behind)
                raise

    def _elsewhere(self, link: Link, end: float) -> float:
        link.close()
        self.close()
        self.address.doubt()
        return end - now()

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
