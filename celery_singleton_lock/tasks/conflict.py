"""What to do when the lock is taken or the store is out of reach: decisions as values, carried out elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ..locks.answers import Taken
from .options import LockOptions

#: Seconds after the end of a lease that its waiter looks again.
SLACK = 0.05


@dataclass(frozen=True, slots=True)
class SendAgain:
    """Send the message again in ``countdown`` seconds. ``quietly``: leave the stored result and state alone."""

    countdown: float
    quietly: bool = False


@dataclass(frozen=True, slots=True)
class Skip:
    """Answer with the skip result."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fail with the reason at hand: `LockTaken` or `StoreUnavailable`."""


@dataclass(frozen=True, slots=True)
class RunUnlocked:
    """Run without a lock, and say so loudly."""


Decision = SendAgain | Skip | GiveUp | RunUnlocked


@dataclass(frozen=True, slots=True)
class Waiter:
    """The message that found the lock taken.

    ``in_worker``: it came as a message and can be sent again. ``begun``: its work may have started before. ``waits``:
    how often it was sent again so far; ``waited``: seconds since the first time. ``max_delay``: the longest delay that
    the broker can be given, in seconds.
    """

    in_worker: bool
    begun: bool
    task_id: str | None
    parent_id: str | None = None
    waits: int = 0
    waited: float = 0.0
    max_delay: float = float("inf")


def same_lineage(waiter: Waiter, taken: Taken) -> bool:
    """Whether the holder is the waiter's own earlier delivery, or the task that sent it: never a mere duplicate."""
    holder = taken.holder.task_id
    return holder is not None and holder in (waiter.task_id, waiter.parent_id)


def on_taken(
    options: LockOptions, waiter: Waiter, taken: Taken, rand: Callable[[float, float], float] = random.uniform
) -> Decision:
    """Decide what to do about a taken lock.

    A message that has begun is neither skipped nor failed, whoever holds the lock. Whoever cannot send a message gets
    `GiveUp` where a worker would send it again.
    """
    if not waiter.in_worker:
        return Skip() if options.on_conflict == "skip" and not waiter.begun else GiveUp()
    own = taken.holder.task_id is not None and taken.holder.task_id == waiter.task_id
    if not (waiter.begun or same_lineage(waiter, taken)):
        if options.on_conflict == "skip":
            return Skip()
        if options.on_conflict != "retry" or _exhausted(options, waiter):
            return GiveUp()
    delay = backoff(options, waiter, rand)
    if (own or taken.resting) and taken.remaining is not None:
        delay = min(delay, taken.remaining + SLACK)
    return SendAgain(delay, quietly=own and not taken.resting)


def on_unavailable(
    options: LockOptions,
    waiter: Waiter,
    *,
    denied: bool = False,
    contended: bool = False,
    rand: Callable[[float, float], float] = random.uniform,
) -> Decision:
    """Decide what to do about a store that cannot say.

    ``denied``: it rejected the credentials; ``contended``: it answered, and granted the lock to nobody. Neither is a
    reason to run without a lock, whatever the policy, and contention fails no message that has begun.
    """
    if options.on_unavailable == "run" and not (denied or contended):
        return RunUnlocked()
    if not waiter.in_worker:
        return GiveUp()
    if options.on_unavailable == "raise" and not (contended and waiter.begun):
        return GiveUp()
    if not waiter.begun and _exhausted(options, waiter):
        return GiveUp()
    return SendAgain(backoff(options, waiter, rand))


def backoff(options: LockOptions, waiter: Waiter, rand: Callable[[float, float], float] = random.uniform) -> float:
    """Seconds until the next look. Exponential backoff with equal jitter: half fixed, half random.

    Never 0, unlike full jitter: a message that comes back at once only turns in the queue.
    """
    delay = min(options.retry_backoff * 2.0 ** min(waiter.waits, 30), options.retry_backoff_max, waiter.max_delay)
    if options.retry_jitter:
        delay = rand(delay / 2, delay)
    if options.retry_timeout is not None and not waiter.begun:
        delay = min(delay, max(SLACK, options.retry_timeout - waiter.waited))
    return delay


def _exhausted(options: LockOptions, waiter: Waiter) -> bool:
    if options.retry_limit is not None and waiter.waits >= options.retry_limit:
        return True
    return options.retry_timeout is not None and waiter.waited >= options.retry_timeout
