"""Connections to one server, each used by one call at a time, with a bound on every call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)
from redis.retry import Retry

from ..clock import now
from ..errors import LockConfigError, StoreUnavailable
from . import redact
from .script import Command


class Replies(NamedTuple):
    """``unanswered``: the same requests went out before, on a connection that broke before it was answered."""

    values: list[Any]
    unanswered: bool


class _Link:
    """One connection of redis-py, with a timeout per call, where redis-py has one per connection."""

    def __init__(self, kind: type[AbstractConnection], options: dict[str, Any]) -> None:
        # Any: its socket is not in redis-py's public types, and has to be touched for a timeout per call.
        self._connection: Any = kind(**options, retry=Retry(NoBackoff(), 0))
        self._seconds = 0.0
        self.in_doubt = False  # whether a request is out whose reply has not come

    def exchange(self, requests: list[bytes], seconds: float) -> list[Any]:
        """Send and read the replies; a server's error reply is a value. Raises RedisError."""
        self._bound(seconds)
        connection = self._connection
        if connection._sock is None:
            end = now() + seconds
            connection.connect()
            self._bound(end - now())
        self.in_doubt = True
        connection.send_packed_command(requests, check_health=False)
        values: list[Any] = []
        for _ in requests:
            try:
                values.append(connection.read_response(disconnect_on_error=False))
            except ResponseError as error:
                values.append(error)
        self.in_doubt = False
        return values

    def close(self, behind: Callable[[], Command] | None = None) -> None:
        """Close the connection; where a reply is outstanding, send ``behind`` after its request first.

        The server reads them in order, even if it does so much later.
        """
        sock = self._connection._sock
        if self.in_doubt and behind is not None and sock is not None:
            try:
                sock.settimeout(0)
                sock.sendall(behind().packed())
            except OSError:
                pass  # then the lease's end frees what was taken
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


class Links:
    """The connections of one store. A forked child opens its own."""

    def __init__(self, url: str) -> None:
        self._kind, self._options = _parsed(url)
        self._idle: list[_Link] = []
        _all.add(self)

    def call(self, commands: Sequence[Command], seconds: float, behind: Callable[[], Command] | None = None) -> Replies:
        """Send ``commands`` together and read their replies within ``seconds``. Raises `StoreUnavailable`.

        A connection that breaks is replaced once, so every command must bear to be carried out twice. Where no answer
        comes in time, ``behind`` follows on the same connection, which is then closed.
        """
        end = now() + seconds
        requests = [command.packed() for command in commands]
        unanswered = False
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                link = _Link(self._kind, self._options)
            try:
                values = link.exchange(requests, seconds)
                self._teach(link, commands, values, end)
                self._idle.append(link)
                return Replies(values, unanswered)
            except RedisError as error:
                cut = link.in_doubt and not isinstance(error, _FINAL)
                link.close(behind)
                seconds = end - now()
                if not cut or unanswered or seconds <= 0:
                    raise unavailable(error) from error
                unanswered = True
                self.close()  # the idle ones are most likely as dead
            except BaseException:  # a time limit, say, while a reply is still to come
                link.close(behind)
                raise

    def _teach(self, link: _Link, commands: Sequence[Command], values: list[Any], end: float) -> None:
        """Send again with its text what the server had forgotten: after a restart, a failover, a SCRIPT FLUSH."""
        unknown = [index for index, value in enumerate(values) if isinstance(value, NoScriptError)]
        if unknown:
            texts = [commands[index].packed(by_text=True) for index in unknown]
            for index, value in zip(unknown, link.exchange(texts, end - now()), strict=True):
                values[index] = value

    def close(self) -> None:
        """Close the idle connections; the next call opens one."""
        while self._idle:
            self._idle.pop().close()

    def forget(self) -> None:
        """Leave the connections alone: they are another process's, whose replies must not be read here."""
        self._idle = []


#: After these a new connection would fare no better.
_FINAL = (RedisTimeoutError, AuthenticationError, AuthorizationError)


def unavailable(error: RedisError) -> StoreUnavailable:
    """What a driver's error, or a server's error reply, means for a lock."""
    denied = isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError))
    text = str(error).partition(", with args")[0]  # a server may repeat the command's arguments there
    return StoreUnavailable(f"{type(error).__name__}: {text[:200]}", denied)


def _parsed(url: str) -> tuple[type[AbstractConnection], dict[str, Any]]:
    try:
        options: dict[str, Any] = dict(parse_url(url))
        path = url.partition("://")[2].partition("?")[0].partition("/")[2]
        if not url.startswith("unix") and path and not path.isdigit():
            raise ValueError("the database must be a number")
        kind = options.pop("connection_class", Connection)
        # RESP2: no handshake, and no push message between two replies
        options |= {"protocol": 2, "decode_responses": False, "health_check_interval": 0}
        kind(**options)
    except (ValueError, TypeError) as error:
        raise LockConfigError(f"singleton_lock_url: {redact(url)!r} cannot be read: {_harmless(error)}") from None
    return kind, options


def _harmless(error: Exception) -> str:
    # A TypeError names an unknown query option; a ValueError may repeat a part of the URL that holds the password.
    text = str(error)
    if isinstance(error, TypeError):
        return text.rpartition("() ")[2]
    return text if text == "the database must be a number" else "host, port, database or an option is malformed"


_all: WeakSet[Links] = WeakSet()


def _forget_all() -> None:
    for links in list(_all):
        links.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
