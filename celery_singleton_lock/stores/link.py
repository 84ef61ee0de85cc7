"""One connection to one server, with a bound on every operation and a count of what it still owes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    NoScriptError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)
from redis.retry import Retry

from ..clock import now
from ..errors import LockConfigError, StoreUnavailable
from . import redact
from .script import INFO, SCRIPTS, Command

#: After these a new connection would fare no better.
FINAL = (RedisTimeoutError, AuthenticationError, AuthorizationError)


class Address:
    """Where a server is and how to log in there. Raises `LockConfigError` for a malformed URL, showing no password."""

    def __init__(self, url: str) -> None:
        self.shown = redact(url)
        try:
            options: dict[str, Any] = dict(parse_url(url))
            path = url.partition("://")[2].partition("?")[0].partition("/")[2]
            if not url.startswith("unix") and path and not path.isdigit():
                raise ValueError("the database must be a number")
            self._kind: type[AbstractConnection] = options.pop("connection_class", Connection)
            # RESP2: no handshake, and no push message between two replies
            self._options = options | {"protocol": 2, "decode_responses": False, "health_check_interval": 0}
            self.connection()
        except (ValueError, TypeError) as error:
            raise LockConfigError(f"singleton_lock_url: {self.shown!r} cannot be read: {_harmless(error)}") from None

    def connection(self) -> AbstractConnection:
        """A connection of redis-py, not opened yet, that tries nothing twice."""
        return self._kind(**self._options, retry=Retry(NoBackoff(), 0))


def _harmless(error: Exception) -> str:
    # A TypeError names an unknown query option; a ValueError may repeat a part of the URL that holds the password.
    text = str(error)
    if isinstance(error, TypeError):
        return text.rpartition("() ")[2]
    return text if text == "the database must be a number" else "host, port, database or an option is malformed"


class Link:
    """One connection. redis-py has a timeout per connection; here each operation brings its own."""

    def __init__(self, address: Address) -> None:
        # Any: its socket is not in redis-py's public types, and has to be touched for a timeout per operation.
        self._connection: Any = address.connection()
        self._seconds = 0.0
        self.owed = 0  # replies that have not come yet

    def socket(self) -> Any:
        """The connected socket, for who waits on several at once."""
        return self._connection._sock

    @property
    def connected(self) -> bool:
        """Whether there is a socket."""
        return self._connection._sock is not None

    def connect(self, seconds: float) -> None:
        """Open it and log in. Raises RedisError."""
        self._bound(seconds)
        self._connection.connect()
        self._seconds = 0.0  # a new socket: redis-py has set its own idea of a timeout

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
        """Every reply that is owed; a server's error reply is a value. Raises RedisError."""
        self._bound(seconds)
        values: list[Any] = []
        read = self._connection.read_response
        while self.owed:
            try:
                values.append(read(disconnect_on_error=False))
            except ResponseError as error:
                values.append(error)
            self.owed -= 1
        return values

    def exchange(self, commands: Sequence[Command], seconds: float) -> list[Any]:
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

    def close(self, behind: Callable[[], Command] | None = None) -> None:
        """Close the connection; where a reply is owed, send ``behind`` after its request first.

        The server reads them in order, even if it does so much later.
        """
        sock = self._connection._sock
        if self.owed and behind is not None and sock is not None:
            try:
                sock.settimeout(0)
                sock.sendall(behind().packed())
            except OSError:
                pass  # then the lease's end frees what was taken
        self.owed = 0
        self._connection.disconnect()

    def _bound(self, seconds: float) -> None:
        if seconds <= 0:
            raise RedisTimeoutError("no time left")
        if seconds != self._seconds:
            self._seconds = seconds
            connection = self._connection
            connection.socket_timeout = connection.socket_connect_timeout = seconds
            if connection._sock is not None:
                connection._sock.settimeout(seconds)


def unknown_scripts(values: Sequence[Any]) -> list[int]:
    """Which replies say that the server has forgotten a script: after a restart, a failover, a SCRIPT FLUSH."""
    return [index for index, value in enumerate(values) if isinstance(value, NoScriptError)]


def unavailable(error: Exception) -> StoreUnavailable:
    """What a driver's error, or a server's error reply, means for a lock."""
    denied = isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError))
    text = str(error).partition(", with args")[0]  # a server may repeat the command's arguments there
    return StoreUnavailable(f"{type(error).__name__}: {text[:200]}", denied)
