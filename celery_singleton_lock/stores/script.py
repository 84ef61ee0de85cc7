"""The verbs of the lock server: Lua files, and their calls in the bytes of Redis's protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple, Protocol

from ..errors import StoreUnavailable

#: What came of one server's requests: their values, or why there are none.
Reply = list[Any] | StoreUnavailable


class Request(Protocol):
    """What can be sent. ``by_text``: the server does not know the script yet."""

    def packed(self, *, by_text: bool = False) -> bytes:
        """The request's bytes."""
        ...


class Script:
    """One verb, read from its ``.lua`` file."""

    def __init__(self, verb: str) -> None:
        text = files(__package__).joinpath("lua").joinpath(f"{verb}.lua").read_bytes()
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        self.by_sha, self.by_text = _pack(b"EVALSHA", sha), _pack(b"EVAL", text)
        self.load = b"*3\r\n" + _pack(b"SCRIPT", b"LOAD", text)  # a whole request

    def __call__(self, keys: Sequence[str], *args: str | bytes | int) -> Command:
        """The command that runs the verb on ``keys``."""
        return Command(self, len(keys) + len(args) + 3, _pack(len(keys), *keys, *args))


class Command(NamedTuple):
    """A request. It is packed here: a client's own time is most of what a lock costs, and this halves it."""

    script: Script
    size: int
    arguments: bytes

    def packed(self, *, by_text: bool = False) -> bytes:
        """The request's bytes. ``by_text``: the server does not know the script yet."""
        return b"*%d\r\n%b%b" % (self.size, self.script.by_text if by_text else self.script.by_sha, self.arguments)


class Plain(NamedTuple):
    """A command of the server's own."""

    request: bytes

    def packed(self, *, by_text: bool = False) -> bytes:
        """The request's bytes."""
        return self.request


def plain(*args: str | int) -> Plain:
    """The command of these words."""
    return Plain(b"*%d\r\n%b" % (len(args), _pack(*args)))


_FORMS = [b"$%d\r\n%b\r\n" * count for count in range(24)]


def _pack(*args: str | bytes | int) -> bytes:
    flat: list[int | bytes] = []
    for arg in args:
        part = arg if isinstance(arg, bytes) else str(arg).encode()
        flat += (len(part), part)
    return _FORMS[len(args)] % tuple(flat)


INFO = b"*2\r\n" + _pack(b"INFO", b"server")
SCRIPTS = (*map(Script, ("acquire", "renew", "release", "peek", "copy", "mark")),)
ACQUIRE, RENEW, RELEASE, PEEK, COPY, MARK = SCRIPTS
