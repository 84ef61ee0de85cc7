"""Locks on one Redis or Valkey server."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from importlib.resources import files
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
    TimeoutError,
)
from redis.retry import Retry

from ..clock import now
from ..errors import LockConfigError, StoreUnavailable
from ..keys import Names
from ..protocol import (
    FENCE_TTL,
    Answer,
    Ask,
    Granted,
    Hold,
    Holder,
    Recorded,
    Taken,
    Write,
    call_timeout,
    refusal_time,
)
from . import redact

Command = tuple[Any, ...]


class Script:
    """One verb of the server, read from its ``.lua`` file."""

    def __init__(self, verb: str) -> None:
        self.text = files(__package__).joinpath("lua", f"{verb}.lua").read_bytes()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()

    def call(self, keys: tuple[str, ...], *args: str | bytes | int) -> Command:
        """The command that runs it, once the server knows it."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)


ACQUIRE, RENEW, RELEASE = Script("acquire"), Script("renew"), Script("release")
_TEXTS = {script.sha: script.text for script in (ACQUIRE, RENEW, RELEASE)}
_FENCE_MS = int(FENCE_TTL * 1000)


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, never 0: PEXPIRE 0 would delete the lock."""
    return max(1, round(seconds * 1000))


class _Replies(NamedTuple):
    values: list[Any]
    unanswered: bool  # the same request went out on a connection that broke before it was answered


class RedisStore:
    """The store contract on one server: a round trip a call, on a connection that no other call shares meanwhile.

    Connections are kept for the next call; a forked child opens its own.
    """

    shared = True

    def __init__(self, url: str, *, prefix: str, timeout: float) -> None:
        self.prefix = prefix
        self.timeout = timeout
        self.url = redact(url)
        self._class, self._options = _connection(url)
        self._idle: list[AbstractConnection] = []
        _stores.add(self)

    def __repr__(self) -> str:
        return f"<RedisStore {self.url}>"

    def acquire(self, ask: Ask) -> Answer:
        """See `Store.acquire`."""
        names, ttl = ask.names, milliseconds(ask.ttl)
        keys: tuple[str, ...] = (names.lock, names.fence, names.index, names.refused(ask.token))
        if ask.record_id is not None:
            keys += (names.record(ask.record_id),)
        task_id = json.dumps(ask.holder.task_id)
        command = ACQUIRE.call(keys, ask.token, ask.holder.encode(), ttl, _FENCE_MS, names.resource, task_id, ask.rank)
        undo = Hold(names, ask.token, 0, ask.ttl)
        bound = call_timeout(self.timeout, ask.ttl)
        replies = self._call([command], bound, behind=_release(undo, 0.0, None, True))
        verdict, *rest = _checked(replies.values[0])
        if verdict == b"granted":
            return Granted(int(rest[0]), replies.unanswered)
        if replies.unanswered:  # the late request may yet be carried out: it must find its token refused
            try:
                self.release(undo, unanswered=True)
            except StoreUnavailable:
                pass  # what it takes then ends with its ttl
        return Recorded(rest[0]) if verdict == b"recorded" else _taken(rest[0], rest[1])

    def renew(self, holds: Sequence[Hold], timeout: float) -> list[bool]:
        """See `Store.renew`."""
        commands = [
            RENEW.call(
                (hold.names.lock, hold.names.fence, hold.names.index),
                hold.token,
                milliseconds(hold.ttl),
                _FENCE_MS,
                hold.names.resource,
            )
            for hold in holds
        ]
        return [_checked(reply) == 1 for reply in self._call(commands, timeout).values]

    def release(self, hold: Hold, *, rest: float = 0.0, write: Write | None = None, unanswered: bool = False) -> bool:
        """See `Store.release`."""
        bound = call_timeout(self.timeout, hold.ttl)
        replies = self._call([_release(hold, rest, write, unanswered)], bound)
        return bool(_checked(replies.values[0]) == 1)

    def peek(self, names: Names) -> Taken | None:
        """See `Store.peek`."""
        lock, left = self._call([("GET", names.lock), ("PTTL", names.lock)], self.timeout).values
        return None if _checked(lock) is None else _taken(lock, _checked(left))

    def close(self) -> None:
        """See `Store.close`."""
        while self._idle:
            self._idle.pop().disconnect()

    def _call(self, commands: list[Command], timeout: float, behind: Command | None = None) -> _Replies:
        """Send ``commands`` together and read their replies within ``timeout`` seconds.

        A connection that breaks is replaced once: every command here may be carried out twice. Where no answer comes
        in time, ``behind`` follows on the same connection, which is then closed.
        """
        end = now() + timeout
        unanswered = False
        while True:
            connection = self._checkout()
            sent = False
            try:
                _bound(connection, end - now())
                packed = connection.pack_commands(commands)
                if connection._sock is None:
                    connection.connect()
                    _bound(connection, end - now())
                sent = True
                connection.send_packed_command(packed, check_health=False)
                values = _read(connection, len(commands))
                unknown = [index for index, value in enumerate(values) if isinstance(value, NoScriptError)]
                if unknown:  # the server was restarted or its scripts flushed
                    _bound(connection, end - now())
                    texts = [_as_text(commands[index]) for index in unknown]
                    connection.send_packed_command(connection.pack_commands(texts), check_health=False)
                    for index, value in zip(unknown, _read(connection, len(unknown)), strict=True):
                        values[index] = value
                self._idle.append(connection)
                return _Replies(values, unanswered)
            except RedisError as error:
                broken = not isinstance(error, (TimeoutError, AuthenticationError, AuthorizationError))
                if sent and not broken and behind is not None:
                    _send_behind(connection, behind)
                connection.disconnect()
                if not (sent and broken) or unanswered or now() >= end:
                    raise _unavailable(error) from error
                unanswered = True
                self.close()  # the others are most likely as dead
            except BaseException:  # a time limit, say, with a reply still to come
                if sent and behind is not None:
                    _send_behind(connection, behind)
                connection.disconnect()
                raise

    def _checkout(self) -> AbstractConnection:
        try:
            return self._idle.pop()
        except IndexError:
            connection = self._class(**self._options, retry=Retry(NoBackoff(), 0))
            return connection

    def _forget(self) -> None:
        self._idle = []


def _connection(url: str) -> tuple[type[AbstractConnection], dict[str, Any]]:
    try:
        options: dict[str, Any] = dict(parse_url(url))
        path = url.partition("://")[2].partition("?")[0].partition("/")[2]
        if not url.startswith("unix") and path and not path.isdigit():
            raise ValueError("the database must be a number")
    except ValueError as error:
        raise LockConfigError(f"singleton_lock_url: {redact(url)!r} cannot be read: {error}") from None
    kind = options.pop("connection_class", Connection)
    # RESP2: no handshake, no push messages between the replies
    return kind, {**options, "protocol": 2, "decode_responses": False, "health_check_interval": 0}


def _bound(connection: AbstractConnection, seconds: float) -> None:
    """Let the connection's next operations take ``seconds``: redis-py has a timeout per connection, not per call."""
    if seconds <= 0:
        raise TimeoutError("no time left")
    connection.socket_timeout = connection.socket_connect_timeout = seconds
    if connection._sock is not None:
        connection._sock.settimeout(seconds)


def _read(connection: AbstractConnection, count: int) -> list[Any]:
    values: list[Any] = []
    for _ in range(count):
        try:
            values.append(connection.read_response(disconnect_on_error=False))
        except ResponseError as error:
            values.append(error)
    return values


def _send_behind(connection: AbstractConnection, command: Command) -> None:
    sock = connection._sock
    if sock is None:
        return
    try:
        sock.settimeout(0)
        sock.sendall(b"".join(connection.pack_command(*command)))
    except OSError:
        pass  # then the lease's end frees what was taken


def _as_text(command: Command) -> Command:
    return ("EVAL", _TEXTS[command[1]], *command[2:])


def _release(hold: Hold, rest: float, write: Write | None, unanswered: bool) -> Command:
    names = hold.names
    keys: tuple[str, ...] = (names.lock, names.fence, names.index, names.refused(hold.token))
    refusal = milliseconds(refusal_time(hold.ttl)) if unanswered else 0
    args = (hold.token, hold.fence, milliseconds(rest) if rest > 0 else 0, refusal, names.resource)
    if write is None:
        return RELEASE.call(keys, *args)
    keys += (names.record(write.record_id),)
    return RELEASE.call(keys, *args, write.rank, write.body, milliseconds(write.ttl))


def _checked(reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        raise _unavailable(reply) from reply
    return reply


def _taken(lock: bytes, left: int) -> Taken:
    state, _, rest = lock.partition(b":")
    holder = Holder.decode(rest.split(b":", 2)[2]) if state in (b"h", b"r") and rest.count(b":") >= 2 else Holder()
    return Taken(holder, left / 1000 if left >= 0 else None, state == b"r")


def _unavailable(error: RedisError) -> StoreUnavailable:
    denied = isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError))
    text = str(error).partition(", with args")[0]  # a server may repeat the command's arguments there
    return StoreUnavailable(f"{type(error).__name__}: {text[:200]}", denied)


_stores: WeakSet[RedisStore] = WeakSet()


def _forget_all() -> None:
    # In a forked child: the sockets are the parent's, whose replies must not be read here.
    for store in list(_stores):
        store._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
