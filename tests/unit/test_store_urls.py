"""URLs of lock servers: what is no URL is refused before anything is connected, and never shown with its secret."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from celery_singleton_lock import LockConfigError, StoreUnavailable, open_store
from celery_singleton_lock.keys.names import names
from celery_singleton_lock.stores.memory import MemoryStore
from celery_singleton_lock.stores.redis import RedisStore
from celery_singleton_lock.stores.scripts import milliseconds

SECRET = "s3cret"


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://localhost:6379/0",
        "redis://user:pa%2Fss@localhost:6379/15",
        "redis://:pass@[::1]:6379/1?socket_keepalive=yes",
        "rediss://localhost:6380/0",
        "rediss://localhost:6380/0?ssl_cert_reqs=none",
        "unix:///run/redis.sock",
        "unix://:pass@/run/redis.sock?db=2",
        "REDIS://localhost/0",
    ],
)
def test_urls_of_one_server(url: str) -> None:
    """Every form of a server's URL opens a store that other processes share, without connecting."""
    store = open_store(url)
    assert isinstance(store, RedisStore)
    assert store.shared


def test_memory() -> None:
    """`memory://` is this process's own: the same URL and prefix give the same store."""
    store = open_store("memory://here")
    assert isinstance(store, MemoryStore)
    assert not store.shared
    assert open_store("memory://here") is store
    assert open_store("memory://there") is not store
    assert open_store("memory://here", prefix="other") is not store


def test_list_of_one() -> None:
    """A list of one URL is that one server (B43 e)."""
    assert open_store(["memory://here"]) is open_store("memory://here")
    assert isinstance(open_store(("redis://localhost",)), RedisStore)


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        ([], "give one URL"),
        ([f"redis://:{SECRET}@a", f"redis://:{SECRET}@b"], "two servers are worse than one"),
        ([f"redis://:{SECRET}@a"] * 3, "stands in the list twice"),
        ([f"redis://:{SECRET}@a", "redis://b", "memory://c"], ""),
        ([1], "give one URL"),
        ([None, f"redis://:{SECRET}@a"], "give one URL"),
        (5, "give one URL"),
        (None, "give one URL"),
        (b"redis://a", "give one URL"),
        ({"url": f"redis://:{SECRET}@a"}, ""),
    ],
    ids=repr,
)
def test_lists(urls: Any, words: str) -> None:
    """Lists that are no quorum, and strange types, are refused by the setting's name, without passwords (B43, B47)."""
    with pytest.raises(LockConfigError) as caught:
        open_store(urls)
    assert str(caught.value).startswith("singleton_lock_url: ")
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        SECRET,
        f"localhost:6379/{SECRET}",
        f"redis:/{SECRET}@localhost",
        f"amqp://guest:{SECRET}@localhost//",
        f"http://user:{SECRET}@localhost",
        f"redis://:{SECRET}@localhost:port/0",
        f"redis://:{SECRET}@localhost:99999/0",
        f"redis://:{SECRET}@localhost:6379/first",
        f"redis://:{SECRET}@localhost:6379/0/1",
        f"redis://:{SECRET}@localhost:6379/-1",
        f"redis://:{SECRET}@[::1/0",
        f"redis://:{SECRET}",
        f"redis://:{SECRET}#more@localhost/0",
        f"redis://:{SECRET}/more@localhost/0",
        f"redis://:12/{SECRET}@localhost/0",
        f"redis://localhost/0?password={SECRET}&socket_timeout=soon",
        f"redis://localhost/0?{SECRET}=1",
        f"rediss://:{SECRET}@localhost/0?ssl_cert_reqs=sometimes",
        f"redis://:{SECRET}@localhost/0?retry_on_timeout=perhaps&nonsense=1",
    ],
)
def test_malformed_urls(url: str) -> None:
    """What is no URL of a lock server is refused at once by the setting's name, and its secret is not shown (B47)."""
    with pytest.raises(LockConfigError) as caught:
        open_store(url)
    assert str(caught.value).startswith("singleton_lock_url: ")
    if not url.endswith("=1"):  # an unknown option is named
        assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("reqs", ["CERT_NONE", "CERT_REQUIRED", "required"])
def test_celerys_way_to_say_certificates(reqs: str) -> None:
    """A rediss:// URL as Celery's own result backend demands it opens a store as well (B46)."""
    assert isinstance(open_store(f"rediss://localhost:6380/0?ssl_cert_reqs={reqs}"), RedisStore)


@pytest.mark.parametrize("url", ["redis://a..b:1/0", "redis://127.0.0.1:1/0", "unix:///nowhere/redis.sock"])
def test_nobody_there(url: str) -> None:
    """A server that cannot be reached, or has no name that could be, is a store out of reach and nothing else."""
    store = open_store(url, timeout=0.5)
    with pytest.raises((StoreUnavailable, LockConfigError)):
        store.peek(names(store.prefix, "order:7"))


def test_nothing_is_connected_before_the_first_call() -> None:
    """Opening a store connects to nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        open_store(f"redis://127.0.0.1:{server.getsockname()[1]}/0")
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("seconds", "whole"),
    [(0.4, 400), (1.5, 1500), (0.05, 50), (0.0001, 1), (0.0, 1), (86400, 86_400_000), (0.1 + 0.2, 300)],
)
def test_milliseconds(seconds: float, whole: int) -> None:
    """A ttl reaches the server in whole milliseconds, and never as 0, which would delete the lock (B41)."""
    assert milliseconds(seconds) == whole


@pytest.mark.parametrize("timeout", [-1, 0, "1", float("nan"), 3600], ids=repr)
def test_bad_timeouts(timeout: Any) -> None:
    """A bound that is none is refused, by the setting's name (B25)."""
    with pytest.raises(LockConfigError, match=r"^singleton_lock_timeout: "):
        open_store("redis://h", timeout=timeout)
