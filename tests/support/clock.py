"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """Called, it tells the time in seconds; only `advance` moves it."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self.now += seconds
