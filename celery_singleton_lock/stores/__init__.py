"""Stores of locks, and the one way to open them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..errors import LockConfigError
from ..keys.names import DEFAULT_PREFIX, check_prefix
from ..locks.protocol import Store
from ..locks.terms import DEFAULT_TIMEOUT, count, seconds
from ..transport.urls import SCHEMES, HostPort, Url, read, redact, scheme_of

__all__ = ["open_store"]

logger = logging.getLogger(__name__)


def open_store(
    url: str | Sequence[str], *, prefix: str = DEFAULT_PREFIX, timeout: float = DEFAULT_TIMEOUT, min_replicas: int = 0
) -> Store:
    """The store behind ``url``; nothing is connected yet.

    ``url``: ``redis://``, ``rediss://``, ``unix://``, ``sentinel://``, ``redis+cluster://``, ``rediss+cluster://`` or
    ``memory://``, or a list of URLs of independent servers, which is a quorum; ``prefix``: what its keys begin with;
    ``timeout``: the bound of a call, in seconds; ``min_replicas``: how many replicas must have acknowledged a lock
    before it counts as granted, not with a quorum. Raises `LockConfigError`, which shows no password.
    """
    check_prefix(prefix)
    timeout = seconds("singleton_lock_timeout", timeout, least=0.01, most=60.0)
    count("singleton_lock_min_replicas", min_replicas)
    if not isinstance(url, str):
        if not isinstance(url, (list, tuple)) or not url or not all(isinstance(one, str) for one in url):
            raise LockConfigError("singleton_lock_url: give one URL, or a list of URLs")
        if len(url) > 1:
            return _open_quorum(url, prefix, timeout, min_replicas)
        return open_store(url[0], prefix=prefix, timeout=timeout, min_replicas=min_replicas)
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
    parsed = read(url)
    if parsed.kind == "cluster":
        from .cluster import ClusterStore

        return ClusterStore.at(parsed, prefix=prefix, timeout=timeout, min_replicas=min_replicas)
    from .redis import RedisStore

    return RedisStore.at(parsed, prefix=prefix, timeout=timeout, min_replicas=min_replicas)


def _open_quorum(urls: Sequence[str], prefix: str, timeout: float, min_replicas: int) -> Store:
    if min_replicas:
        raise LockConfigError(
            "singleton_lock_min_replicas: a quorum's servers are independent and have no replicas that count; "
            "give one URL, or remove it"
        )
    if len(urls) == 2:
        raise LockConfigError(
            "singleton_lock_url: two servers are worse than one, since both must answer; give one or three"
        )
    servers = [_member(url) for url in urls]
    if len({_place(server) for server in servers}) < len(servers):
        raise LockConfigError("singleton_lock_url: a server stands in the list twice; its vote must count once")
    if len(urls) % 2 == 0:
        logger.warning("singleton_lock_url: %s; an odd number is better", even_servers(len(urls)))
    from .quorum import QuorumStore

    return QuorumStore(servers, prefix=prefix, timeout=timeout)


def _member(url: str) -> Url:
    """One of a quorum's servers."""
    if SCHEMES.get(scheme_of(url), ("", False))[0] not in ("server", "socket"):
        raise LockConfigError(
            f"singleton_lock_url: {redact(url)!r} cannot be one of several: a quorum is made of independent servers, "
            "each redis://, rediss:// or unix://"
        )
    return read(url)


def _place(server: Url) -> str | HostPort:
    """Where it is: the databases of one server share its fate."""
    host, port = server.hosts[0]
    return server.path if server.kind == "socket" else (host.lower(), port)


def even_servers(number: int) -> str:
    """What is wrong with an even number of servers."""
    return f"{number} servers tolerate no more failures than {number - 1}"
