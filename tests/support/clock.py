"""A clock that stands still until a test moves it."""

from __future__ import annotations

from celery_singleton_lock.locks.renewal import Renewer


class ManualClock:
    """Called, it tells the time in seconds; only `advance` moves it."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self.now += seconds

    def run(self, renewer: Renewer, seconds: float) -> None:
        """Let ``seconds`` pass, and the renewer tick whenever it wants to."""
        end = self.now + seconds
        while (pause := renewer.tick()) is not None and self.now + pause <= end:
            self.advance(pause or 0.001)
        self.now = max(self.now, end)
