"""Which clock counts what: deadlines by one that nobody sets, waits of a message by the wall clock."""

from __future__ import annotations

import runpy
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import Lock, LockTaken
from celery_singleton_lock.locks import clock
from celery_singleton_lock.tasks.message import HEADER, Message

from ..support.clock import ManualClock
from .inline_worker import InlineWorker, make_charge

HOUR = 3600.0


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The wall clock by which messages count their waits."""
    made = ManualClock(1.8e9)
    monkeypatch.setattr("celery_singleton_lock.tasks.message.time", SimpleNamespace(time=made, sleep=pytest.fail))
    return made


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system's clocks do not tell sleep apart")
def test_deadlines_count_a_sleeping_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines are read from the clock that goes on while the machine is suspended (B51)."""
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 4711.5, time.CLOCK_MONOTONIC: 11.5}.get)
    assert runpy.run_path(clock.__file__)["now"]() == 4711.5


def test_deadlines_where_no_clock_counts_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems deadlines are read from the monotonic clock, never from the wall's (B51)."""
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert runpy.run_path(clock.__file__)["now"] is time.monotonic


@pytest.mark.parametrize(("jump", "waited"), [(0.0, 0.0), (HOUR, HOUR), (-HOUR, 0.0)])
def test_waited_is_by_the_wall_clock(wall: ManualClock, jump: float, waited: float) -> None:
    """A jump ahead counts as waited, since the clock is another machine's, too; a jump back never below 0 (B51)."""
    message = Message(None, True, "id", 0, None, False, {"since": wall()}, None)
    wall.advance(jump)
    assert message.waited == waited


def test_wall_clock_jumps_ahead(
    app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock, wall: ManualClock
) -> None:
    """An hour that the wall clock jumps ahead between two waits counts towards `retry_timeout` (B51)."""

    @app.task(lazy=False)
    def on_error(request: Any, error: Exception, traceback: Any) -> None:
        ran.append(error)

    make_charge(app, ran, lock_retry_timeout=600.0).apply_async((7,), link_error=on_error.s())
    assert worker.run().state == "RETRY"
    wall.advance(HOUR)
    assert worker.run().state == "FAILURE"
    (error,) = ran
    assert isinstance(error, LockTaken)
    assert error.waited == HOUR


def test_wall_clock_jumps_back(
    app: Celery, worker: InlineWorker, ran: list[Any], taken: Lock, wall: ManualClock
) -> None:
    """An hour that it jumps back leaves a wait of 0 s and the time of the first wait: the message runs in the end."""
    make_charge(app, ran, lock_retry_timeout=600.0).delay(7)
    since = wall()
    assert worker.run().state == "RETRY"
    wall.advance(-HOUR)
    assert worker.run().state == "RETRY"
    message = worker.take()
    assert (message.headers[HEADER]["waits"], message.headers[HEADER]["since"]) == (2, since)
    taken.release()
    assert worker.run(message).result == 7
