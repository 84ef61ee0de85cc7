"""The connections of one server's store: each call has one to itself, and a bound."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from redis.exceptions import RedisError

from ..clock import now
from .link import FINAL, Address, Link, unavailable
from .script import Command


class Replies(NamedTuple):
    """``unanswered``: the same requests went out before, on a connection that broke before it was answered."""

    values: list[Any]
    unanswered: bool


class Links:
    """The connections of one store. A forked child opens its own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Link] = []
        forget_in_children(self)

    def call(self, commands: Sequence[Command], seconds: float, behind: Callable[[], Command] | None = None) -> Replies:
        """Send ``commands`` together and read their replies within ``seconds``. Raises `StoreUnavailable`.

        A connection that breaks is replaced once, so every command must bear to be carried out twice. Where no answer
        comes in time, ``behind`` follows on the same connection, which is then closed.
        """
        end = now() + seconds
        unanswered = False
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                link = Link(self._address)
            try:
                values = link.exchange(commands, seconds)
                self._idle.append(link)
                return Replies(values, unanswered)
            except RedisError as error:
                cut = link.owed > 0 and not isinstance(error, FINAL)
                link.close(behind)
                seconds = end - now()
                if not cut or unanswered or seconds <= 0:
                    raise unavailable(error) from error
                unanswered = True
                self.close()  # the idle ones are most likely as dead
            except BaseException:  # a time limit, say, while a reply is still to come
                link.close(behind)
                raise

    def close(self) -> None:
        """Close the idle connections; the next call opens one."""
        while self._idle:
            self._idle.pop().close()

    def forget(self) -> None:
        """Leave the connections alone: they are another process's, whose replies must not be read here."""
        self._idle = []


_all: WeakSet[Any] = WeakSet()


def forget_in_children(owner: Any) -> None:
    """Have ``owner.forget()`` called in every forked child."""
    _all.add(owner)


def _forget_all() -> None:
    for owner in list(_all):
        owner.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
