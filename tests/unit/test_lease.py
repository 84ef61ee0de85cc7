"""A lease ends at its own deadline, whatever anybody answers later; the test moves its clock."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

import pytest

from celery_singleton_lock import LeaseLost, current_lease
from celery_singleton_lock.locks.clock import now
from celery_singleton_lock.locks.lease import Lease, NoLease, is_covered, lease_scope, validity

from ..support.clock import ManualClock

TTL = 10.0
DRIFT = 0.102  # 1 % and 2 ms


def make(
    clock: ManualClock,
    *,
    max_hold: float | None = None,
    on_lost: Callable[[Lease], None] | None = None,
    key: str = "order:7",
) -> Lease:
    """A lease of `TTL` seconds, asked for now."""
    return Lease(key, "f" * 32, 12, TTL, sent=clock(), max_hold=max_hold, clock=clock, on_lost=on_lost)


def test_validity_takes_off_the_drift() -> None:
    """A lease is trusted for its ttl less 1 % and 2 ms."""
    assert validity(TTL) == pytest.approx(TTL - DRIFT)


def test_remaining_counts_from_before_the_request(clock: ManualClock) -> None:
    """What remains is counted from the moment before the request was sent (B51)."""
    sent = clock()
    clock.advance(3)
    lease = Lease("order:7", "f" * 32, 12, TTL, sent=sent, clock=clock)
    assert lease.remaining() == pytest.approx(TTL - DRIFT - 3)


def test_key_id_names_the_key_without_showing_it(clock: ManualClock) -> None:
    """A lease's repr has the key id and never the key (B47)."""
    lease = make(clock, key="mail:someone@example.org")
    assert len(lease.key_id) == 16
    assert lease.key_id in repr(lease)
    assert "someone" not in repr(lease)
    assert "fence=12" in repr(lease)


def test_lost_at_the_deadline(clock: ManualClock) -> None:
    """At its deadline a lease is lost by itself: no thread and no server has to say so (B07, B13)."""
    lease = make(clock)
    clock.advance(TTL - DRIFT - 0.001)
    lease.ensure_held()
    assert (lease.lost, lease.remaining() > 0) == (False, True)
    clock.advance(0.001)
    assert (lease.lost, lease.remaining()) == (True, 0.0)
    with pytest.raises(LeaseLost, match="ran out before a renewal was confirmed"):
        lease.ensure_held()


def test_confirm_sets_the_deadline_and_never_adds(clock: ManualClock) -> None:
    """A confirmed renewal sets the lease to a ttl from its request; two of them do not add up (B41)."""
    lease = make(clock)
    clock.advance(4)
    assert lease.confirm(clock())
    assert lease.confirm(clock())
    assert lease.remaining() == pytest.approx(TTL - DRIFT)


def test_confirm_counts_from_its_request(clock: ManualClock) -> None:
    """A renewal whose answer took long is worth less by that time (B51)."""
    lease = make(clock)
    sent = clock()
    clock.advance(6)
    assert lease.confirm(sent)
    assert lease.remaining() == pytest.approx(TTL - DRIFT - 6)


def test_late_success_revives_nothing(clock: ManualClock) -> None:
    """A renewal that succeeded after the deadline does not bring the lease back (B11, B51)."""
    lease = make(clock)
    clock.advance(5)
    sent = clock()
    clock.advance(5)
    assert not lease.confirm(sent)
    assert lease.lost
    assert lease.remaining() == 0.0


def test_refused_lease_is_lost_at_once(clock: ManualClock) -> None:
    """A lease that the server refused is lost although its deadline is far, and stays lost (B07)."""
    lease = make(clock)
    assert lease.lose("the server does not hold it any more")
    assert (lease.lost, lease.remaining(), lease.confirm(clock())) == (True, 0.0, False)
    with pytest.raises(LeaseLost, match="the server does not hold it any more") as caught:
        lease.ensure_held()
    assert caught.value.args == (lease.key_id, "the server does not hold it any more")


def test_max_hold_ends_the_lease(clock: ManualClock) -> None:
    """No renewal moves the deadline past `max_hold`, and the reason says so (B40)."""
    lease = make(clock, max_hold=15)
    clock.advance(9)
    assert lease.confirm(clock())
    assert lease.remaining() == pytest.approx(6)
    clock.advance(6)
    assert lease.lost
    with pytest.raises(LeaseLost, match="max_hold is over"):
        lease.ensure_held()


def test_end_is_not_a_loss(clock: ManualClock) -> None:
    """After its body a lease is not held, and not lost either, however late it gets."""
    told: list[Lease] = []
    lease = make(clock, on_lost=told.append)
    lease.end()
    clock.advance(100)
    assert (lease.lost, lease.remaining(), lease.confirm(clock()), lease.lose("late")) == (False, 0.0, False, False)
    assert told == []
    with pytest.raises(LeaseLost, match="it was released"):
        lease.ensure_held()


def test_end_notices_a_passed_deadline(clock: ManualClock) -> None:
    """A body that overran its lease is told of at its end, if nothing noticed before (B11)."""
    told: list[Lease] = []
    lease = make(clock, on_lost=told.append)
    clock.advance(TTL)
    lease.end()
    assert told == [lease]
    assert lease.reason == "it ran out before a renewal was confirmed"
    assert lease.lost


def test_observer_hears_once(clock: ManualClock) -> None:
    """A loss is told once, however often it is noticed."""
    told: list[Lease] = []
    lease = make(clock, on_lost=told.append)
    clock.advance(TTL)
    assert [lease.lose("first"), lease.lose("second")] == [True, False]
    lease.end()
    assert told == [lease]
    assert lease.reason == "first"


def test_observers_fault_is_logged_and_changes_nothing(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """An observer that raises harms neither the lease nor who told it."""

    def broken(_: Lease) -> None:
        raise RuntimeError("observer")

    lease = make(clock, on_lost=broken)
    assert lease.lose("gone")
    assert lease.lost
    assert "the observer of a lost lease failed" in caplog.text


def test_wall_clock_has_no_effect(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease on the real clock does not feel the wall clock jump by an hour (B51)."""
    lease = Lease("order:7", "f" * 32, 12, 600.0, sent=now())
    wall = time.time
    for jump in (3600.0, -3600.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: wall() + jump)
        assert 500 < lease.remaining() < 600


def test_clock_counts_suspend_where_it_can() -> None:
    """The clock is the boot clock where the system has one, else the monotonic one; never the wall clock."""
    reference = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
    assert abs(now() - reference) < 5


def test_lease_of_a_disabled_lock_never_ends() -> None:
    """With the lock switched off a body still finds a lease: endless, with a fence from the local clock."""
    before = int(time.time() * 1_000_000)
    lease = Lease.for_disabled_lock("order:7", "a" * 32)
    lease.ensure_held()
    assert (lease.lost, lease.remaining(), lease.record_id) == (False, float("inf"), "a" * 32)
    assert before <= lease.fence <= int(time.time() * 1_000_000)
    assert lease.key_id in repr(lease)


def test_current_lease_is_the_innermost(clock: ManualClock) -> None:
    """`current_lease` is the innermost block's, by block, and None outside."""
    outer, inner = make(clock), make(clock, key="order:8")
    assert current_lease() is None
    with lease_scope(outer):
        assert current_lease() is outer
        with lease_scope(inner):
            assert current_lease() is inner
            assert (is_covered("order:7"), is_covered("order:8"), is_covered("x")) == (True, True, False)
        assert current_lease() is outer
    assert current_lease() is None


def test_block_without_a_lock_hides_the_outer_lease(clock: ManualClock) -> None:
    """A body that runs without a lock does not take an outer body's lease for its own."""
    with lease_scope(make(clock)), lease_scope(NoLease("order:8")):
        assert current_lease() is None


def test_block_ends_with_an_exception(clock: ManualClock) -> None:
    """A body that raises leaves no lease behind."""
    with pytest.raises(KeyError), lease_scope(make(clock)):
        raise KeyError
    assert current_lease() is None


def test_lease_is_the_threads_own(clock: ManualClock) -> None:
    """Another thread sees no lease; one that is given the context sees it."""
    seen: list[Lease | None] = []
    lease = make(clock)
    with lease_scope(lease):
        copied = contextvars.copy_context()
        for target in (lambda: seen.append(current_lease()), lambda: copied.run(lambda: seen.append(current_lease()))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert seen == [None, lease]


def test_abort_comes_before_the_observer(clock: ManualClock) -> None:
    """A loss ends the body first: an observer, a user's code, may be slow or fail."""
    told: list[str] = []

    def observer(lease: Lease) -> None:
        told.append("observer")
        raise RuntimeError

    lease = Lease(
        "order:7", "a" * 32, 1, 30.0, sent=clock(), clock=clock, on_lost=observer, abort=lambda _: told.append("abort")
    )
    assert lease.lose("gone") is True
    assert told == ["abort", "observer"]
