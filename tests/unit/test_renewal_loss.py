"""Renewals that fail, come too late or are refused: when a lease is lost, and that it stays so."""

from __future__ import annotations

import logging

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.lease import Lease
from celery_singleton_lock.locks.renewal import Renewer

from ..support.clock import ManualClock
from ..support.locks import TTL, VALIDITY, is_held, lock_under
from .conftest import MakeLease
from .flaky_store import FlakyStore


def test_failure_is_tried_again_sooner(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A renewal that failed is tried again after a twelfth of the ttl, until one gets through."""
    begun = flaky.clock()
    lease = make_lease()
    flaky.fault = StoreUnavailable("no answer")
    flaky.clock.run(renewer, 18)
    assert [at - begun for at, _, _ in flaky.renewals] == pytest.approx([10, 12.5, 15, 17.5])
    flaky.fault = None
    flaky.clock.run(renewer, 3)
    assert lease.remaining() > TTL / 2
    assert not lease.lost


def test_nobody_can_tell_is_no_refusal(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """An answer that nobody can tell is like none: asked again sooner, and lost only at the deadline."""
    begun = flaky.clock()
    lease = make_lease()
    flaky.unsure = True
    flaky.clock.run(renewer, 13)
    assert [at - begun for at, _, _ in flaky.renewals] == pytest.approx([10, 12.5])
    assert not lease.lost
    flaky.clock.run(renewer, TTL)
    assert lease.lost


def test_silent_server_loses_the_lease_at_the_deadline(
    make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore
) -> None:
    """Where no renewal gets through, the observer hears of the loss at the local deadline (B07, B13)."""
    begun, told = flaky.clock(), list[float]()
    lease = make_lease(on_lost=lambda lease: told.append(flaky.clock() - begun))
    flaky.fault = StoreUnavailable("no answer")
    flaky.clock.run(renewer, TTL)
    assert told == [pytest.approx(VALIDITY, abs=0.01)]
    assert lease.lost
    assert len(renewer) == 0
    assert renewer.tick() is None


def test_slow_failures_end_at_the_deadline_too(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """Calls that take all of their time before they fail do not put the loss off (B13)."""
    told: list[float] = []
    begun = flaky.clock()

    def hang() -> None:
        flaky.clock.advance(flaky.renewals[-1][2])
        raise StoreUnavailable("timeout")

    flaky.timeout = 60.0
    lease = make_lease(on_lost=lambda lease: told.append(flaky.clock() - begun))
    flaky.afterwards = hang
    flaky.clock.run(renewer, TTL * 2)
    assert lease.lost
    assert told[0] <= VALIDITY + 0.01


def test_no_call_outlasts_its_lease(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A renewal is given at most a quarter of the ttl, and no more than what is left of the lease."""
    flaky.timeout = 60.0
    lease = make_lease()
    flaky.fault = StoreUnavailable("refused at once")
    while renewer.tick() is not None:
        if flaky.renewals and flaky.renewals[-1][0] == flaky.clock():
            assert flaky.renewals[-1][2] <= min(TTL / 4, lease.remaining())
        flaky.clock.advance(0.5)
    assert len(flaky.renewals) > 3


def test_store_timeout_bounds_a_call(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """The store's own timeout bounds a renewal where it is shorter than a quarter of the ttl."""
    lease = make_lease()
    flaky.clock.advance(10)
    renewer.tick()
    assert flaky.renewals[0][2] == flaky.timeout == 1.0
    assert not lease.lost


def test_shortest_lease_bounds_the_call(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A hung call for a long lease does not keep a short one from knowing of its end."""
    leases = [make_lease("long", ttl=60), make_lease("short", ttl=1.2)]
    flaky.clock.advance(0.4)
    renewer.tick()
    assert flaky.renewals[0][2] <= 0.3
    assert not any(lease.lost for lease in leases)


def test_refusal_loses_at_once(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A lease that the store does not hold any more is lost at the next renewal, and is not renewed again (B07)."""
    told: list[Lease] = []
    lease = make_lease(on_lost=told.append)
    flaky.release(lock_under(flaky, lease))
    flaky.clock.run(renewer, 10)
    assert told == [lease]
    assert lease.reason == "the server does not hold it any more"
    assert not is_held(flaky)
    assert len(renewer) == 0


def test_late_success_revives_nothing(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A renewal whose answer comes after the deadline leaves the lease lost, though the store said yes (B11, B51)."""
    told: list[Lease] = []
    lease = make_lease(on_lost=told.append)
    flaky.clock.advance(10)
    flaky.afterwards = lambda: flaky.clock.advance(TTL)
    renewer.tick()
    flaky.afterwards = lambda: None
    assert lease.lost
    renewer.tick()
    assert told == [lease]
    assert len(renewer) == 0
    assert len(flaky.renewals) == 1


def test_paused_process_finds_its_lease_lost(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """After a pause of two ttls the lease is lost and no renewal is even asked for (B11, B51)."""
    lease = make_lease()
    flaky.clock.advance(2 * TTL)
    renewer.tick()
    assert lease.lost
    assert lease.reason == "it ran out before a renewal was confirmed"
    assert flaky.renewals == []


def test_max_hold_ends_renewal(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A hung body is renewed until `max_hold` and no longer: then the lease counts as lost (B40)."""
    begun, told = flaky.clock(), list[float]()
    lease = make_lease(max_hold=65, on_lost=lambda lease: told.append(flaky.clock() - begun))
    flaky.clock.run(renewer, 300)
    assert told == [pytest.approx(65, abs=0.01)]
    assert lease.reason == "max_hold is over"
    assert max(at for at, _, _ in flaky.renewals) - begun < 65
    assert not is_held(flaky)


@pytest.mark.parametrize("fault", [RuntimeError("driver"), OSError("driver")], ids=repr)
def test_unexpected_fault_is_logged_and_tried_again(
    make_lease: MakeLease,
    renewer: Renewer,
    flaky: FlakyStore,
    clock: ManualClock,
    fault: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A fault that no store should have is logged with its traceback, and the renewal is tried again."""
    lease = make_lease()
    flaky.fault = fault
    flaky.clock.advance(10)
    assert renewer.tick() == pytest.approx(2.5)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    flaky.fault = None
    flaky.clock.advance(2.5)
    renewer.tick()
    assert lease.remaining() == pytest.approx(VALIDITY)


def test_observers_fault_does_not_stop_the_others(
    make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An observer that raises at a loss does not keep the other leases from being renewed."""

    def broken(_: Lease) -> None:
        raise RuntimeError("observer")

    lost = make_lease("lost", on_lost=broken)
    kept = make_lease("kept")
    flaky.release(lock_under(flaky, lost))
    flaky.clock.run(renewer, TTL)
    assert (lost.lost, kept.lost) == (True, False)
    assert "the observer of a lost lease failed" in caplog.text
