"""Celery signals of what happens to locks.

The sender is the task. Every signal carries ``task_id`` (str or None) and ``key_id`` (16 hex digits); no argument of
the call is in any of them. A receiver's fault is logged by Celery and changes nothing.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

_COMMON = {"task_id", "key_id"}

#: The lock is held and the body starts. ``fence``: int.
lock_acquired = Signal(name="lock_acquired", providing_args={*_COMMON, "fence"})
#: The body ended and the lock was given back. ``held``: False where it was lost before.
lock_released = Signal(name="lock_released", providing_args={*_COMMON, "held"})
#: The lock is taken, the message was sent again. ``holder``: task id or None; ``countdown``: seconds; ``waits``: int.
lock_waiting = Signal(name="lock_waiting", providing_args={*_COMMON, "holder", "countdown", "waits"})
#: The lock is taken and the task was answered with its skip result. ``holder``: task id or None.
lock_skipped = Signal(name="lock_skipped", providing_args={*_COMMON, "holder"})
#: The lock is taken and the task failed with LockTaken. ``holder``: task id or None.
lock_refused = Signal(name="lock_refused", providing_args={*_COMMON, "holder"})
#: The task was answered from the record of an earlier run. ``recorded_by``: that run's task id.
lock_replayed = Signal(name="lock_replayed", providing_args={*_COMMON, "recorded_by"})
#: The lease was lost while the body ran. ``reason``: str.
lease_lost = Signal(name="lease_lost", providing_args={*_COMMON, "reason"})
#: The lock servers could not be used. ``reason``: str; ``unlocked``: whether the body runs without a lock now.
lock_unavailable = Signal(name="lock_unavailable", providing_args={*_COMMON, "reason", "unlocked"})

ALL = (
    lock_acquired,
    lock_released,
    lock_waiting,
    lock_skipped,
    lock_refused,
    lock_replayed,
    lease_lost,
    lock_unavailable,
)
