"""Waiting for a lock, and changing a lease's length; the test's clock moves where the real one would sleep."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.answers import Granted, Taken
from celery_singleton_lock.locks.guard import POLL_MOST
from celery_singleton_lock.locks.renewal import Renewer
from celery_singleton_lock.stores.scripts import decode_holder, encode_holder

from ..support.clock import ManualClock
from ..support.locks import TTL, VALIDITY, is_held, lease_of, lock_of, peek
from .conftest import MakeGuard
from .flaky_store import FlakyStore


def test_waits_until_the_lock_is_free(make_guard: MakeGuard, clock: ManualClock) -> None:
    """A lock that is freed while somebody waits goes to the waiter, at its next look."""
    held, pauses = make_guard(), list[float]()
    held.acquire()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)
        if len(pauses) == 5:
            held.release()

    waiter = make_guard(sleep=sleep)
    assert isinstance(waiter.acquire_within(10), Granted)
    assert len(pauses) == 5
    assert lease_of(waiter).remaining() == pytest.approx(VALIDITY)
    waiter.release()


def test_gives_up_when_the_time_is_over(make_guard: MakeGuard, clock: ManualClock) -> None:
    """A lock that stays taken is answered as taken when the time is over, not sooner and hardly later."""
    held, waiter, begun = make_guard(), make_guard(), clock()
    held.acquire()
    assert isinstance(waiter.acquire_within(10), Taken)
    assert clock() - begun == pytest.approx(10)
    assert waiter.release() is False


def test_looks_are_spread_and_never_rare(make_guard: MakeGuard, clock: ManualClock) -> None:
    """The pauses grow to a tenth of a second and are never the same for all."""
    sleep = Mock(side_effect=clock.advance)
    make_guard(held=True)
    make_guard(sleep=sleep).acquire_within(10)
    pauses = [call.args[0] for call in sleep.call_args_list]
    assert all(0 < pause <= POLL_MOST for pause in pauses)
    assert len(set(pauses)) > len(pauses) / 2


def test_no_patience_is_one_look(make_guard: MakeGuard) -> None:
    """With no time to wait the lock is asked for once, without a pause."""
    held, waiter = make_guard(), make_guard(sleep=pytest.fail)
    held.acquire()
    assert isinstance(waiter.acquire_within(0), Taken)


def test_endless_patience_takes_over_at_the_leases_end(make_guard: MakeGuard, clock: ManualClock) -> None:
    """A waiter without an end gets the lock of a holder that died, right when its lease ends."""
    dead, waiter, begun = make_guard(), make_guard(), clock()
    dead.acquire()
    assert isinstance(waiter.acquire_within(None), Granted)
    assert TTL <= clock() - begun <= TTL + 0.01


def test_outage_ends_the_wait(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """A store that goes out of reach while somebody waits is an error, not a longer wait."""
    make_guard(held=True)

    def sleep(seconds: float) -> None:
        flaky.fault = StoreUnavailable("no answer")

    waiter = make_guard(sleep=sleep)
    with pytest.raises(StoreUnavailable):
        waiter.acquire_within(10)
    assert not waiter.pending


@pytest.mark.parametrize("ttl", [60.0, 5.0, 0.5])
def test_extend_sets_the_length(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer, ttl: float) -> None:
    """`extend` sets the lease to its argument from now, in the store and here, and renewals follow it (B41)."""
    guard = make_guard(held=True)
    flaky.clock.advance(5)
    assert guard.extend(ttl)
    assert guard.extend(ttl)
    assert peek(flaky).remaining == ttl
    assert lease_of(guard).remaining() == pytest.approx(ttl * 0.99 - 0.002)
    assert lease_of(guard).ttl == ttl
    assert renewer.tick() == pytest.approx(ttl / 3)
    flaky.clock.advance(ttl / 3)
    renewer.tick()
    assert peek(flaky).remaining == ttl
    assert len(renewer) == 1
    assert guard.release() is True


@pytest.mark.parametrize("moment", ["afterwards", "beforehand"])
def test_extension_beside_a_renewal(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer, moment: str) -> None:
    """A renewal of the old length that is on its way shortens a longer extension neither here nor in the store."""
    guard = make_guard(held=True)
    flaky.clock.advance(TTL / 3)

    def extend() -> None:
        setattr(flaky, moment, lambda: None)
        assert guard.extend(300)
        flaky.clock.advance(1)

    setattr(flaky, moment, extend)
    renewer.tick()
    assert peek(flaky).remaining == 299.0
    assert lease_of(guard).remaining() == pytest.approx(299 - 3.002)


def test_shorter_extension_in_doubt(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer) -> None:
    """An unanswered extension to a shorter length counts, whatever a renewal on its way is answered."""
    guard = make_guard(held=True)
    flaky.clock.advance(TTL / 3)

    def extend() -> None:
        flaky.afterwards = lambda: None
        flaky.unsure = True
        with pytest.raises(StoreUnavailable):
            guard.extend(5)
        flaky.unsure = False

    flaky.afterwards = extend
    renewer.tick()
    assert lease_of(guard).remaining() == pytest.approx(5 - 0.052)
    flaky.clock.advance(1)
    renewer.tick()
    assert lease_of(guard).remaining() == pytest.approx(5 - 0.052)
    assert not lease_of(guard).lost


def test_extension_that_a_time_limit_interrupts(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer) -> None:
    """After it the lease is renewed as before (B37)."""
    guard = make_guard(held=True)
    flaky.fault = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        guard.extend(300)
    flaky.fault = None
    for _ in range(6):
        flaky.clock.advance(TTL / 3)
        renewer.tick()
    assert not lease_of(guard).lost
    assert guard.release() is True


def test_extend_of_what_is_not_held(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """What is not held, lost or taken away is not extended, and nothing is created (B07)."""
    guard = make_guard()
    assert guard.extend(10) is False
    guard.acquire()
    flaky.clock.advance(TTL)
    assert (guard.extend(10), is_held(flaky)) == (False, False)


def test_extend_of_what_was_taken_away(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer) -> None:
    """A refused extension loses the lease at once and ends its renewal (B07)."""
    guard = make_guard(held=True)
    flaky.release(lock_of(guard))
    assert guard.extend(10) is False
    assert (lease_of(guard).lost, is_held(flaky), len(renewer)) == (True, False, 0)


def test_extension_without_answer(make_guard: MakeGuard, flaky: FlakyStore, renewer: Renewer) -> None:
    """Where nobody can tell whether an extension succeeded, that is an error, and the lease is not lost by it."""
    guard = make_guard(held=True)
    flaky.unsure = True
    with pytest.raises(StoreUnavailable):
        guard.extend(60)
    assert (lease_of(guard).lost, len(renewer), guard.release()) == (False, 1, True)


def test_late_extension_is_none(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """An extension whose answer comes after the deadline leaves the lease lost (B51)."""
    guard = make_guard(held=True)
    flaky.afterwards = lambda: flaky.clock.advance(TTL)
    assert guard.extend(60) is False
    assert lease_of(guard).lost


def test_looks_touch_no_expiry(make_guard: MakeGuard, flaky: FlakyStore) -> None:
    """Looking at a taken lock does not touch its expiry (B10)."""
    held = make_guard(held=True)
    for _ in range(3):
        flaky.clock.advance(1)
        assert isinstance(make_guard().acquire(), Taken)
    assert peek(flaky).remaining == TTL - 3
    assert decode_holder(encode_holder(held.holder)) == held.holder
