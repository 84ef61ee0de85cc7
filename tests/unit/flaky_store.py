"""The in-memory store with faults that a test switches on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_singleton_lock.locks.answers import Answer
from celery_singleton_lock.locks.protocol import AcquireRequest, HeldLock, RecordWrite
from celery_singleton_lock.stores.memory import MemoryStore

from ..support.clock import ManualClock


class FlakyStore(MemoryStore):
    """Keeps a list of its calls, and can be out of reach or slow.

    ``fault``: raised by every call, in place of doing it. ``afterwards``: called when a call has been carried out and
    its answer is on the way; ``beforehand``: when a renewal is on the way. ``unsure``: renewals answer that nobody can
    tell. ``renewals``: of each renewal (its moment, its locks, its bound in seconds). ``releases``: of each release
    (its lock, its options).
    """

    def __init__(self, clock: ManualClock, *, timeout: float = 1.0) -> None:
        super().__init__(clock=clock, wall=clock, timeout=timeout)
        self.clock = clock
        self.fault: BaseException | None = None
        self.afterwards: Callable[[], object] = lambda: None
        self.beforehand: Callable[[], object] = lambda: None
        self.unsure = False
        self.renewals: list[tuple[float, list[HeldLock], float]] = []
        self.releases: list[tuple[HeldLock, dict[str, Any]]] = []

    def acquire(self, request: AcquireRequest) -> Answer:
        self._fail()
        answer = super().acquire(request)
        self.afterwards()
        return answer

    def renew(self, locks: Sequence[HeldLock], timeout: float) -> list[bool | None]:
        self.renewals.append((self.clock(), list(locks), timeout))
        self._fail()
        self.beforehand()
        answers = super().renew(locks, timeout)
        self.afterwards()
        return [None] * len(locks) if self.unsure else answers

    def release(
        self, lock: HeldLock, *, rest: float = 0.0, write: RecordWrite | None = None, unanswered: bool = False
    ) -> bool:
        self.releases.append((lock, {"rest": rest, "write": write, "unanswered": unanswered}))
        self._fail()
        held = super().release(lock, rest=rest, write=write, unanswered=unanswered)
        self.afterwards()
        return held

    def _fail(self) -> None:
        if self.fault is not None:
            raise self.fault
