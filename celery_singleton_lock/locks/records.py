"""Idempotency records: what a finished run leaves behind for its repeats, and the markers that stand for a result."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .answers import Recorded
from .protocol import RecordWrite

#: The version of the form that `encode` writes and `decode` knows.
VERSION = 1

MARKER = "singleton_lock"
SKIPPED = "skipped"
NOT_KEPT = "result not kept"

#: Above every attempt: that of a record which answers all of them.
ALL_ATTEMPTS = 2**31
#: How long the record of an idempotency key answers by default, in seconds.
_KEY_TTL = 24 * 3600.0


class CallIdentity(NamedTuple):
    """What one call is about. ``key``: the resource. ``record_id``: what its record is kept under, or None.

    ``attempt``: that a record must not be older than; None where no record is kept. ``fingerprint``: of the payload,
    where another payload under the same record is a mistake.
    """

    key: str
    record_id: str | None = None
    attempt: int | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """A result as kombu's serialiser made it: the three values that its ``loads`` takes."""

    content_type: str
    content_encoding: str
    body: str | bytes


@dataclass(frozen=True, slots=True)
class Record:
    """What a run left: ``"done"``, or ``"retried"`` where it ended by publishing its own retry.

    ``task_id``: the run's; ``fingerprint``: of its arguments, or None where they are not compared; ``result``: what a
    repeat is answered with, or None: a retry has none, and one that was too large is not kept.
    """

    state: Literal["done", "retried"]
    task_id: str
    fingerprint: str | None = None
    result: Encoded | None = None


def encode(record: Record) -> bytes:
    """The record as compact JSON in UTF-8."""
    fields: dict[str, Any] = {"v": VERSION, "state": record.state, "task_id": record.task_id}
    if record.fingerprint is not None:
        fields["fingerprint"] = record.fingerprint
    if record.result is not None:
        fields["result"] = _pack(record.result)
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> Record:
    """The record that `encode` made these bytes of; ValueError for anything else, such as a newer version's."""
    try:
        fields = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise ValueError("the record is not readable") from None
    if not isinstance(fields, dict):
        raise ValueError("the record is not readable")
    version = fields.get("v")
    if type(version) is not int or version != VERSION:
        raise ValueError("the record has an unknown version: another release of the package wrote it")
    state = fields.get("state")
    if state not in ("done", "retried"):
        raise ValueError("the record has an unknown state")
    fingerprint, result = fields.get("fingerprint"), fields.get("result")
    return Record(
        state,
        _text(fields.get("task_id")),
        None if fingerprint is None else _text(fingerprint),
        None if result is None else _unpack(result),
    )


def _pack(result: Encoded) -> list[str]:
    if isinstance(result.body, str):
        return [result.content_type, result.content_encoding, "text", result.body]
    return [result.content_type, result.content_encoding, "base64", base64.b64encode(result.body).decode("ascii")]


def _unpack(parts: object) -> Encoded:
    if not isinstance(parts, list) or len(parts) != 4:
        raise ValueError("the record's result is not readable")
    content_type, content_encoding, form, body = map(_text, parts)
    if form == "text":
        return Encoded(content_type, content_encoding, body)
    if form != "base64":
        raise ValueError("the record's result has an unknown form")
    try:
        return Encoded(content_type, content_encoding, base64.b64decode(body, validate=True))
    except ValueError:
        raise ValueError("the record's result is not readable") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("the record has a value of the wrong type")
    return value


class RecordPolicy(NamedTuple):
    """What one task's runs leave for repeats, and for how long.

    ``ttl``: seconds, as the task's options say, or None; ``delivery_ttl``: seconds that a delivery's record answers
    without; ``max_bytes``: a larger result is not kept. ``dumps``, ``loads``: a result's form, as the result backend
    would store it.
    """

    ttl: float | None
    delivery_ttl: float
    max_bytes: int
    dumps: Callable[[Any], Encoded]
    loads: Callable[[Encoded], Any]

    def done(self, identity: CallIdentity, task_id: str | None, result: Encoded | None) -> RecordWrite | None:
        """What a run that is done asks the store to keep; None where no record is kept.

        A delivery's record answers its own attempt and earlier ones, an idempotency key's every attempt of every
        message.
        """
        if identity.record_id is None or identity.attempt is None:
            return None
        if result is not None and len(result.body) > self.max_bytes:
            result = None
        attempt = identity.attempt if identity.fingerprint is None else ALL_ATTEMPTS
        body = encode(Record("done", task_id or "", identity.fingerprint, result))
        return RecordWrite(identity.record_id, attempt, body, self._ttl(identity))

    def retried(self, identity: CallIdentity, task_id: str) -> RecordWrite | None:
        """The mark that a run ended by publishing its own retry: the newer message carries the id from now on."""
        if identity.record_id is None or identity.attempt is None:
            return None
        return RecordWrite(identity.record_id, identity.attempt, encode(Record("retried", task_id)), self.delivery_ttl)

    def age(self, identity: CallIdentity, answer: Recorded) -> float:
        """How long ago, in seconds, the record was written that the store has answered with."""
        age = self._ttl(identity) - answer.ttl
        return age if age >= 0 else float("inf")  # written when the option was longer: it is of an older deployment

    def _ttl(self, identity: CallIdentity) -> float:
        if self.ttl is not None:
            return self.ttl
        return self.delivery_ttl if identity.fingerprint is None else _KEY_TTL


def skipped(task_id: str | None, key_id: str) -> dict[str, str | None]:
    """The result of a skipped task: ``task_id`` is the holder's, None where it is not known."""
    return {MARKER: SKIPPED, "task_id": task_id, "key": key_id}


def not_kept(task_id: str | None, key_id: str) -> dict[str, str | None]:
    """The result of a repeat whose first result was too large to keep: ``task_id`` is the first run's."""
    return {MARKER: NOT_KEPT, "task_id": task_id, "key": key_id}


def is_skipped(result: object) -> bool:
    """Whether a task's result is the marker of a run that was skipped: another one held the lock."""
    return _is_marker(result, SKIPPED)


def is_replayed(result: object) -> bool:
    """Whether a task's result is the marker of a repeat: the work was done before, its result was too large to keep."""
    return _is_marker(result, NOT_KEPT)


def _is_marker(result: object, kind: str) -> bool:
    if not isinstance(result, dict) or not result.keys() >= {MARKER, "task_id", "key"}:
        return False
    found = result[MARKER]
    return isinstance(found, str) and found == kind
