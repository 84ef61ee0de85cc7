"""Exceptions that land inside a guard's calls, such as a soft time limit: nothing stays taken, nothing goes on."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.renewal import Renewer

from ..support.clock import ManualClock
from .flaky_store import FlakyStore
from .leases import holder


class Interrupt(BaseException):
    """A time limit, say."""


def test_interrupted_request_is_undone(make_guard: Callable[..., Guard], flaky: FlakyStore) -> None:
    """A time limit that lands while the answer is on its way leaves something to free, under a refused token (B37)."""

    def interrupt() -> None:
        flaky.afterwards = lambda: None
        raise Interrupt

    flaky.afterwards = interrupt
    guard = make_guard()
    with pytest.raises(Interrupt):
        guard.acquire()
    assert guard.pending
    assert holder(flaky) is not None
    guard.release()
    assert holder(flaky) is None
    assert flaky.releases[-1][1]["unanswered"] is True


def test_interrupt_at_any_line_leaves_nothing(
    make_guard: Callable[..., Guard], flaky: FlakyStore, renewer: Renewer, clock: ManualClock
) -> None:
    """Whichever line of `acquire` a time limit lands on, `release` frees the lock and renewal ends (B37)."""
    lines_hit = 0
    for stop_at in range(1, 200):
        guard, seen = make_guard(), 0

        def tracer(frame: FrameType, event: str, arg: object, stop_at: int = stop_at) -> Any:
            nonlocal seen
            if frame.f_code not in (Guard.acquire.__code__, Guard._ask.__code__):
                return None
            if event == "line":
                seen += 1
                if seen == stop_at:
                    raise Interrupt
            return tracer

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            guard.acquire()
        except Interrupt:
            lines_hit += 1
        finally:
            sys.settrace(before)
        guard.release()
        del guard
        gc.collect()
        renewer.tick()
        assert holder(flaky) is None, f"line event {stop_at}"
        assert len(renewer) == 0, f"line event {stop_at}"
        if seen < stop_at:
            break
    assert lines_hit > 10
