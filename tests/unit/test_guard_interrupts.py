"""Exceptions that land inside a guard's calls, such as a soft time limit: nothing stays taken, nothing goes on."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest

from celery_singleton_lock.locks import guard as guards
from celery_singleton_lock.locks.renewal import Renewer

from ..support.interrupts import Interrupt
from ..support.locks import is_held
from .conftest import MakeGuard
from .flaky_store import FlakyStore


def test_interrupted_request_is_undone(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """A time limit that lands while the answer is on its way leaves something to free, under a tombstone (B37)."""

    def interrupt() -> None:
        flaky.afterwards = lambda: None
        raise Interrupt

    flaky.afterwards = interrupt
    guard = make_guard()
    with pytest.raises(Interrupt):
        guard.acquire()
    assert guard.pending
    assert is_held(flaky)
    guard.release()
    assert not is_held(flaky)
    assert flaky.releases[-1][1]["unanswered"] is True


def test_interrupt_at_any_line_leaves_nothing(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer) -> None:
    """Whichever line of `acquire` a time limit lands on, `release` frees the lock and renewal ends (B37)."""
    lines_hit = 0
    for stop_at in range(1, 200):
        guard, seen = make_guard(), 0

        def tracer(frame: FrameType, event: str, arg: object, stop_at: int = stop_at) -> Any:
            nonlocal seen
            if frame.f_code.co_filename != guards.__file__:
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
        assert not is_held(flaky), f"line event {stop_at}"
        assert len(renewer) == 0, f"line event {stop_at}"
        if seen < stop_at:
            break
    assert lines_hit > 10
