"""A call's way through its lock: take it, run the body, leave a record, give it back."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from celery import Task
from celery.exceptions import Retry, SoftTimeLimitExceeded

from .. import signals
from ..errors import LeaseLost, SingletonLockError, StoreUnavailable
from ..locks import records
from ..locks.answers import Granted, Holder, Recorded, Taken
from ..locks.clock import now
from ..locks.guard import Guard
from ..locks.lease import Lease, is_covered, lease_scope
from ..locks.protocol import RecordWrite
from . import abort, outcome
from .locked_task import Call
from .message import request_scope

logger = logging.getLogger(__name__)


class _Aborted(BaseException):
    """Ends a body whose lease is lost; becomes `LeaseLost` outside of it."""


class Run:
    """One call under its lock."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._result: tuple[Any] | None = None  # of a body that has ended well
        self._ended = self._retried = False
        self._abort: abort.Body | None = None
        options, message = call.options, call.message
        host = getattr(message.request, "hostname", None) or socket.gethostname()
        self.guard = Guard(
            call.locked.store,
            call.identity.key,
            ttl=options.ttl,
            at_least=options.at_least,
            max_hold=options.max_hold,
            holder=Holder(message.task_id, call.task.name, host, os.getpid()),
            record_id=call.identity.record_id,
            attempt=call.identity.attempt,
            on_lost=self._lost,
            abort=self._end_body,
        )

    def outcome(self) -> Any:
        """The call's result. Raises what the body raises, or what tells Celery to wait or to fail."""
        try:
            try:
                with request_scope(self.call.message):
                    return self._proceed()
            finally:
                self._free_surely()
        except SoftTimeLimitExceeded:
            if self._result is None:
                raise
            # It struck after the body's end, and changes nothing any more: the work is done.
            self._free_surely()
            return self._result[0]

    def _proceed(self) -> Any:
        call, message = self.call, self.call.message
        if message.begun and message.is_counted(call.task):
            message.drop_chord()
        start = now()
        try:
            answer = self._acquire()
        except StoreUnavailable as error:
            return outcome.unavailable(call, error, self._waited(start))
        if isinstance(answer, Recorded):
            return outcome.replay(call, answer, self._waited(start))
        if isinstance(answer, Taken):
            return outcome.taken(call, answer, self._waited(start))
        message.forget_waits()
        call.send(signals.lock_acquired, fence=answer.fence)
        lease = self.guard.lease
        assert lease is not None
        try:
            with lease_scope(lease, outermost=message.in_worker):
                self._call_body(lease)
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

    def _acquire(self) -> Granted | Taken | Recorded:
        answer = self._ask()
        if isinstance(answer, Recorded) and self._is_no_answer(answer):
            self.guard.attempt = records.ALL_ATTEMPTS  # now only the record of a run that is done is an answer
            answer = self._ask()
        return answer

    def _ask(self) -> Granted | Taken | Recorded:
        options = self.call.options
        return (
            self.guard.acquire_within(options.wait_timeout) if options.on_conflict == "wait" else self.guard.acquire()
        )

    def _waited(self, start: float) -> float:
        return now() - start if self.call.options.on_conflict == "wait" else 0.0

    def _is_no_answer(self, answer: Recorded) -> bool:
        """Whether it is the mark of a retry that is not this message's.

        Another message of the same idempotency key has left it; or this one has the id of an earlier message, whose
        retries are over, or which has replaced itself, and is a new one. A copy is known as such by the broker.
        """
        try:
            record = records.decode(answer.body)
        except ValueError:
            return False
        copy = record.task_id == self.call.message.task_id and self.call.message.begun
        return record.state == "retried" and not copy

    def _call_body(self, lease: Lease) -> None:
        if self.call.options.on_lost != "abort" or not abort.possible(outermost=self.call.message.in_worker):
            return self._run_body()
        # Below Exception, so that neither autoretry nor the body takes it for a failure of its own; unless asked to.
        self._abort = abort.Body(self._loss if _retries_a_loss(self.call.task) else _Aborted)
        self._abort.run(self._run_body, unless=lambda: lease.lost)

    def _run_body(self) -> None:
        self._result = (self.call.body(),)  # noted at once, inside of all that a time limit may strike in

    def _loss(self) -> LeaseLost:
        reason = self.guard.lease.reason if self.guard.lease is not None else None
        return LeaseLost(self.guard.key_id, reason or "the lease ran out")

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
        call, key_id = self.call, self.guard.key_id
        try:
            held = self.guard.release(self._left_behind())
        except StoreUnavailable as error:  # the body's own outcome stands, and the lease runs out by itself
            logger.warning("%s: lock %s was not released and ends with its lease: %s", call, key_id, error)
        else:
            call.send(signals.lock_released, held=held)

    def _left_behind(self) -> RecordWrite | None:
        """What the run leaves for repeats: its result, or the mark that its own retry was published."""
        call, policy = self.call, self.call.locked.records
        task_id = call.message.task_id
        if self._result is None:
            if not self._retried or not call.message.in_worker or task_id is None:
                return None
            return policy.retried(call.identity, task_id)
        if call.identity.attempt is None:
            return None
        encoded: records.Encoded | None = None
        try:
            encoded = policy.dumps(call.task.backend.prepare_value(self._result[0]))
        except Exception as error:  # noqa: BLE001  # the work is done, and a result that cannot be kept must not undo it
            logger.warning("%s: its result cannot be kept for a repeat: %s", call, type(error).__name__)
        return policy.done(call.identity, task_id, encoded)

    def _end_body(self, _: Lease) -> None:
        if self._abort is not None:
            self._abort.end()

    def _lost(self, lease: Lease) -> None:
        reason = lease.reason or "the lease ran out"
        key_id = self.guard.key_id
        logger.warning("%s: the lease of lock %s is LOST, another run may start: %s", self.call, key_id, reason)
        self.call.send(signals.lease_lost, reason=reason)


def _retries_a_loss(task: Task) -> bool:
    """Whether ``task`` asks autoretry for `LeaseLost` by the name of an error of this package."""
    kinds = getattr(task, "autoretry_for", None) or ()
    return any(issubclass(LeaseLost, kind) and issubclass(kind, SingletonLockError) for kind in kinds)


def run_alone(task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any], body: Callable[..., Any]) -> Any:
    """Call ``body`` while ``task`` holds the lock of its arguments; or wait, skip, answer from the record, or fail."""
    call = Call.of(task, args, kwargs, body)
    message, identity = call.message, call.identity
    if not message.in_worker and is_covered(identity.key):
        return call.body()  # inside a body that holds it: its lease covers this call, too
    if call.options.enabled:
        return Run(call).outcome()
    message.forget_waits()
    lease = Lease.for_disabled_lock(identity.key, identity.record_id)
    with request_scope(message), lease_scope(lease, outermost=message.in_worker):
        return call.body()
