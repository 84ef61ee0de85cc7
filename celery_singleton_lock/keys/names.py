"""Digests, and the names under which a store keeps what belongs to one resource: all in one cluster slot."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from ..errors import LockConfigError, LockKeyError

#: What ``singleton_lock_prefix`` is by default.
DEFAULT_PREFIX = "singleton-lock"

#: The version of the key layout, part of every name in the store.
LAYOUT = 1


def digest(*parts: str) -> str:
    """64 hex digits of SHA-256; other parts, or the same text cut at other places, give other digits."""
    text = ""
    for part in parts:
        text += f"{len(part)}:{part}"
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def scoped(task_name: str, *parts: str) -> str:
    """A resource of one task: the task's name, and a digest in which ``parts`` cannot be read."""
    return f"{task_name}:{digest(*parts)}"


def record_id(task_name: str, idempotency_text: str) -> str:
    """32 hex digits that name a task's record beneath its resource."""
    return digest(task_name, idempotency_text)[:32]


def key_id(resource: str) -> str:
    """16 hex digits of the resource's SHA-256: what logs, events and errors show of it."""
    return _sha256(resource)[:16]


def _sha256(resource: str) -> str:
    try:
        return sha256(resource.encode()).hexdigest()
    except UnicodeEncodeError:
        raise LockKeyError("key", "the text is not valid Unicode: it has half of a surrogate pair in it") from None


class Names(NamedTuple):
    """The store's names for one resource.

    ``lock``, ``fence``: the resource's own; ``index``: the index of the held locks in its bucket, one of 256;
    ``key_id``: 16 hex digits; ``bucket``: what all of its names begin with.
    """

    lock: str
    fence: str
    index: str  # type: ignore[assignment]  # a tuple has a method of that name, which nobody needs here
    key_id: str
    bucket: str
    resource: str

    def tombstone(self, token: str) -> str:
        """Where the store remembers that ``token`` may take nothing any more."""
        return f"{self.bucket}tombstone:{token}:{self.resource}"

    def record(self, record_id: str) -> str:
        """Where the record ``record_id`` (32 hex digits) is kept."""
        return f"{self.bucket}record:{record_id}:{self.resource}"


def names(prefix: str, resource: str) -> Names:
    """The names ``<prefix>:1:{00..ff}:<kind>:<resource>``.

    A cluster hashes only what the first braces hold: so the prefix has none, and those in a resource come too late.
    """
    digits = _sha256(resource)
    bucket = f"{prefix}:{LAYOUT}:{{{digits[:2]}}}:"
    return Names(
        f"{bucket}lock:{resource}", f"{bucket}fence:{resource}", f"{bucket}index", digits[:16], bucket, resource
    )


def check_prefix(prefix: object) -> str:
    """The prefix, where every name can begin with it; `LockConfigError` for braces, blanks and control characters."""
    if not isinstance(prefix, str) or not prefix:
        raise LockConfigError("singleton_lock_prefix must be some text, such as 'shop'")
    if "{" in prefix or "}" in prefix or " " in prefix or not prefix.isprintable():
        raise LockConfigError("singleton_lock_prefix must have no braces, blanks or control characters")
    return prefix
