"""One server of several, asked beside the others: its connections, and what they still owe."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import RedisError

from ..errors import StoreUnavailable
from ..locks.clock import now
from ..locks.forks import forget_in_children
from .address import Address
from .connection import Link, unknown_scripts
from .errors import to_store_unavailable
from .requests import Command, Request, Script
from .stream import Stream

#: Seconds after a failed connect before the next one: a dead server costs one thread now and then, not one a call.
PAUSE = 0.5
#: Seconds that a connection may owe a reply before it is closed.
MAX_PARKED_SECONDS = 300.0
#: Connections that may owe a reply at the same time: a server that answers late is not asked without end.
MAX_PARKED = 64
#: Releases that may wait for a connection, the newest of them.
MAX_DEFERRED = 256
#: How many parked connections a call looks at: one whose reply never comes must neither hide the others nor cost much.
LOOKS = 4


class _Parked(NamedTuple):
    stream: Stream
    token: str | None
    last: Sequence[Request]  # what was sent on it last
    since: float

    def undone(self) -> list[Request]:
        """The releases that the server could not carry out, since it has forgotten its scripts."""
        if not self.last:
            return []
        unknown = unknown_scripts(self.stream.values[-len(self.last) :])
        requests = [self.last[place] for place in unknown]
        return [one for one in requests if isinstance(one, Command) and one.script.must_arrive]


class Node:
    """The connections to one server. Taking one never blocks: who finds none goes on with the other servers.

    A call is decided by a majority, so a connection may come back with a reply outstanding. It is parked: until the
    reply has been counted off, only a request of the same owner token may follow on it.
    """

    def __init__(
        self, address: Address, timeout: float, scripts: Sequence[Script], servers: dict[int, str] | None = None
    ) -> None:
        """``timeout``: the bound of a connect, in seconds; ``scripts``: what a new connection teaches its server.

        ``servers``: shared by the nodes of a store where each has a vote, each server's own id by node.
        """
        self.address = address
        self._timeout = timeout
        self._scripts = scripts
        self._servers = {} if servers is None else servers
        self._reset()
        forget_in_children(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Stream] = []
        self._parked: deque[_Parked] = deque()
        self._deferred: deque[tuple[float, Sequence[Request]]] = deque(maxlen=MAX_DEFERRED)
        self._connecting = False
        self._closings = 0
        self._not_before = 0.0
        self._error = StoreUnavailable(f"{self.address.display_name}: not connected yet")

    def take(self, token: str | None = None) -> Stream | None:
        """A connection, or None.

        One that owes ``token``'s own reply is the first choice: what follows on it is carried out after that request,
        however late.
        """
        with self._lock:
            if self._parked:
                own = self._own(token) if token is not None else None
                if own is not None:
                    return own
                self._count_off()
            return self._idle.pop() if self._idle else None

    def _own(self, token: str) -> Stream | None:
        for place, parked in enumerate(self._parked):
            if parked.token == token:
                del self._parked[place]
                return parked.stream
        return None

    def _count_off(self) -> None:
        """Count off the replies that have come.

        An entry leaves the queue before its connection goes elsewhere: an interrupted call may lose a connection, never
        have two callers share one.
        """
        for _ in range(min(len(self._parked), LOOKS)):
            parked = self._parked[0]
            stream = parked.stream
            try:
                settled = stream.pull()
                if settled and (again := parked.undone()):
                    self._parked[0] = parked._replace(last=again)
                    stream.send(b"".join([command.packed(by_text=True) for command in again]), len(again))
                    settled = False
            except RedisError:
                self._parked.popleft()
                stream.close()
                continue
            if settled:
                self._parked.popleft()
                self._return_to_pool(stream)
            elif now() - parked.since > MAX_PARKED_SECONDS:
                self._parked.popleft()
                stream.close()
            else:
                self._parked.rotate(-1)

    def _return_to_pool(self, stream: Stream) -> None:
        """``stream`` owes nothing: it carries deferred requests, or is idle."""
        stream.values = []
        deferred: list[Request] = []
        while self._deferred and len(deferred) < LOOKS * 8:
            until, commands = self._deferred.popleft()
            if until > now():
                deferred += commands
        if not deferred:
            self._idle.append(stream)
            return
        try:
            stream.send(b"".join([command.packed() for command in deferred]), len(deferred))
        except RedisError:
            stream.close()
            return
        if stream.sound:
            self._parked.append(_Parked(stream, None, deferred, now()))
        else:
            stream.close()

    def defer(self, commands: Sequence[Request], until: float) -> None:
        """Have ``commands`` sent on the next connection that is free, unless that comes after ``until``.

        A call that frees a lock must not wait for one, and must not forget a server either.
        """
        with self._lock:
            self._deferred.append((until, commands))
            if self._idle:
                self._return_to_pool(self._idle.pop())

    def give(self, stream: Stream, token: str | None = None, last: Sequence[Request] = ()) -> bool:
        """Take a connection back, with what it may owe: ``last`` for ``token``. False where it had to be closed."""
        if not stream.sound:  # a request sent by halves, or a reply of which a part is lost
            stream.close()
            return False
        with self._lock:
            if stream.owed:
                self._parked.append(_Parked(stream, token, last, now()))
            else:
                self._return_to_pool(stream)
        return True

    def settle(self) -> tuple[int, int]:
        """Count off the replies that have come. Returns how many connections are free, and how many still owe one."""
        with self._lock:
            self._count_off()
            return len(self._idle), len(self._parked)

    def drop_idle(self) -> None:
        """One connection broke: the idle ones are most likely as dead."""
        with self._lock:
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.close()

    def connect_soon(self) -> StoreUnavailable | None:
        """Open a connection in the background, one at a time. Returns why that is of no use now, or None."""
        with self._lock:
            if self._connecting:
                return None
            if now() < self._not_before:
                return StoreUnavailable(*self._error.args)  # anew: one that is raised again keeps every traceback
            if len(self._parked) >= MAX_PARKED:
                return StoreUnavailable(f"{self.address.display_name}: too many replies are outstanding")
            self._connecting = True
        try:
            threading.Thread(target=self._connect, name="singleton-lock-connect", daemon=True).start()
        except RuntimeError:  # the system has no thread to give
            self._connecting = False
            return StoreUnavailable(f"{self.address.display_name}: no thread can be started to connect")
        except BaseException:
            self._connecting = False
            raise
        return None

    def _connect(self) -> None:
        link = Link(self.address)
        closings = self._closings
        try:
            link.connect(self._timeout)
            self._recognise(link.load_scripts_and_run_id(self._scripts, self._timeout))
            stream = Stream(link)
        except Exception as error:  # noqa: BLE001  # a malformed host name is no driver's error, say
            link.close()
            if isinstance(error, RedisError):
                error = to_store_unavailable(error)
            found = error if isinstance(error, StoreUnavailable) else StoreUnavailable(type(error).__name__)
            self._connected(StoreUnavailable(f"{self.address.display_name}: {found.reason}", found.denied), closings)
        else:
            self._connected(stream, closings)

    def _recognise(self, server: str | None) -> None:
        """Refuse a server that is another node already, under another name: its vote would count twice."""
        if server is None:
            return
        with self._lock:
            self._servers.pop(id(self), None)
            if server in self._servers.values():
                raise StoreUnavailable("it stands in singleton_lock_url twice; its vote counts once", denied=True)
            self._servers[id(self)] = server

    def _connected(self, found: Stream | StoreUnavailable, closings: int) -> None:
        with self._lock:
            if isinstance(found, Stream) and closings != self._closings:  # the store was closed meanwhile
                found.close()
            elif isinstance(found, Stream):
                self._return_to_pool(found)
            else:
                self._error = found
                self._not_before = now() + PAUSE
            self._connecting = False

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            self._closings += 1
        self.drop_idle()
        with self._lock:
            parked, self._parked = self._parked, deque()
        for entry in parked:
            entry.stream.close()

    def forget(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._reset()
