"""What becomes of a call that was not granted.

It is answered from the record, sent again, skipped, failed, or run without a lock. Each function carries out what
`conflict` decides: it returns the call's result, or raises for Celery. A granted call never comes here.
``waited_here``: seconds that this very call has waited for the store's answer.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.exceptions import Ignore, Retry

from .. import signals
from ..errors import IdempotencyMismatch, LockTaken, SingletonLockError, StoreUnavailable
from ..locks import records
from ..locks.answers import Recorded, Taken
from ..locks.lease import NoLease, lease_scope
from . import chords
from .conflict import RunUnlocked, SendAgain, Skip, Waiter, backoff, on_taken, on_unavailable, same_lineage
from .locked_task import Call
from .options import DEFAULT_RESULT

logger = logging.getLogger(__name__)


def replay(call: Call, answer: Recorded, waited_here: float) -> Any:
    """The work was done before: what its run left."""
    try:
        record = records.decode(answer.body)
    except ValueError as error:  # a newer release of this package may have written it
        reason = f"the record of lock {call.key_id} cannot be read: {error}"
        return unavailable(call, StoreUnavailable(reason, contended=True), waited_here)
    if record.state == "retried":
        logger.info("%s: an older delivery, its retry was sent already; it ends here", call)
        raise Ignore("superseded by its own retry")  # the newer message carries the id, and will store the result
    if call.identity.fingerprint != record.fingerprint:
        raise IdempotencyMismatch(call.key_id, record.task_id)
    if record.task_id == call.message.task_id and _is_about_to_be_counted(call, answer):
        again = SendAgain(backoff(call.options, _waiter(call, waited_here)), quietly=True)
        raise _send_again(call, again, LockTaken(call.key_id, record.task_id), True, record.task_id)
    hint = "" if call.identity.fingerprint else "; to run an old task id again on purpose, set idempotency_key=False"
    logger.info("%s: answered from the record of task %s (%s)%s", call, record.task_id, call.key_id, hint)
    call.send(signals.lock_replayed, recorded_by=record.task_id)
    if record.result is not None:
        try:
            return call.locked.records.loads(record.result)
        except Exception as error:  # noqa: BLE001  # whatever a serialiser raises
            logger.warning("%s: the recorded result cannot be read: %s", call, type(error).__name__)
    return records.not_kept(record.task_id, call.key_id)


def _is_about_to_be_counted(call: Call, answer: Recorded) -> bool:
    """Whether the run that wrote the record is about to tell its chord: a replay now would be a second count."""
    if not call.message.in_chord:
        return False
    if call.message.is_counted(call.task):
        call.message.drop_chord()
        return False
    return call.locked.records.age(call.identity, answer) < chords.REPORT_TIMEOUT  # beyond it, that run has died


def taken(call: Call, answer: Taken, waited_here: float) -> Any:
    """Somebody else holds the lock."""
    waiter = _waiter(call, waited_here)
    decision = on_taken(call.options, waiter, answer)
    holder = answer.holder.task_id
    reason = LockTaken(call.key_id, holder, waiter.waited, answer.remaining)
    if isinstance(decision, Skip):
        logger.info("%s: skipped, %s", call, _describe(call.key_id, answer))
        call.send(signals.lock_skipped, holder=holder)
        result = call.options.skip_result
        return records.skipped(holder, call.key_id) if result is DEFAULT_RESULT else result
    if isinstance(decision, SendAgain):
        logger.info("%s: sent again in %.2f s, %s", call, decision.countdown, _describe(call.key_id, answer))
        begun = waiter.begun or same_lineage(waiter, answer)
        raise _send_again(call, decision, reason, begun, holder)
    logger.info("%s: gave up, %s", call, _describe(call.key_id, answer))
    call.send(signals.lock_refused, holder=holder)
    raise reason


def unavailable(call: Call, error: StoreUnavailable, waited_here: float) -> Any:
    """The store cannot say."""
    waiter = _waiter(call, waited_here)
    decision = on_unavailable(call.options, waiter, denied=error.denied, contended=error.contended)
    call.send(signals.lock_unavailable, reason=error.reason, unlocked=isinstance(decision, RunUnlocked))
    if isinstance(decision, RunUnlocked):
        logger.error("%s: runs WITHOUT a lock (on_unavailable=%r): %s", call, "run", error)
        call.message.forget_waits()
        with lease_scope(NoLease(call.identity.key), outermost=call.message.in_worker):
            return call.body()
    if isinstance(decision, SendAgain):
        logger.warning("%s: sent again in %.2f s: %s", call, decision.countdown, error)
        raise _send_again(call, decision, error, call.message.begun, None)
    raise error


def _waiter(call: Call, waited_here: float) -> Waiter:
    message = call.message
    who = message.in_worker, message.begun, message.task_id, message.parent_id
    return Waiter(*who, message.waits, message.waited + waited_here, call.locked.max_delay)


def _send_again(call: Call, decision: SendAgain, reason: SingletonLockError, begun: bool, holder: str | None) -> Any:
    signature = call.message.once_more(call.task, decision.countdown, begun=begun)
    call.message.publish(signature, call.task, reason, decision.countdown)
    call.send(signals.lock_waiting, holder=holder, countdown=decision.countdown, waits=call.message.waits + 1)
    if decision.quietly:
        return Ignore("waiting for its own other delivery")  # which will store the result
    return Retry(exc=reason, when=decision.countdown, sig=signature)


def _describe(key_id: str, answer: Taken) -> str:
    if answer.holder.task_id is None and answer.holder.pid is None:
        who = "an unknown owner"
    else:
        who = f"task {answer.holder.task_id or 'called directly'} on {answer.holder.host}"
    end = "no end known" if answer.remaining is None else f"{answer.remaining:.1f} s left"
    return f"lock {key_id} {'rests after' if answer.resting else 'is held by'} {who}, {end}"
