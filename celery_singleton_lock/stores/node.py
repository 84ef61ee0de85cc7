"""One server of several, asked beside the others: its connections, and what they still owe."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from redis.exceptions import RedisError

from ..clock import now
from ..errors import StoreUnavailable
from .address import Address
from .link import Link
from .links import forget_in_children
from .refusal import unavailable

#: Seconds after a failed connect before the next one: a dead server costs one thread now and then, not one a call.
PAUSE = 0.5
#: Seconds that a connection may owe a reply before it is given up. Any lease asked for on it is over by then.
PATIENCE = 300.0
#: Connections that may owe a reply at the same time: a server that answers late is not asked without end.
MOST_PARKED = 64


class _Parked(NamedTuple):
    link: Link
    tokens: frozenset[str]
    since: float


class Node:
    """The connections to one server. Taking one never blocks: who finds none goes on with the other servers.

    A call is decided by a majority, so a connection may come back with a reply outstanding. It is parked: until the
    reply has been counted off, only a request of the same owner token may follow on it.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self.address = address
        self._timeout = timeout
        self._reset()
        forget_in_children(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._parked: list[_Parked] = []
        self._connecting = False
        self._not_before = 0.0
        self._error = StoreUnavailable(f"{self.address.shown}: not connected yet")

    def take(self, token: str | None = None) -> Link | None:
        """A connected link, or None. One that owes ``token``'s own reply is the first choice: what follows on it is
        read after that."""
        with self._lock:
            own = self._settle(token)
            if own is not None:
                return own
            return self._idle.pop() if self._idle else None

    def _settle(self, token: str | None) -> Link | None:
        """Count off the replies that have come, and find ``token``'s own link."""
        own: Link | None = None
        waiting: list[_Parked] = []
        for parked in self._parked:
            if own is None and token in parked.tokens:
                own = parked.link
            elif parked.link.has_data():
                self._count_off(parked.link)
            elif now() - parked.since > PATIENCE:
                parked.link.close()
            else:
                waiting.append(parked)
        self._parked = waiting
        return own

    def _count_off(self, link: Link) -> None:
        try:
            link.receive(0.05)
        except RedisError:
            link.close()
        else:
            self._idle.append(link)

    def give(self, link: Link, tokens: Iterable[str]) -> None:
        """Take a link back, with what it may owe for ``tokens``."""
        with self._lock:
            if link.owed:
                self._parked.append(_Parked(link, frozenset(tokens), now()))
            else:
                self._idle.append(link)

    def drop_idle(self) -> None:
        """One link broke: the idle ones are most likely as dead."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def connect_soon(self) -> StoreUnavailable | None:
        """Open a connection in the background, one at a time. Returns why that is of no use now, or None."""
        with self._lock:
            if len(self._parked) >= MOST_PARKED:
                return StoreUnavailable(f"{self.address.shown}: too many replies are outstanding")
            if self._connecting:
                return None
            if now() < self._not_before:
                return self._error
            self._connecting = True
        threading.Thread(target=self._connect, name="singleton-lock-connect", daemon=True).start()
        return None

    def _connect(self) -> None:
        link = Link(self.address)
        try:
            link.connect(self._timeout)
        except RedisError as error:
            link.close()
            with self._lock:
                found = unavailable(error)
                self._error = StoreUnavailable(f"{self.address.shown}: {found.reason}", found.denied)
                self._not_before = now() + PAUSE
                self._connecting = False
        else:
            with self._lock:
                self._idle.append(link)
                self._connecting = False

    def close(self) -> None:
        """Close every connection."""
        self.drop_idle()
        with self._lock:
            parked, self._parked = self._parked, []
        for entry in parked:
            entry.link.close()

    def forget(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._reset()
