"""Exceptions that strike from outside, as a soft time limit does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Interrupt(BaseException):
    """A soft time limit, say."""


@contextmanager
def interrupted(seconds: float = 0.1) -> Iterator[None]:
    """`Interrupt` strikes in the main thread ``seconds`` from now, and comes out of the block."""

    def strike(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(Interrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
