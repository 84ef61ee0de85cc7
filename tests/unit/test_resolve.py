"""Looking up a host: within a bound, in one thread a host, however many calls give up."""

from __future__ import annotations

import socket
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.keys.names import names
from celery_singleton_lock.transport import resolve
from celery_singleton_lock.transport.resolve import Resolver

from ..support.locks import held_lock


class NameServer:
    """Stands where the system asks: it is silent until it is told to answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.answers = threading.Event()
        self.error: Exception | None = None

    def __call__(self, host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        """In place of ``socket.getaddrinfo``."""
        self.asked.append((host, port))
        assert self.answers.wait(30)
        if self.error is not None:
            raise self.error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("192.0.2.1", "192.0.2.2")]


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """A silent one; it answers at the end at the latest, so that no thread is left."""
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    yield server
    server.answers.set()
    for thread in threading.enumerate():
        if thread.name == "singleton-lock-resolve":
            thread.join(30)


def test_numeric_addresses_ask_nobody(name_server: NameServer) -> None:
    """What is an address already is its own answer."""
    for host in ("192.0.2.7", "2001:db8::1", "fe80::1%eth0"):
        assert Resolver().addresses(host, 6379, 0.0) == [host]
    assert name_server.asked == []


def test_addresses(name_server: NameServer) -> None:
    """All addresses, in the system's order; and each time asked anew, since a failover may change them."""
    name_server.answers.set()
    resolver = Resolver()
    for _ in range(2):
        assert resolver.addresses("locks.example", 6379, 30.0) == ["192.0.2.1", "192.0.2.2"]
    assert name_server.asked == [("locks.example", 6379)] * 2


@pytest.mark.parametrize("error", [socket.gaierror(-2, "unknown"), UnicodeError("malformed")], ids=repr)
def test_failures(name_server: NameServer, error: Exception) -> None:
    """What the system's lookup raises comes out, at the caller."""
    name_server.error = error
    name_server.answers.set()
    with pytest.raises(type(error)) as caught:
        Resolver().addresses("nowhere.example", 6379, 30.0)
    assert caught.value.args == error.args


def test_silent_name_server(name_server: NameServer) -> None:
    """Who asks in vain gives up in time; a hundred callers share one thread, and the late answer (B13)."""
    resolver = Resolver()
    tracemalloc.start()
    for _ in range(100):
        with pytest.raises(TimeoutError):
            resolver.addresses("locks.example", 6379, 0.001)
    made = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, resolve.__file__)])
    tracemalloc.stop()
    assert sum(line.count for line in made.statistics("filename")) < 100, "what waits in vain is kept"
    assert len(name_server.asked) == 1
    name_server.answers.set()
    assert resolver.addresses("locks.example", 6379, 30.0) == ["192.0.2.1", "192.0.2.2"]


def test_no_thread_to_be_had(name_server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives no thread, that is a server out of reach, and no lookup that others would wait for."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    resolver = Resolver()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(OSError, match="no thread"):
            resolver.addresses("locks.example", 6379, 30.0)
        with pytest.raises(StoreUnavailable):
            open_store("redis://locks.example").peek(names("x", "order:7"))
    name_server.answers.set()
    assert resolver.addresses("locks.example", 6379, 30.0) == ["192.0.2.1", "192.0.2.2"]


def test_interrupted_callers_stop_nobody(name_server: NameServer) -> None:
    """A time limit at any line of a caller that waits: the next gives up in time, and then gets the answer (B37)."""
    resolver = Resolver()
    struck: set[int] = set()

    def strike(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != resolve.__file__ or frame.f_code.co_name not in ("addresses", "wait"):
            return None
        if event in ("line", "return"):
            count[0] -= 1
            if count[0] == 0:
                raise KeyboardInterrupt
        return strike

    for moment in range(1, 20):
        count = [moment]
        sys.settrace(strike)
        try:
            resolver.addresses("locks.example", 6379, 0.001)
        except KeyboardInterrupt:
            struck.add(moment)
        except TimeoutError:
            pass
        finally:
            sys.settrace(None)
        with pytest.raises(TimeoutError):
            resolver.addresses("locks.example", 6379, 0.001)
    assert len(struck) > 8
    name_server.answers.set()
    assert resolver.addresses("locks.example", 6379, 30.0) == ["192.0.2.1", "192.0.2.2"]


def test_no_call_outlasts_its_bound(name_server: NameServer) -> None:
    """A lock whose server's name is not resolved is out of reach within the store's timeout (B13)."""
    store = open_store("redis://locks.example", timeout=0.05)
    with pytest.raises(StoreUnavailable) as caught:
        held_lock(store)
    assert not name_server.answers.is_set(), "it waited for the name server"
    assert not caught.value.denied
    assert len(name_server.asked) == 1
