"""Connections to one server: each call has one to itself, and a bound."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redis.exceptions import AuthenticationError, AuthorizationError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..locks.clock import now
from ..locks.forks import forget_in_children
from .address import PING, Address
from .errors import NOT_CARRIED_OUT, is_not_master, to_store_unavailable
from .requests import Request, Script, plain

INFO = plain("INFO", "server")


class BoundedSocket:
    """A socket with a deadline on our clock; what redis-py sets per connection does not count."""

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock = sock
        self.sendall = sock.sendall
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


#: After these a new connection would fare no better.
FINAL = (RedisTimeoutError, AuthenticationError, AuthorizationError)


class Link:
    """One connection. redis-py has a timeout per connection; here each operation brings its own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None  # redis-py has few types
        self._socket: Any = None  # the connection's, while it is open
        self.owed = 0  # replies that have not come yet

    def socket(self) -> Any:
        """The connected socket, without a bound, for who waits on several at once."""
        return self._socket.raw

    def connect(self, seconds: float) -> None:
        """Find the server, open the connection and log in, all within ``seconds``. Raises RedisError."""
        end = now() + seconds
        self._connection = self._address.locate(seconds).connection(BoundedSocket)
        self._connection.deadline = end
        try:
            self._connection.connect()
        except UnicodeError:  # a host's name that cannot be one
            raise RedisConnectionError("the host's name cannot be resolved") from None
        self._socket = self._connection.socket
        if self._address.login:
            try:
                self._log_in(end)
            except RedisError:
                self.close()  # not logged in, or at another database: of no use
                raise

    def _log_in(self, end: float) -> None:
        login = self._address.login
        self._bound(end - now())
        sock = self._socket
        try:
            sock.sendall(b"".join([request.packed() for request in login]))
        except TimeoutError:
            raise RedisTimeoutError("no time left to log in") from None
        except OSError as error:
            raise RedisConnectionError(f"Error while logging in: {_told(sock, error)}") from error
        self.owed += len(login)
        for request, reply in zip(login, self.receive(end - now()), strict=True):
            if isinstance(reply, ResponseError) and request is not PING:
                raise reply

    def load_scripts_and_run_id(self, scripts: Sequence[Script], seconds: float) -> str | None:
        """Teach the server the scripts, and learn what it calls itself, anew at each start. Raises RedisError.

        Both are of use and neither is needed: a user may not be allowed to.
        """
        self.send([INFO.packed(), *[script.load for script in scripts]], seconds)
        info, *_ = self.receive(seconds)
        found = re.search(rb"run_id:(\w+)", info) if isinstance(info, bytes) else None
        return found.group(1).decode() if found else None

    def send(self, requests: Sequence[bytes], seconds: float) -> None:
        """Send ``requests``; their replies are owed from now on. Raises RedisError."""
        self._bound(seconds)
        self.owed += len(requests)
        self._connection.send_packed_command(requests, check_health=False)

    def receive(self, seconds: float) -> list[Any]:
        """Every reply that is owed; a server's error reply is a value. Raises RedisError.

        LOADING, and what is wrong with a log-in, are raised: nothing is owed then.
        """
        self._bound(seconds)
        values: list[Any] = []
        read = self._connection.read_response
        while self.owed:
            try:
                values.append(read(disconnect_on_error=False))
            except ResponseError as error:
                values.append(error)
            except NOT_CARRIED_OUT:
                self.close()  # redis-py's own parser would read the same reply again
                raise
            self.owed -= 1
        return values

    def exchange(self, commands: Sequence[Request], seconds: float) -> list[Any]:
        """Send ``commands`` and receive their replies within ``seconds``. Raises RedisError."""
        end = now() + seconds
        if self._socket is None:
            self.connect(seconds)
            seconds = end - now()
        self.send([command.packed() for command in commands], seconds)
        values = self.receive(seconds)
        unknown = unknown_scripts(values)
        if unknown:
            self.send([commands[index].packed(by_text=True) for index in unknown], end - now())
            for index, value in zip(unknown, self.receive(end - now()), strict=True):
                values[index] = value
        return values

    def close(self, undo: Callable[[], Request] | None = None) -> None:
        """Close the connection; where a reply is owed, send ``undo`` after its request first.

        The server reads them in order, even if it does so much later.
        """
        if self._connection is None:
            return
        sock, self._socket = self._socket, None
        if self.owed and undo is not None and sock is not None:
            with suppress(OSError):  # then the lease's end frees what was taken
                sock.begin(0.01)  # it fits into the buffer, or does not go
                sock.sendall(undo().packed(by_text=True))  # the server may not know the script
        self.owed = 0
        self._connection.disconnect()

    def _bound(self, seconds: float) -> None:
        if seconds <= 0:
            raise RedisTimeoutError("no time left")
        self._socket.begin(seconds)


def _told(sock: Any, error: OSError) -> OSError:
    """Why the server hung up: one that rejects a certificate says so just before."""
    try:
        sock.recv(1)
    except OSError as reason:
        error.__cause__ = reason
        return reason
    return error


def unknown_scripts(values: Sequence[Any]) -> list[int]:
    """Which replies say that the server has forgotten a script: after a restart, a failover, a SCRIPT FLUSH."""
    return [index for index, value in enumerate(values) if isinstance(value, NoScriptError)]


#: What else to ask on the same connection, by all that was answered so far and the seconds that remain.
FollowUp = Callable[[list[Any], float], Sequence[Request]]


class Exchange(NamedTuple):
    """What is asked of the server that has some keys, all beginning with ``bucket``: a cluster finds it by that.

    Every request must be idempotent: a connection that breaks is replaced once, and so is one to a demoted master where
    another may have taken over. Where no answer comes in time, ``undo`` follows on the same connection, which is then
    closed.
    """

    bucket: str
    requests: Sequence[Request]
    undo: Callable[[], Request] | None = None
    follow_up: FollowUp | None = None


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

    def call(self, exchange: Exchange, seconds: float) -> Replies:
        """Send the requests together and read their replies within ``seconds``. Raises `StoreUnavailable`."""
        undo, follow_up = exchange.undo, exchange.follow_up
        end = now() + seconds
        unanswered = False  # the requests went out on a connection that broke: they may have been carried out, once
        may_fail_over = self.address.may_fail_over  # and not yet tried: this server is gone, or a master no more
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                link = Link(self.address)
            try:
                values = link.exchange(exchange.requests, seconds)
                if not (may_fail_over and any(map(is_not_master, values)) and now() < end):
                    while follow_up is not None and (more := follow_up(values, end - now())):
                        values += link.exchange(more, end - now())
                    self._idle.append(link)
                    return Replies(values, unanswered)
                may_fail_over = False
            except RedisError as error:
                cut = link.owed > 0 and not isinstance(error, FINAL)
                lost = not link.owed and may_fail_over
                link.close(undo)
                # Twice at most: who is cut off again learns that nobody can tell.
                if not (cut or lost) or (cut and unanswered) or now() >= end:
                    raise to_store_unavailable(error) from error
                unanswered = unanswered or cut
                may_fail_over = may_fail_over and not lost
            except BaseException:  # a time limit, say, while a reply is still to come
                link.close(undo)
                raise
            link.close()
            self.close()  # the idle ones are most likely as dead
            self.address.suspect()
            seconds = end - now()

    def call_all(self, commands: Sequence[tuple[str, Request]], seconds: float) -> list[Any]:
        """The reply to each command, or the error that stands for it. Raises `StoreUnavailable`."""
        return self.call(Exchange("", [command for _, command in commands]), seconds).values

    def servers(self, seconds: float) -> list[Address]:
        """Where the store's servers are now. Raises `StoreUnavailable`."""
        try:
            return [self.address.locate(seconds)]
        except RedisError as error:
            raise to_store_unavailable(error) from error

    def close(self) -> None:
        """Close the idle connections; the next call opens one."""
        while self._idle:
            self._idle.pop().close()

    def forget(self) -> None:
        """Leave the connections alone: they are another process's, whose replies must not be read here."""
        self._idle = []
