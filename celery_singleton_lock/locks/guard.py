"""Acquire, renew, release: one run's hold on one resource. Knows stores, not Celery."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from functools import partial

from ..errors import StoreUnavailable
from ..keys.names import names
from .answers import Answer, Granted, Holder, Recorded, SplitVote, Taken
from .clock import Clock, now
from .lease import Lease
from .protocol import AcquireRequest, HeldLock, RecordWrite, Store
from .renewal import Renewer, default_renewer
from .terms import call_timeout

#: Seconds between two looks at a taken lock: the first, and the most.
POLL_FIRST = 0.005
POLL_MOST = 0.1


class Guard:
    """One execution's try for one resource; each request has an owner token of its own.

    ``release`` must be called whatever `acquire` did: an exception that lands inside it may have left a lock behind.
    It does nothing where there is nothing to free.

    ``ttl``, ``at_least``, ``max_hold``: seconds; ``holder``: for logs, this process by default; ``record_id``,
    ``attempt``: of the record to be answered from; ``on_lost``: told of a lost lease, ``abort`` before it.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        ttl: float,
        at_least: float = 0.0,
        max_hold: float | None = None,
        holder: Holder | None = None,
        record_id: str | None = None,
        attempt: int | None = None,
        renewer: Renewer | None = None,
        clock: Clock = now,
        on_lost: Callable[[Lease], None] | None = None,
        abort: Callable[[Lease], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.ttl = ttl
        self.at_least = at_least
        self.holder = holder or Holder(host=socket.gethostname(), pid=os.getpid())
        self.record_id = record_id
        self.attempt = attempt
        self.lease: Lease | None = None
        self._renewer = default_renewer() if renewer is None else renewer
        self._clock = clock
        self._sleep = sleep
        self._make_lease = partial(
            Lease, key, max_hold=max_hold, record_id=record_id, clock=clock, on_lost=on_lost, abort=abort
        )
        self._names = names(store.prefix, key)
        self.key_id = self._names.key_id
        self.lock: HeldLock | None = None
        self._unanswered = False
        self._releasing = False
        self._pid = os.getpid()

    @property
    def pending(self) -> bool:
        """Whether there may be something to free. A forked child frees nothing: the lease is its parent's."""
        return self.lock is not None and os.getpid() == self._pid

    def acquire(self) -> Granted | Taken | Recorded:
        """Ask once. Raises `StoreUnavailable`."""
        bound = min(self.store.timeout, self.ttl / 4)  # `call_timeout`, written out on every call's way
        end = self._clock() + bound
        split = False
        while True:
            try:
                answer = self._ask(bound)
            except StoreUnavailable as error:
                # After a split vote the servers were there: that the last ballot had no time left proves nothing.
                if not split or error.denied or error.contended:
                    raise
                raise StoreUnavailable(error.reason, contended=True) from error
            if not isinstance(answer, SplitVote):
                return answer
            split = True
            # Two that ask at the same moment must not do so again: each waits a random few round trips.
            pause = random.uniform(0.0, 4 * max(answer.round_trip, 0.001))
            if self._clock() + pause >= end:
                raise StoreUnavailable("the servers' votes were split until the time was over", contended=True)
            self._sleep(pause)
            bound = end - self._clock()

    def _ask(self, timeout: float) -> Answer:
        """Ask under a fresh token: after a split vote the last one's requests may still be on their way."""
        token = secrets.token_hex(16)
        self.lock = HeldLock(self._names, token, 0, self.ttl)
        self._unanswered = True
        sent = self._clock()
        # Without an attempt the lease carries the id for `claim` alone: there is no record to be answered from.
        record_id = self.record_id if self.attempt is not None else None
        request = AcquireRequest(self._names, token, self.holder, self.ttl, record_id, self.attempt or 0, timeout)
        try:
            answer = self.store.acquire(request)
        except StoreUnavailable:
            self.lock = None  # the store has sent the undo behind its request where it could
            raise
        if not isinstance(answer, Granted):
            self.lock = None
            return answer
        self._unanswered = answer.unanswered
        self.lock = lock = HeldLock(self._names, token, answer.fence, self.ttl, self.holder)
        lease = self._make_lease(token, answer.fence, self.ttl, sent=sent)
        if lease.lost:  # this process stood still between the request and now
            self.release()
            raise StoreUnavailable("the lock was granted too late to be used", contended=True)
        self.lease = lease  # before it is renewed: a time limit that strikes in between must find it
        self._renewer.add(lease, lock, self.store, sent)
        return answer

    def acquire_within(self, timeout: float | None) -> Granted | Taken | Recorded:
        """Ask until the lock is not taken any more or ``timeout`` seconds are over (None: for ever)."""
        end = None if timeout is None else self._clock() + timeout
        pause = POLL_FIRST
        while True:
            answer: Granted | Taken | Recorded | None = None
            try:
                answer = self.acquire()
            except StoreUnavailable as error:  # many ask, and a quorum's votes go to nobody: that is taken, too
                if not error.contended or (end is not None and self._clock() >= end):
                    raise
            left = None if end is None else end - self._clock()
            if answer is not None and (not isinstance(answer, Taken) or (left is not None and left <= 0)):
                return answer
            wait = random.uniform(pause / 2, pause)
            if answer is not None and answer.remaining is not None:
                wait = min(wait, answer.remaining + 0.001)
            self._sleep(wait if left is None else min(wait, max(left, 0.0)))
            pause = min(pause * 1.5, POLL_MOST)

    def extend(self, ttl: float) -> bool:
        """Set the lease's length to ``ttl`` seconds from now; False where it is lost. Raises `StoreUnavailable`."""
        if self.lock is None or self.lease is None or self.lease.lost:
            return False
        lock = self.lock._replace(ttl=ttl, may_shorten=True)
        sent = self._clock()
        self.lease.resize(sent, ttl)  # at once: a server may do it and its answer be lost
        try:
            (held,) = self.store.renew([lock], call_timeout(self.store.timeout, min(ttl, self.ttl)))
            if held is None:
                raise StoreUnavailable("too few servers answered to the extension")
        except BaseException:  # a time limit, too
            self.ttl = min(ttl, self.ttl)  # whichever of the two the servers have, or will have: it is no shorter
            self.lease.resize(sent, self.ttl)
            self.lock = self.lock._replace(ttl=self.ttl)
            self._renewer.add(self.lease, self.lock, self.store, sent - self.ttl)  # due at once
            raise
        if not held:
            self._renewer.discard(lock.token)
            self.lease.lose("the server does not hold it any more")
            return False
        if not self.lease.confirm(sent, ttl):
            return False
        self.ttl, self.lock = ttl, lock._replace(may_shorten=False)
        self._renewer.add(self.lease, self.lock, self.store, sent)
        return True

    def release(self, write: RecordWrite | None = None) -> bool:
        """Stop renewing, write the record, free the lock or let it rest. False where it was not held any more.

        Raises `StoreUnavailable`: then the lease runs out by itself, and another `release` tries again.
        """
        lock = self.lock
        if lock is None or not self.pending:
            return False
        rest = 0.0
        if self.lease is not None:
            self._renewer.discard(lock.token)
            self.lease.end()
            rest = max(0.0, self.lease.acquired + self.at_least - self._clock())
        again, self._releasing = self._releasing, True
        held = self.store.release(lock, rest=rest, write=write, unanswered=self._unanswered)
        self.lock = None
        if not held and self.lease is not None and not again:  # a release that was interrupted may have freed it
            self.lease.lose("the server did not hold it any more at its end", at_end=True)
        return held
