"""One call of a locked task: from its message to a guard to what Celery should do."""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from celery import Task
from celery.exceptions import Retry, SoftTimeLimitExceeded

from . import abort, records, signals
from .clock import now
from .errors import LeaseLost, LockKeyError, SingletonLockError, StoreUnavailable
from .guard import Guard
from .lease import Lease, holding, is_covered
from .message import Message, entering
from .plan import ALL_ATTEMPTS, Plan, Work
from .protocol import Holder, Recorded, Taken, Write
from .refused import Refused

logger = logging.getLogger(__name__)

Body = Callable[..., Any]


class _Aborted(BaseException):
    """Ends a body whose lease is lost; becomes `LeaseLost` outside of it."""


class Run:
    """One call of a locked task, from its message to its outcome. It lives in the call: a task object is shared."""

    def __init__(self, task: Task, plan: Plan, message: Message, work: Work, body: Callable[[], Any]) -> None:
        self.task = task
        self.plan = plan
        self.message = message
        self.work = work
        self.body = body
        self._result: tuple[Any] | None = None  # of a body that has ended well
        self._ended = self._retried = False
        self._abort: abort.Body | None = None
        options = plan.options
        self.guard = Guard(
            plan.store,
            work.key,
            ttl=options.ttl,
            at_least=options.at_least,
            max_hold=options.max_hold,
            holder=Holder(message.task_id, task.name, _host(message), os.getpid()),
            record_id=work.record_id,
            rank=work.rank,
            on_lost=self._lost,
            abort=self._end_body,
        )
        self.key_id = self.guard.key_id

    def outcome(self) -> Any:
        """The call's result. Raises what the body raises, or what tells Celery to wait or to fail."""
        try:
            return self._run_and_free()
        except SoftTimeLimitExceeded:
            if self._result is None:
                raise
            # It struck after the body's end, and changes nothing any more: the work is done.
            self._free_surely()
            return self._result[0]

    def _run_and_free(self) -> Any:
        try:
            with entering(self.message):
                return self._proceed()
        finally:
            self._free_surely()

    def _proceed(self) -> Any:
        if self.message.begun:
            self.message.count_once(self.task)
        refused = Refused(self.task, self.plan, self.message, self.work, self.key_id, self.body)
        try:
            answer = self._ask(refused)
        except StoreUnavailable as error:
            return refused.unavailable(error)
        if isinstance(answer, Recorded):
            return refused.recorded(answer)
        if isinstance(answer, Taken):
            return refused.taken(answer)
        self.message.forget_waits()
        self._tell(signals.lock_acquired, fence=answer.fence)
        lease = self.guard.lease
        assert lease is not None
        try:
            with holding(lease, outermost=self.message.in_worker):
                self._call(lease)
        except Retry as retry:
            self._retried = retry.sig is not None  # else nothing was sent: raised by hand
            raise
        except _Aborted:
            if self._result is None:  # else it struck just behind the body's end
                raise self._loss() from None
        except LeaseLost:
            if self._result is None:
                raise
        finally:
            self._ended = True
        assert self._result is not None
        return self._result[0]

    def _ask(self, refused: Refused) -> Any:
        answer = self._ask_once(refused)
        if isinstance(answer, Recorded) and self._is_no_answer(answer):
            self.guard.rank = ALL_ATTEMPTS  # now only the record of a run that is done is an answer
            answer = self._ask_once(refused)
        return answer

    def _is_no_answer(self, answer: Recorded) -> bool:
        """Whether it is the mark of a retry that is not this message's.

        Another message of the same idempotency key has left it; or this one has the id of an earlier message, whose
        retries are over, or which has replaced itself, and is a new one. A copy is known as such by the broker.
        """
        try:
            record = records.decode(answer.body)
        except ValueError:
            return False
        copy = record.task_id == self.message.task_id and self.message.begun
        return record.state == "retried" and not copy

    def _ask_once(self, refused: Refused) -> Any:
        if self.plan.options.on_conflict == "wait":
            start = now()
            try:
                return self.guard.acquire_within(self.plan.options.wait_timeout)
            finally:
                refused.blocked += now() - start
        return self.guard.acquire()

    def _call(self, lease: Lease) -> None:
        if self.plan.options.on_lost != "abort" or not abort.possible(outermost=self.message.in_worker):
            return self._run_body()
        # Below Exception, so that neither autoretry nor the body takes it for a failure of its own; unless asked to.
        named = any(issubclass(LeaseLost, kind) for kind in _named(self.task))
        self._abort = abort.Body(self._loss if named else _Aborted)
        self._abort.run(self._run_body, unless=lambda: lease.lost)

    def _run_body(self) -> None:
        self._result = (self.body(),)  # noted at once, inside of all that a time limit may strike in

    def _loss(self) -> LeaseLost:
        reason = self.guard.lease.reason if self.guard.lease is not None else None
        return LeaseLost(self.key_id, reason or "the lease ran out")

    def _free_surely(self) -> None:
        try:
            self._free()
        except BaseException as error:  # a time limit or a signal struck in here: a release is safe to repeat
            self._free()
            if not (isinstance(error, SoftTimeLimitExceeded) and self._ended):
                raise

    def _free(self) -> None:
        if not self.guard.pending:
            return
        try:
            held = self.guard.release(self._left_behind())
        except StoreUnavailable as error:  # the body's own outcome stands, and the lease runs out by itself
            logger.warning("%s: lock %s was not released and ends with its lease: %s", self, self.key_id, error)
        else:
            self._tell(signals.lock_released, held=held)

    def _left_behind(self) -> Write | None:
        """What the run leaves for repeats."""
        if self._result is not None:
            return self._record(*self._result)
        return self._mark() if self._retried else None

    def _record(self, result: Any) -> Write | None:
        if self.work.rank is None:
            return None
        encoded: records.Encoded | None = None
        try:
            encoded = self.plan.settings.encode_result(self.task.backend.prepare_value(result))
        except Exception as error:  # the work is done: a result that cannot be stored must not undo that
            logger.warning("%s: its result cannot be kept for a repeat: %s", self, type(error).__name__)
        if encoded is not None and len(encoded.body) > self.plan.options.idempotency_max_bytes:
            encoded = None
        return self.plan.write(
            self.work, records.Record("done", self.message.task_id or "", self.work.fingerprint, encoded)
        )

    def _mark(self) -> Write | None:
        """A delivery that ended by publishing its own retry: the newer message carries the id from now on."""
        if not self.message.in_worker or self.message.task_id is None:
            return None
        return self.plan.write(self.work, records.Record("retried", self.message.task_id, None, None))

    def _end_body(self, lease: Lease) -> None:
        if self._abort is not None:
            self._abort.end()

    def _lost(self, lease: Lease) -> None:
        reason = lease.reason or "the lease ran out"
        logger.warning("%s: the lease of lock %s is LOST, another run may start: %s", self, self.key_id, reason)
        self._tell(signals.lease_lost, reason=reason)

    def _tell(self, signal: Any, **fields: Any) -> None:
        signals.tell(signal, self.task, self.message.task_id, self.key_id, **fields)

    def __str__(self) -> str:
        return self.message.named(self.task)


def _named(task: Task) -> tuple[type[BaseException], ...]:
    """The errors of this package that ``task`` asks autoretry to retry by their own names."""
    kinds = tuple(getattr(task, "autoretry_for", None) or ())
    return tuple(kind for kind in kinds if issubclass(kind, SingletonLockError))


def _host(message: Message) -> str:
    name = getattr(message.request, "hostname", None)
    return name if isinstance(name, str) else socket.gethostname()


def run_alone(task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any], body: Body) -> Any:
    """Call ``body`` while ``task`` holds the lock of its arguments; or wait, skip, answer from the record, or fail."""
    plan = type(task).singleton_lock_plan()
    message = Message.of(task)
    try:
        work = plan.work(plan.arguments(task, args, kwargs), message)
    except LockKeyError as error:
        # A time limit that struck in a user's key function is no key's fault.
        if isinstance(error.__context__, SoftTimeLimitExceeded):
            raise error.__context__ from None
        raise
    call = functools.partial(body, *args, **kwargs)
    if not message.in_worker and is_covered(work.key):  # inside a body that holds it: its lease covers this call, too
        return call()
    if plan.options.enabled:
        return Run(task, plan, message, work, call).outcome()
    message.forget_waits()
    with entering(message), holding(Lease.unguarded(work.key, work.record_id), outermost=message.in_worker):
        return call()
