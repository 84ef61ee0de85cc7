"""Stores of locks, and the one way to open them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..errors import LockConfigError
from ..keys import check_prefix
from ..options import seconds
from ..protocol import Store
from .urls import SCHEMES, Url, read, redact, scheme_of

__all__ = ["DEFAULT_PREFIX", "DEFAULT_TIMEOUT", "open_store", "redact"]

logger = logging.getLogger(__name__)

DEFAULT_PREFIX = "singleton-lock"
DEFAULT_TIMEOUT = 1.0


def open_store(
    url: str | Sequence[str],
    *,
    prefix: str = DEFAULT_PREFIX,
    timeout: float = DEFAULT_TIMEOUT,
    min_replicas: int = 0,
) -> Store:
    """The store behind ``url``; nothing is connected yet.

    ``url``: ``redis://``, ``rediss://``, ``unix://``, ``sentinel://``, ``redis+cluster://``, ``rediss+cluster://`` or
    ``memory://``, or a list of URLs of independent servers, which is a quorum; ``prefix``: what its keys begin with;
    ``timeout``: the bound of a call, in seconds; ``min_replicas``: how many replicas must have acknowledged a lock
    before it counts as granted, not with a quorum. Raises `LockConfigError`, which shows no password.
    """
    check_prefix(prefix)
    timeout = seconds("singleton_lock_timeout", timeout, least=0.01, most=60.0)
    if isinstance(min_replicas, bool) or not isinstance(min_replicas, int) or min_replicas < 0:
        raise LockConfigError("singleton_lock_min_replicas: give a whole number of 0 or more")
    if not isinstance(url, str):
        return _open_list(url, prefix, timeout, min_replicas)
    scheme = scheme_of(url)
    if scheme == "memory":
        from .memory import MemoryStore

        if min_replicas:
            raise LockConfigError("singleton_lock_min_replicas: memory:// has no replicas; remove it")
        return MemoryStore.named(url, prefix=prefix, timeout=timeout)
    if scheme not in SCHEMES:
        raise LockConfigError(
            f"singleton_lock_url: {redact(url)!r} is no URL of a lock server; use redis://, rediss://, unix://, "
            "sentinel://, redis+cluster:// or, for tests, memory://"
        )
    if SCHEMES[scheme][0] == "cluster":
        from .cluster import ClusterStore

        return ClusterStore(url, prefix=prefix, timeout=timeout, min_replicas=min_replicas)
    from .redis import RedisStore

    return RedisStore(url, prefix=prefix, timeout=timeout, min_replicas=min_replicas)


def _open_list(urls: Sequence[str], prefix: str, timeout: float, min_replicas: int) -> Store:
    if not isinstance(urls, (list, tuple)) or not urls or not all(isinstance(url, str) for url in urls):
        raise LockConfigError("singleton_lock_url: give one URL, or a list of URLs")
    if len(urls) == 1:
        return open_store(urls[0], prefix=prefix, timeout=timeout, min_replicas=min_replicas)
    if min_replicas:
        raise LockConfigError(
            "singleton_lock_min_replicas: a quorum's servers are independent and have no replicas that count; "
            "give one URL, or remove it"
        )
    if len(urls) == 2:
        raise LockConfigError(
            "singleton_lock_url: two servers are worse than one, since both must answer; give one or three"
        )
    places = [_place(url) for url in urls]
    if len(set(places)) < len(places):
        raise LockConfigError("singleton_lock_url: a server stands in the list twice; its vote must count once")
    if len(urls) % 2 == 0:
        logger.warning(
            "singleton_lock_url: %d servers bear the loss of no more than %d would; an odd number is better",
            len(urls),
            len(urls) - 1,
        )
    from .quorum import QuorumStore

    return QuorumStore(urls, prefix=prefix, timeout=timeout)


def _place(url: str) -> tuple[str, int | None]:
    """Where one of a quorum's servers is: its databases share its fate."""
    kind = SCHEMES.get(scheme_of(url), ("", False))[0]
    if kind not in ("server", "socket"):
        raise LockConfigError(
            f"singleton_lock_url: {redact(url)!r} cannot be one of several: a quorum is made of independent servers, "
            "each redis://, rediss:// or unix://"
        )
    parsed: Url = read(url)
    host, port = parsed.hosts[0]
    return (parsed.path, None) if kind == "socket" else (host.lower() or "localhost", port or 6379)
