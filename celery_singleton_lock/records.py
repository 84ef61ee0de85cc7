"""Idempotency records: what a finished run leaves behind for its repeats, and the markers that stand for a result."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from . import canonical
from .errors import LockKeyError
from .naming import digest

VERSION = 1
"""The version of the form that `encode` writes and `decode` knows."""

MARKER = "singleton_lock"
SKIPPED = "skipped"
NOT_KEPT = "result not kept"


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


def fingerprint(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """64 hex digits for the bound arguments without those that equal their defaults.

    So a parameter that gets added later, with a default, changes no earlier call's. Raises `LockKeyError` for an
    argument without a stable form.
    """
    parts: list[str] = []
    for name in sorted(arguments):
        value = arguments[name]
        if name in defaults:
            default = defaults[name]
            if value is default:
                continue
            text = canonical.encode(value, name)
            if text == _default(default, name):
                continue
        else:
            text = canonical.encode(value, name)
        parts += (name, text)
    return digest(*parts)


def _default(default: object, name: str) -> str | None:
    try:
        return canonical.encode(default, name)
    except LockKeyError:  # a sentinel, say: no argument with a stable form equals it
        return None


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
