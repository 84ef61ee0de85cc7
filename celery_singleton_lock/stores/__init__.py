"""Stores of locks, and the one way to open them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from ..errors import LockConfigError
from ..keys import check_prefix
from ..protocol import Store

logger = logging.getLogger(__name__)

DEFAULT_PREFIX = "singleton-lock"
DEFAULT_TIMEOUT = 1.0

_SERVER_SCHEMES = ("redis", "rediss", "unix")
_LATER_SCHEMES = ("sentinel", "redis+cluster")


def open_store(url: str | Sequence[str], *, prefix: str = DEFAULT_PREFIX, timeout: float = DEFAULT_TIMEOUT) -> Store:
    """The store behind ``url``; nothing is connected yet.

    ``url``: ``redis://``, ``rediss://``, ``unix://`` or ``memory://``, or a list of one such URL; ``prefix``: what its
    keys begin with; ``timeout``: the bound of a call, in seconds. Raises `LockConfigError`, which shows no password.
    """
    check_prefix(prefix)
    if not isinstance(url, str):
        return _open_list(list(url), prefix, timeout)
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore.named(url, prefix=prefix, timeout=timeout)
    if scheme in _SERVER_SCHEMES:
        from .redis import RedisStore

        return RedisStore(url, prefix=prefix, timeout=timeout)
    if scheme in _LATER_SCHEMES:
        raise LockConfigError(
            f"singleton_lock_url: {scheme}:// is not supported yet; use redis://, rediss:// or unix://"
        )
    raise LockConfigError(
        f"singleton_lock_url: {redact(url)!r} is no URL of a lock server; "
        "use redis://, rediss://, unix:// or, for tests, memory://"
    )


def _open_list(urls: list[str], prefix: str, timeout: float) -> Store:
    if not urls or not all(isinstance(url, str) for url in urls):
        raise LockConfigError("singleton_lock_url: give one URL, or a list of URLs")
    if len(urls) == 1:
        return open_store(urls[0], prefix=prefix, timeout=timeout)
    if len(urls) == 2:
        raise LockConfigError(
            "singleton_lock_url: two servers are worse than one, since both must answer; give one or three"
        )
    if len({_server(url) for url in urls}) < len(urls):
        raise LockConfigError("singleton_lock_url: a server stands in the list twice; its vote must count once")
    if len(urls) % 2 == 0:
        logger.warning(
            "singleton_lock_url: %d servers bear the loss of no more than %d would; an odd number is better",
            len(urls),
            len(urls) - 1,
        )
    from .quorum import QuorumStore

    return QuorumStore(urls, prefix=prefix, timeout=timeout)


def _server(url: str) -> tuple[str, int] | str:
    """Which server a URL names: its database and user do not matter. Other names of it show when it is connected."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return parts.path
        host = parts.hostname or "localhost"
        return "localhost" if host in ("127.0.0.1", "::1") else host, parts.port or 6379
    except ValueError:
        return url


def redact(url: str) -> str:
    """``url`` without what may be secret in it: only scheme, host, port and path are left."""
    try:
        parts = urlsplit(url)
        if not parts.scheme or "://" not in url:
            return "***"
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return "***"
    secret = "***@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{secret}{host}{port}{parts.path}"
