"""A guard takes, renews and frees one lock for one execution; clock, renewal and store's faults are the test's."""

from __future__ import annotations

import os
import secrets
import socket
from unittest.mock import Mock

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.keys.names import key_id
from celery_singleton_lock.locks.answers import Answer, Granted, Holder, Recorded, Taken
from celery_singleton_lock.locks.lease import Lease
from celery_singleton_lock.locks.protocol import AcquireRequest, RecordWrite
from celery_singleton_lock.locks.renewal import Renewer

from ..support.clock import ManualClock
from ..support.locks import KEY, TTL, VALIDITY, is_held, lease_of, peek
from .conftest import MakeGuard
from .flaky_store import FlakyStore

RECORD = RecordWrite("a" * 32, 0, b"result", 60.0)


def test_acquire_and_release(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer) -> None:
    """A free lock is granted with a lease that is renewed, and is free again after the release."""
    guard = make_guard()
    answer = guard.acquire()
    assert isinstance(answer, Granted)
    assert guard.pending
    lease = guard.lease
    assert lease is not None
    assert (lease.key, lease.key_id, lease.fence, lease.ttl) == (KEY, key_id(KEY), answer.fence, TTL)
    assert len(lease.token) == 32
    assert len(renewer) == 1
    assert guard.release() is True
    assert (guard.pending, is_held(flaky), len(renewer), lease.remaining()) == (False, False, 0, 0.0)


def test_injected_renewer_is_used(make_guard: MakeGuard, renewer: Renewer) -> None:
    """The renewer that a guard is given is the one that renews it, also when it has nothing to renew yet."""
    assert len(renewer) == 0
    guard = make_guard(held=True)
    assert len(renewer) == 1
    guard.release()


def test_holder_is_said(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """The store knows who holds the lock; without a task it is this process on this host (B26)."""
    guard = make_guard(held=True)
    assert peek(flaky).holder == Holder(None, None, socket.gethostname(), os.getpid())
    guard.release()
    guard = make_guard(held=True, holder=Holder("id", "shop.charge", "host", 7))
    assert peek(flaky).holder == Holder("id", "shop.charge", "host", 7)


def test_every_attempt_has_its_own_token(make_guard: MakeGuard) -> None:
    """The owner is a token of this execution, not the task's id: two runs of one id do not share a lock (B06)."""
    first, second = (make_guard(holder=Holder("id", "shop.charge", "host", 7)) for _ in range(2))
    assert isinstance(first.acquire(), Granted)
    assert isinstance(second.acquire(), Taken)
    token = lease_of(first).token
    first.release()
    assert isinstance(second.acquire(), Granted)
    assert lease_of(second).token != token
    second.release()


def test_taken_leaves_nothing_to_free(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """Whoever did not get the lock frees nothing: the release of a loser asks the store for nothing (B10)."""
    winner, loser = make_guard(), make_guard()
    winner.acquire()
    assert isinstance(loser.acquire(), Taken)
    assert (loser.pending, loser.lease, loser.release()) == (False, None, False)
    assert flaky.releases == []
    assert is_held(flaky)


def test_release_twice(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """A second release does nothing."""
    guard = make_guard(held=True)
    assert [guard.release(), guard.release()] == [True, False]
    assert len(flaky.releases) == 1


def test_release_after_loss(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """Releasing what another one has taken meanwhile answers False and leaves it alone (B07)."""
    told: list[Lease] = []
    guard, other = make_guard(on_lost=told.append), make_guard(holder=Holder("other"))
    guard.acquire()
    flaky.clock.advance(TTL)
    assert isinstance(other.acquire(), Granted)
    assert guard.release() is False
    taken = peek(flaky)
    assert (taken.holder, taken.remaining) == (Holder("other"), TTL)
    assert told == [guard.lease]


def test_record_is_written_and_answers(make_guard: MakeGuard) -> None:
    """A record goes along with the release and answers the next one who asks for it."""
    guard = make_guard(held=True, record_id=RECORD.record_id, attempt=0)
    assert lease_of(guard).record_id == RECORD.record_id
    guard.release(RECORD)
    again = make_guard(record_id=RECORD.record_id, attempt=0)
    answer = again.acquire()
    assert isinstance(answer, Recorded)
    assert answer.body == b"result"
    assert (again.pending, again.lease) == (False, None)


def test_record_is_not_asked_for_without_an_attempt(make_guard: MakeGuard) -> None:
    """A run whose delivery keeps no record has a record id for its body, and asks for none."""
    guard = make_guard(held=True, record_id=RECORD.record_id, attempt=0)
    guard.release(RECORD)
    again = make_guard(record_id=RECORD.record_id)
    assert isinstance(again.acquire(), Granted)
    again.release()


def test_at_least_lets_it_rest(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """A body that ends sooner than `at_least` leaves the resource resting until then, counted from the acquire."""
    guard = make_guard(held=True, at_least=20.0)
    flaky.clock.advance(5)
    guard.release()
    taken = peek(flaky)
    assert (taken.resting, taken.remaining) == (True, 15.0)
    flaky.clock.advance(15)
    assert not is_held(flaky)


def test_at_least_that_is_over(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """A body that took longer than `at_least` frees the resource at once."""
    guard = make_guard(held=True, at_least=5.0)
    flaky.clock.advance(6)
    guard.release()
    assert not is_held(flaky)


def test_unreachable_store_at_acquire(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer) -> None:
    """When the store cannot say there is no lease, nothing to renew and nothing to free."""
    flaky.fault = StoreUnavailable("no answer")
    guard = make_guard()
    with pytest.raises(StoreUnavailable):
        guard.acquire()
    assert (guard.lease, guard.pending, len(renewer), guard.release()) == (None, False, 0, False)


def test_unreachable_store_at_release(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer) -> None:
    """A release that failed can be tried again; renewal has stopped, so the lease runs out by itself in any case."""
    guard = make_guard(held=True)
    flaky.fault = StoreUnavailable("no answer")
    with pytest.raises(StoreUnavailable):
        guard.release()
    assert (guard.pending, len(renewer)) == (True, 0)
    flaky.fault = None
    assert guard.release() is True


def test_grant_that_comes_too_late(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """A process that stood still between request and answer does not believe the grant, and frees the lock (B51)."""
    flaky.afterwards = lambda: flaky.clock.advance(TTL)
    guard = make_guard()
    with pytest.raises(StoreUnavailable, match="too late"):
        guard.acquire()
    assert not is_held(flaky)


def test_lease_counts_from_before_the_request(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """The time that an acquire took comes off its lease (B51)."""
    flaky.afterwards = lambda: flaky.clock.advance(10)
    guard = make_guard(held=True)
    assert lease_of(guard).remaining() == pytest.approx(VALIDITY - 10)


def test_max_hold_reaches_the_lease(make_guard: MakeGuard, renewer: Renewer, clock: ManualClock) -> None:
    """`max_hold` ends the lease, renewed or not (B40)."""
    guard = make_guard(held=True, max_hold=35.0)
    for _ in range(7):
        clock.advance(5)
        renewer.tick()
    assert (lease_of(guard).lost, lease_of(guard).reason) == (True, "max_hold is over")


def test_unanswered_grant_leaves_a_tombstone(
    make_guard: MakeGuard, flaky: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the acquire was asked twice, the release leaves a tombstone of the token; otherwise it does not."""
    acquire = flaky.acquire

    def doubtful(request: AcquireRequest) -> Answer:
        answer = acquire(request)
        assert isinstance(answer, Granted)
        return answer._replace(unanswered=True)

    for unanswered in (False, True):
        if unanswered:
            monkeypatch.setattr(flaky, "acquire", doubtful)
        guard = make_guard(held=True)
        guard.release()
        assert flaky.releases[-1][1]["unanswered"] is unanswered


def test_tokens_are_unguessable(make_guard: MakeGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens come from the system's randomness, so that forked children never share one."""
    drawn = Mock(wraps=secrets.token_hex)
    monkeypatch.setattr(secrets, "token_hex", drawn)
    make_guard(held=True).release()
    drawn.assert_called_once_with(16)
