"""Waiting for what another process does. Not for unit and contract tests: there time is a value that the test sets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(predicate: Callable[[], T], timeout: float = 30.0, message: str = "") -> T:
    """The first true value of ``predicate()``, asked every 20 ms; AssertionError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{message or predicate} did not come true within {timeout} s; last value: {value!r}")
        time.sleep(0.02)
    return value
