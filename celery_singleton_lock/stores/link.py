"""One connection to one server, with a bound on every operation and a count of what it still owes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import AuthenticationError, AuthorizationError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..clock import now
from .address import PING, Address
from .refusal import NOT_CARRIED_OUT
from .script import INFO, SCRIPTS, Request

#: After these a new connection would fare no better.
FINAL = (RedisTimeoutError, AuthenticationError, AuthorizationError)


class Link:
    """One connection. redis-py has a timeout per connection; here each operation brings its own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        # Any: its socket is not in redis-py's public types, and has to be told the bound of each operation.
        self._connection: Any = None
        self.owed = 0  # replies that have not come yet

    def socket(self) -> Any:
        """The connected socket, without a bound, for who waits on several at once."""
        return self._connection._sock.raw

    @property
    def connected(self) -> bool:
        """Whether there is a socket."""
        return self._connection is not None and self._connection._sock is not None

    def connect(self, seconds: float) -> None:
        """Find the server, open the connection and log in, all within ``seconds``. Raises RedisError."""
        end = now() + seconds
        self._connection = self._address.locate(seconds).connection()
        self._connection.deadline = end
        try:
            self._connection.connect()
        except UnicodeError:  # a host's name that cannot be one
            raise RedisConnectionError("the host's name cannot be resolved") from None
        if self._address.login:
            try:
                self._log_in(end)
            except RedisError:
                self.close()  # not logged in, or at another database: of no use
                raise

    def _log_in(self, end: float) -> None:
        login = self._address.login
        self._bound(end - now())
        sock = self._connection._sock
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

    def introduce(self, seconds: float) -> str | None:
        """Teach the server the scripts, and learn what it calls itself, anew at each start. Raises RedisError.

        Both are of use and neither is needed: a user may not be allowed to.
        """
        self.send([INFO, *[script.load for script in SCRIPTS]], seconds)
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
        if not self.connected:
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

    def close(self, behind: Callable[[], Request] | None = None) -> None:
        """Close the connection; where a reply is owed, send ``behind`` after its request first.

        The server reads them in order, even if it does so much later.
        """
        if self._connection is None:
            return
        sock = self._connection._sock
        if self.owed and behind is not None and sock is not None:
            try:
                sock.begin(0.01)  # it fits into the buffer, or does not go
                sock.sendall(behind().packed(by_text=True))  # the server may not know the script
            except OSError:
                pass  # then the lease's end frees what was taken
        self.owed = 0
        self._connection.disconnect()

    def _bound(self, seconds: float) -> None:
        if seconds <= 0:
            raise RedisTimeoutError("no time left")
        self._connection._sock.begin(seconds)


def _told(sock: Any, error: OSError) -> OSError:
    """Why the server hung up: one that turns a certificate down says it just before."""
    try:
        sock.recv(1)
    except OSError as reason:
        error.__cause__ = reason
        return reason
    return error


def unknown_scripts(values: Sequence[Any]) -> list[int]:
    """Which replies say that the server has forgotten a script: after a restart, a failover, a SCRIPT FLUSH."""
    return [index for index, value in enumerate(values) if isinstance(value, NoScriptError)]
