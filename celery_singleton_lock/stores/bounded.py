"""A redis-py connection whose operations end at a deadline.

redis-py has a timeout per read, so a server that answers a byte at a time, or a log-in of several round trips, may take
many of them. Here all reads and writes of one operation share one bound.
"""

from __future__ import annotations

from typing import Any

from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection

from ..clock import now
from .resolve import RESOLVER


class BoundedSocket:
    """A socket with a deadline on our clock; what redis-py sets per connection does not count."""

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self._seconds = 0.0
        self._first = False

    @property
    def raw(self) -> Any:
        """The socket itself, for callers that keep a deadline of their own."""
        return self._sock

    def begin(self, seconds: float) -> None:
        """What follows is one operation, of ``seconds`` at most."""
        self._deadline = now() + seconds
        self._first = True
        if seconds != self._seconds:
            self._seconds = seconds
            self._sock.settimeout(seconds)

    def recv_into(self, buffer: Any) -> int:
        """As a socket's. Raises TimeoutError at the deadline."""
        self._arm()
        return int(self._sock.recv_into(buffer))

    def recv(self, size: int) -> bytes:
        """As a socket's. Raises TimeoutError at the deadline."""
        self._arm()
        data: bytes = self._sock.recv(size)
        return data

    def settimeout(self, seconds: float | None) -> None:
        """redis-py's own timeouts: the deadline stands."""

    def _arm(self) -> None:
        if self._first:  # it may take all of the time: no need to look at the clock
            self._first = False
            return
        left = self._deadline - now()
        if left <= 0:
            raise TimeoutError("timed out")
        self._seconds = left
        self._sock.settimeout(left)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Bounded(AbstractConnection):
    """A connection whose steps share one ``deadline`` on our clock: each address of a name, TLS, and all that follows.

    redis-py reads its timeouts anew at each step, and is told what is left.
    """

    deadline = 0.0

    @property
    def socket_timeout(self) -> float:
        return max(0.001, self.deadline - now())

    @socket_timeout.setter
    def socket_timeout(self, value: object) -> None:
        pass

    socket_connect_timeout = socket_timeout

    def _connect(self) -> BoundedSocket:
        sock: Any = super()._connect()  # type: ignore[no-untyped-call, safe-super]  # of the connection class beside it
        return BoundedSocket(sock, self.deadline)


class _Resolved(Connection):
    """redis-py's own connecting, to addresses that were looked up within the deadline; TLS still sees the name."""

    deadline = 0.0

    def _connect(self) -> Any:
        name = self.host
        failure: OSError = OSError("the host's name has no address")
        for address in RESOLVER.addresses(name, self.port, self.deadline - now()):
            self.host = address
            try:
                return super()._connect()  # type: ignore[no-untyped-call]
            except OSError as error:
                failure = error
            finally:
                self.host = name
        raise failure


class Tcp(Bounded, _Resolved):
    """By name or address."""


class Tls(Bounded, SSLConnection, _Resolved):
    """The same, spoken to by TLS."""


class Unix(Bounded, UnixDomainSocketConnection):
    """By a socket's path."""
