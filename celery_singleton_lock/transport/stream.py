"""A logged-in connection that never blocks: what cannot be sent or read yet is kept until it can be."""

from __future__ import annotations

import ssl
from typing import Any

from redis import exceptions

from .connection import Link

_CHUNK = 8192  # a reply is some hundred bytes; the system's call sets the whole of it aside
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_ERRORS: dict[str, type[exceptions.RedisError]] = {
    "NOSCRIPT": exceptions.NoScriptError,
    "NOPERM": exceptions.NoPermissionError,
    "NOAUTH": exceptions.AuthenticationError,
    "WRONGPASS": exceptions.AuthenticationError,
}
_REDIRECTS: dict[str, type[exceptions.AskError]] = {"MOVED": exceptions.MovedError, "ASK": exceptions.AskError}


class Incomplete(Exception):
    """The rest of a reply has not come yet."""


def parse(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The RESP2 reply that begins at ``at``, and where it ends; a server's error is a value. Raises `Incomplete`."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, line, after = data[at], data[at + 1 : end], end + 2
    if kind == 36:  # $
        size = int(line)
        if size < 0:
            return None, after
        if len(data) < after + size + 2:
            raise Incomplete
        return data[after : after + size], after + size + 2
    if kind == 58:  # :
        return int(line), after
    if kind == 42:  # *
        values = []
        for _ in range(int(line)):
            value, after = parse(data, after)
            values.append(value)
        return values, after
    if kind == 43:  # +
        return line, after
    if kind == 45:  # -
        return _error(line.decode(errors="replace")), after
    raise exceptions.ConnectionError("the server does not speak Redis's protocol")


def _error(text: str) -> exceptions.RedisError:
    word, _, rest = text.partition(" ")
    if word in _REDIRECTS:
        return _REDIRECTS[word](rest)
    return _ERRORS.get(word, exceptions.ResponseError)(text)


class Stream:
    """One connection to one server. ``owed``: how many replies have not come; ``values``: those that have."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._socket: Any = link.socket()
        self._socket.settimeout(0.0)
        self._encrypted = hasattr(self._socket, "pending")
        self._number: int = self._socket.fileno()
        self._read = b""
        self._unsent = b""
        self._torn = False  # an exception from outside may have struck between the system's call and our note of it
        self.owed = 0
        self.values: list[Any] = []

    def fileno(self) -> int:
        """The socket, to be waited on."""
        return self._number

    @property
    def stuck(self) -> bool:
        """Whether a part of a request is still to be sent."""
        return bool(self._unsent)

    @property
    def sound(self) -> bool:
        """Whether another request may be sent on it."""
        return not self._torn and not self._unsent

    def send(self, requests: bytes, count: int) -> None:
        """Send ``count`` requests, or what the socket takes of them; `push` sends the rest. Raises RedisError."""
        self.owed += count
        self._unsent += requests
        self.push()

    def push(self) -> None:
        """Send what is left. Raises RedisError."""
        self._torn = True
        try:
            sent = self._socket.send(self._unsent)
        except _NOT_NOW:
            sent = 0
        except OSError as error:
            raise exceptions.ConnectionError(str(error)) from error
        self._unsent = self._unsent[sent:]
        self._torn = False

    def pull(self) -> bool:
        """Read what has come; whether every reply has. Raises RedisError."""
        self._torn = True
        data = self._read
        try:
            while True:
                more = self._socket.recv(_CHUNK)
                if not more:
                    raise exceptions.ConnectionError("the server closed the connection")
                data = data + more if data else more
                if not self._encrypted:  # a secured socket may hold more than the system says
                    break
        except _NOT_NOW:
            pass
        except OSError as error:
            raise exceptions.ConnectionError(str(error)) from error
        at = 0
        try:
            while self.owed and at < len(data):
                value, at = parse(data, at)
                self.values.append(value)
                self.owed -= 1
        except Incomplete:
            pass
        self._read = data[at:]
        self._torn = False
        return self.owed == 0

    def close(self) -> None:
        """Close the connection, whatever it owes."""
        self._link.close()
