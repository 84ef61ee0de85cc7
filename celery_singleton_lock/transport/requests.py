"""Requests in the bytes of Redis's protocol. What they mean is the stores' affair."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..errors import StoreUnavailable

#: What came of one server's requests: their values, or why there are none.
Reply = list[Any] | StoreUnavailable


class Request(Protocol):
    """What can be sent."""

    def packed(self, *, by_text: bool = False) -> bytes:
        """The request's bytes. ``by_text``: the server does not know the script yet."""


class Script:
    """One script of the server.

    ``must_arrive``: its request is sent again where the reply comes too late for the call, and says that the script is
    unknown.
    """

    def __init__(self, text: bytes, *, must_arrive: bool = False) -> None:
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        self.by_sha, self.by_text = pack(b"EVALSHA", sha), pack(b"EVAL", text)
        self.load = b"*3\r\n" + pack(b"SCRIPT", b"LOAD", text)  # a whole request
        self.must_arrive = must_arrive

    def __call__(self, keys: Sequence[str], *args: str | bytes | int) -> Command:
        """The command that runs the script on ``keys``."""
        return Command(self, len(keys) + len(args) + 3, pack(len(keys), *keys, *args))


class Command(NamedTuple):
    """A request. It is packed here: a client's own time is most of what a lock costs, and this halves it."""

    script: Script
    size: int
    arguments: bytes

    def packed(self, *, by_text: bool = False) -> bytes:
        """See `Request.packed`."""
        return b"*%d\r\n%b%b" % (self.size, self.script.by_text if by_text else self.script.by_sha, self.arguments)


class Plain(NamedTuple):
    """A command of the server's own."""

    request: bytes

    def packed(self, *, by_text: bool = False) -> bytes:
        """See `Request.packed`."""
        return self.request


def plain(*args: str | int) -> Plain:
    """The command of these words."""
    return Plain(b"*%d\r\n%b" % (len(args), pack(*args)))


_FORMS = [b"$%d\r\n%b\r\n" * count for count in range(24)]


def pack(*args: str | bytes | int) -> bytes:
    """The bytes of a request's parts, without the line before them that counts them."""
    flat: list[int | bytes] = []
    for arg in args:
        part = arg if isinstance(arg, bytes) else str(arg).encode()
        flat += (len(part), part)
    return _FORMS[len(args)] % tuple(flat)
