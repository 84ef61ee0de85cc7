"""The verbs of the lock server: Lua files, what is asked with them, and what the replies mean."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from redis.exceptions import RedisError

from ..errors import StoreUnavailable
from ..keys.names import Names
from ..locks.answers import Granted, Holder, Recorded, Taken
from ..locks.protocol import AcquireRequest, HeldLock, RecordWrite
from ..locks.terms import FENCE_TTL, tombstone_ttl
from ..transport.errors import to_store_unavailable
from ..transport.requests import Command, Script


def _read(verb: str, *, must_arrive: bool = False) -> Script:
    text = files(__package__).joinpath("lua").joinpath(f"{verb}.lua").read_bytes()
    return Script(text, must_arrive=must_arrive)


ACQUIRE, RENEW, PEEK, MARK = map(_read, ("acquire", "renew", "peek", "mark"))
#: What frees or records must not be lost on a server that has forgotten its scripts.
RELEASE, COPY = _read("release", must_arrive=True), _read("copy", must_arrive=True)
SCRIPTS = (ACQUIRE, RENEW, RELEASE, PEEK, COPY, MARK)

_LOCK = re.compile(rb"([hr]):([0-9a-f]+):(\d{1,20}):(.*)", re.DOTALL)
_FENCE_MS = int(FENCE_TTL * 1000)


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, never 0: PEXPIRE 0 would delete the lock."""
    return max(1, round(seconds * 1000))


def acquire(request: AcquireRequest, proposal: int = 0) -> Command:
    """``proposal``: the least fence to grant; 0 leaves it to the server's clock."""
    names = request.names
    keys = _keys(names, request.token)
    if request.record_id is not None:
        keys.append(names.record(request.record_id))
    holder, ttl = encode_holder(request.holder), milliseconds(request.ttl)
    return ACQUIRE(keys, request.token, holder, ttl, _FENCE_MS, names.resource, request.attempt, proposal)


def renew(lock: HeldLock, *, restore: bool = False) -> Command:
    """``restore``: set the lock anew where the server has forgotten it and knows no newer fence."""
    holder = encode_holder(lock.holder) if restore and lock.holder is not None else ""
    args = (_FENCE_MS, lock.names.resource, lock.fence, holder, int(lock.may_shorten))
    return RENEW(_keys(lock.names, lock.token), lock.token, milliseconds(lock.ttl), *args)


def release(
    lock: HeldLock,
    rest: float = 0.0,
    write: RecordWrite | None = None,
    unanswered: bool = False,
    *,
    raise_fence: bool = False,
) -> Command:
    """``raise_fence``: the server's stored fence goes past the lock's, whoever holds it there."""
    names = lock.names
    keys = _keys(names, lock.token)
    tombstone = milliseconds(tombstone_ttl(lock.ttl)) if unanswered else 0
    raised = _FENCE_MS if raise_fence else 0
    args = (lock.token, lock.fence, milliseconds(rest) if rest > 0 else 0, tombstone, names.resource, raised)
    if write is None:
        return RELEASE(keys, *args)
    keys.append(names.record(write.record_id))
    record = encode_record(Recorded(write.body, write.attempt, lock.fence))
    return RELEASE(keys, *args, record, milliseconds(write.ttl))


def _keys(names: Names, token: str) -> list[str]:
    return [names.lock, names.fence, names.tombstone(token), names.index]


def copy(names: Names, record: Recorded, record_id: str) -> Command:
    """Keep a record that another server has, unless a newer one is there."""
    return COPY([names.record(record_id)], encode_record(record), record.fence, milliseconds(record.ttl))


def mark(keys: Sequence[str], own: int, ttl: float) -> Command:
    """Leave the mark ``keys[own]`` for ``ttl`` seconds, and look which of ``keys`` are there."""
    return MARK(keys, own + 1, milliseconds(ttl))


def peek(names: Names) -> Command:
    """Who holds the lock."""
    return PEEK([names.lock])


def answer(reply: Any) -> Granted | Taken | Recorded | None:
    """What the reply to `acquire` or `peek` means; None where the lock is free. Raises `StoreUnavailable`."""
    if isinstance(reply, bytes):
        return Granted(int(reply))
    verdict, *details = checked(reply)
    if verdict == b"recorded":
        return decode_record(details[0], details[1] / 1000)
    return _taken(*details) if verdict == b"taken" else None


def checked(reply: Any) -> Any:
    """The reply itself. Raises `StoreUnavailable` for a server's error."""
    if isinstance(reply, StoreUnavailable):
        raise reply
    if isinstance(reply, RedisError):
        raise to_store_unavailable(reply) from reply
    return reply


def _taken(lock: bytes, ms: int) -> Taken:
    remaining = ms / 1000 if ms >= 0 else None
    found = _LOCK.fullmatch(lock)
    if found is None:
        return Taken(Holder(), remaining)  # set by hand, or by another program
    state, token, fence, holder = found.groups()
    return Taken(decode_holder(holder), remaining, state == b"r", token.decode(), int(fence))


def encode_record(record: Recorded) -> bytes:
    """The record as it stands in a server."""
    return b"%d:%d:%b" % (record.attempt, record.fence, record.body)


def decode_record(text: bytes, ttl: float) -> Recorded:
    """The record of a server's text, which ends in ``ttl`` seconds."""
    attempt, fence, body = text.split(b":", 2)
    return Recorded(body, int(attempt), int(fence), ttl)


def encode_holder(holder: Holder) -> str:
    """The holder as the compact JSON that stands in the lock."""
    task_id = "null" if holder.task_id is None else quoted(str(holder.task_id))
    return f"[{task_id},{_process_part(holder.task, holder.host, holder.pid)}]"


@lru_cache(maxsize=1024)
def _process_part(task: str | None, host: str | None, pid: int | None) -> str:
    return json.dumps([task, host, pid], separators=(",", ":"))[1:-1]


def decode_holder(text: str | bytes) -> Holder:
    """The holder from a lock's text; an unknown one where the text is somebody else's."""
    try:
        task_id, task, host, pid = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return Holder()
    return Holder(task_id, task, host, pid)
