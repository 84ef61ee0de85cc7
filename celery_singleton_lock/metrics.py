"""Counters of what happens to locks, fed by the signals."""

from __future__ import annotations

from collections import Counter
from typing import Any

from . import signals


class LockCounters:
    """Counts every lock signal per task in this process.

    ``counts``: how often, by (signal name, task name), for example ``("lock_skipped", "shop.daily_report")``.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def connect(self) -> LockCounters:
        """Start to count. The signals keep no reference: hold on to the object."""
        for signal in signals.ALL:
            signal.connect(self._count)
        return self

    def disconnect(self) -> None:
        """Stop counting."""
        for signal in signals.ALL:
            signal.disconnect(self._count)

    def _count(self, sender: Any = None, signal: Any = None, **_: Any) -> None:
        self.counts[signal.name, getattr(sender, "name", str(sender))] += 1
