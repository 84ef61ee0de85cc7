"""redis-py's connections, and all that is private in redis-py which a bound on every operation needs.

redis-py has a timeout per read, so a server that answers a byte at a time, or a log-in of several round trips, may take
many of them. Here all steps of one operation share one deadline, so three private names cannot be avoided: ``_connect``
is the one place where the socket can be replaced by one with a deadline, ``_sock`` is where it is kept, and
``_parser.on_connect`` is all of the log-in that may be left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection

from ..locks.clock import now
from .resolve import RESOLVER


def skip_log_in(connection: Any) -> None:
    """Stand in for redis-py's own log-in.

    That takes up to four round trips, each with a timeout of its own, and names itself by a command that a minimal ACL
    refuses.
    """
    connection._parser.on_connect(connection)  # see above


class Bounded(AbstractConnection):
    """A connection whose steps share one ``deadline`` on our clock: each address of a name, TLS, and all that follows.

    redis-py reads its timeouts anew at each step, and is told what is left. ``wrap``: makes of the new socket, and the
    deadline, what redis-py is to read from.
    """

    deadline = 0.0
    wrap: Callable[[Any, float], Any]

    @property
    def socket(self) -> Any:
        """What ``wrap`` made of the socket; None where the connection is closed."""
        return self._sock

    @property
    def socket_timeout(self) -> float:
        """Seconds that are left, a millisecond at least."""
        return max(0.001, self.deadline - now())

    @socket_timeout.setter
    def socket_timeout(self, value: object) -> None:
        pass

    socket_connect_timeout = socket_timeout

    def _connect(self) -> Any:
        sock: Any = super()._connect()  # type: ignore[no-untyped-call, safe-super]  # of the connection class beside it
        return self.wrap(sock, self.deadline)


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
