"""The lock of a killed child: its parent frees it once the child is proven gone, and no other's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.worker.request import Request

from celery_singleton_lock.locks.answers import Holder
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.worker import request as worker_request

from ..support.locks import held_guard, is_held
from .inline_worker import InlineWorker, make_charge

pytestmark = pytest.mark.skipif(not hasattr(os, "waitid"), reason="there is no prefork here")

HOST = "worker@here"

without_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="zombies are told by /proc")


@pytest.fixture
def ended() -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process that has ended and is a zombie: nobody has asked for its exit code yet."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child
    child.wait()


@pytest.fixture
def request_of(app: Celery, worker: InlineWorker, ran: list[Any]) -> Callable[[int], Request]:
    """``request_of(pid)``: the worker's request for order 7, as its parent has it while child ``pid`` runs it."""

    def make(pid: int) -> Request:
        make_charge(app, ran).delay(7)
        request = Request(worker.take(), app=app, hostname=HOST)
        request.worker_pid = pid
        return request

    return make


def childs_guard(store: Store, request: Request, **other: Any) -> Guard:
    """A guard that holds order 7 as the request's child does, but for what ``other`` says."""
    holder = Holder(request.id, "shop.charge", HOST, request.worker_pid)._replace(**other)
    return held_guard(store, holder=holder)


def test_living_child_keeps_its_lock(
    store: Store,
    request_of: Callable[[int], Request],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A child that still lives when the patience ends keeps its lock, with a warning: it may be in its body."""
    monkeypatch.setattr(worker_request, "CHILD_EXIT_TIMEOUT", 0.0)
    request = request_of(os.getpid())
    guard = childs_guard(store, request)
    worker_request.free_killed(request)
    assert is_held(store)
    assert "is not gone yet" in caplog.text
    assert guard.release() is True


@pytest.mark.parametrize("reaped", [pytest.param(False, marks=without_proc), True], ids=["zombie", "reaped"])
def test_ended_childs_lock_is_freed(
    store: Store, request_of: Callable[[int], Request], ended: subprocess.Popen[bytes], reaped: bool
) -> None:
    """A child that has ended can do nothing more, whether or not its exit code was asked for: its lock is free."""
    if reaped:
        ended.wait()
    request = request_of(ended.pid)
    childs_guard(store, request)
    worker_request.free_killed(request)
    assert not is_held(store)


def test_lock_that_a_dying_child_takes(
    store: Store, request_of: Callable[[int], Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that the child takes before its end is freed, too: the parent looks at the lock when it is gone."""
    looks: list[int] = []

    def is_gone(pid: int) -> bool:
        looks.append(pid)
        if len(looks) == 1:
            childs_guard(store, request)
        return len(looks) > 2

    monkeypatch.setattr(worker_request, "is_gone", is_gone)
    request = request_of(4711)
    worker_request.free_killed(request)
    assert looks == [4711] * 3
    assert not is_held(store)


@pytest.mark.parametrize("other", [{"task_id": "other"}, {"host": "worker@there"}, {"pid": 1}], ids=str)
def test_others_lock_is_left_alone(
    store: Store, request_of: Callable[[int], Request], ended: subprocess.Popen[bytes], other: dict[str, Any]
) -> None:
    """A lock of another task, host or process is not the killed child's."""
    request = request_of(ended.pid)
    guard = childs_guard(store, request, **other)
    worker_request.free_killed(request)
    assert is_held(store)
    assert guard.release() is True
