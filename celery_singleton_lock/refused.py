"""A call that was not granted its lock: it waits, is skipped, is answered from a record, or fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import Task

from . import chords, records, signals
from .conflict import GiveUp, RunUnlocked, SendAgain, Skip, Waiter, backoff, on_taken, on_unavailable, same_lineage
from .errors import IdempotencyMismatch, LockTaken, SingletonLockError, StoreUnavailable
from .lease import Unlocked, holding
from .message import Message, end_silently
from .options import DEFAULT_RESULT
from .plan import Plan, Work
from .protocol import Recorded, Taken

logger = logging.getLogger(__name__)


class Refused:
    """Carries out what `conflict` decides. Each answer is the call's result, or an exception for Celery."""

    def __init__(
        self, task: Task, plan: Plan, message: Message, work: Work, key_id: str, body: Callable[[], Any]
    ) -> None:
        """``body`` is run where ``on_unavailable="run"`` says so."""
        self.task = task
        self.plan = plan
        self.message = message
        self.work = work
        self.key_id = key_id
        self.body = body
        self.blocked = 0.0  # seconds that the call has waited in here

    def recorded(self, answer: Recorded) -> Any:
        """The work was done before: what its run left."""
        try:
            record = records.decode(answer.body)
        except ValueError as error:  # a newer release of this package may have written it
            reason = f"the record of lock {self.key_id} cannot be read: {error}"
            return self.unavailable(StoreUnavailable(reason, contended=True))
        if record.state == "retried":
            logger.info("%s: an older delivery, its retry was sent already; it ends here", self)
            raise end_silently("superseded by its own retry")
        if self.work.fingerprint != record.fingerprint:
            raise IdempotencyMismatch(self.key_id, record.task_id)
        if record.task_id == self.message.task_id and self._is_counted_next(answer):
            again = SendAgain(backoff(self.plan.options, self._waiter()), quietly=True)
            raise self._send_again(again, LockTaken(self.key_id, record.task_id), True, record.task_id)
        hint = "" if self.work.fingerprint else "; to run an old task id again on purpose, set idempotency_key=False"
        logger.info("%s: answered from the record of task %s (%s)%s", self, record.task_id, self.key_id, hint)
        self._tell(signals.lock_replayed, recorded_by=record.task_id)
        if record.result is not None:
            try:
                return self.plan.settings.decode_result(record.result)
            except Exception as error:
                logger.warning("%s: the recorded result cannot be read: %s", self, type(error).__name__)
        return records.not_kept(record.task_id, self.key_id)

    def _is_counted_next(self, answer: Recorded) -> bool:
        """Whether the run that wrote the record is about to tell its chord: a replay now would be a second count."""
        message = self.message
        if not message.in_chord or message.count_once(self.task):
            return False
        return self.plan.age(self.work, answer) < chords.GRACE  # beyond that it died before it could

    def _waiter(self) -> Waiter:
        message = self.message
        return Waiter(
            message.in_worker,
            message.begun,
            message.task_id,
            message.parent_id,
            message.waits,
            message.waited + self.blocked,
            self.plan.longest,
        )

    def taken(self, taken: Taken) -> Any:
        """Somebody else holds the lock."""
        waiter = self._waiter()
        decision = on_taken(self.plan.options, waiter, taken)
        holder = taken.holder.task_id
        reason = LockTaken(self.key_id, holder, waiter.waited, taken.remaining)
        if isinstance(decision, Skip):
            logger.info("%s: skipped, %s", self, _describe(self.key_id, taken))
            self._tell(signals.lock_skipped, holder=holder)
            result = self.plan.options.skip_result
            return records.skipped(holder, self.key_id) if result is DEFAULT_RESULT else result
        if isinstance(decision, SendAgain):
            logger.info("%s: sent again in %.2f s, %s", self, decision.countdown, _describe(self.key_id, taken))
            begun = waiter.begun or same_lineage(waiter, taken)
            raise self._send_again(decision, reason, begun, holder)
        logger.info("%s: gave up, %s", self, _describe(self.key_id, taken))
        self._tell(signals.lock_refused, holder=holder)
        raise reason

    def _send_again(
        self, decision: SendAgain, reason: SingletonLockError, begun: bool, holder: str | None
    ) -> BaseException:
        retry: BaseException = self.message.send_again(self.task, reason, decision.countdown, begun=begun)
        self._tell(signals.lock_waiting, holder=holder, countdown=decision.countdown, waits=self.message.waits + 1)
        return end_silently("waiting for its own other delivery") if decision.quietly else retry

    def unavailable(self, error: StoreUnavailable) -> Any:
        """The store cannot say."""
        decision = on_unavailable(self.plan.options, self._waiter(), denied=error.denied, contended=error.contended)
        self._tell(signals.lock_unavailable, reason=error.reason, unlocked=isinstance(decision, RunUnlocked))
        if isinstance(decision, RunUnlocked):
            logger.error("%s: runs WITHOUT a lock (on_unavailable=%r): %s", self, "run", error)
            self.message.forget_waits()
            with holding(Unlocked(self.work.key), outermost=self.message.in_worker):
                return self.body()
        if isinstance(decision, SendAgain):
            logger.warning("%s: sent again in %.2f s: %s", self, decision.countdown, error)
            raise self._send_again(decision, error, self.message.begun, None)
        assert isinstance(decision, GiveUp)
        raise error

    def _tell(self, signal: Any, **fields: Any) -> None:
        signals.tell(signal, self.task, self.message.task_id, self.key_id, **fields)

    def __str__(self) -> str:
        return self.message.named(self.task)


def _describe(key_id: str, taken: Taken) -> str:
    if taken.holder.task_id is None and taken.holder.pid is None:
        who = "an unknown owner"
    else:
        who = f"task {taken.holder.task_id or 'called directly'} on {taken.holder.host}"
    left = "no end known" if taken.remaining is None else f"{taken.remaining:.1f} s left"
    return f"lock {key_id} {'rests after' if taken.resting else 'is held by'} {who}, {left}"
