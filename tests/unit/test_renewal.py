"""Renewal by ticks: the test moves the clock and says when the thread would wake; nothing sleeps."""

from __future__ import annotations

import gc
import time

import pytest

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.lease import Lease
from celery_singleton_lock.locks.renewal import Renewer

from ..support.clock import ManualClock
from ..support.locks import TTL, VALIDITY, about, is_held, lock_under, peek
from .conftest import MakeLease
from .flaky_store import FlakyStore


def test_renews_at_a_third_of_the_ttl(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A lease is renewed at a third of its ttl, then a third after that, each time to its full length."""
    begun = flaky.clock()
    lease = make_lease()
    assert renewer.tick() == pytest.approx(TTL / 3)
    assert flaky.renewals == []
    for _ in range(3):
        flaky.clock.advance(TTL / 3)
        assert renewer.tick() == pytest.approx(TTL / 3)
        assert peek(flaky).remaining == TTL
        assert lease.remaining() == pytest.approx(VALIDITY)
    assert [at - begun for at, _, _ in flaky.renewals] == pytest.approx([10, 20, 30])


def test_body_of_many_ttls_keeps_its_lease(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A body of ten ttls keeps its lease, and the store's lock never lives longer than the ttl (B41)."""
    lease = make_lease()
    for _ in range(60):
        flaky.clock.run(renewer, TTL / 6)
        assert about(peek(flaky).remaining, TTL)
        lease.ensure_held()


def test_nothing_to_do(renewer: Renewer) -> None:
    """With no lease there is nothing to wait for."""
    assert renewer.tick() is None


def test_slow_answer_is_counted_from_its_request(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """The time a renewal's answer took comes off the lease (B51)."""
    lease = make_lease()
    flaky.clock.advance(10)
    flaky.afterwards = lambda: flaky.clock.advance(5)
    renewer.tick()
    assert lease.remaining() == pytest.approx(VALIDITY - 5)


def test_wall_clock_jumps_change_nothing(
    make_lease: MakeLease, renewer: Renewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wall clock that jumps by an hour moves no renewal and no deadline (B51)."""
    wall = time.time
    lease = make_lease()
    for jump in (3600.0, -3600.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: wall() + jump)
        assert renewer.tick() == pytest.approx(TTL / 3)
        assert lease.remaining() == pytest.approx(VALIDITY)


def test_thousand_leases_share_a_call(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A thousand leases of one store are renewed in one call."""
    leases = [make_lease(f"order:{number}") for number in range(1000)]
    flaky.clock.advance(10)
    renewer.tick()
    assert [len(locks) for _, locks, _ in flaky.renewals] == [1000]
    assert {lease.remaining() for lease in leases} == {leases[0].remaining()}
    assert leases[0].remaining() == pytest.approx(VALIDITY)


def test_leases_fall_into_step(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """Leases taken shortly after each other are renewed together."""
    leases = []
    for number in range(5):
        leases.append(make_lease(f"order:{number}"))
        flaky.clock.advance(0.5)
    flaky.clock.run(renewer, 30)
    assert {len(locks) for _, locks, _ in flaky.renewals} == {5}
    assert not any(lease.lost for lease in leases)


def test_stores_are_asked_apart(
    make_lease: MakeLease, renewer: Renewer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Leases of two stores are renewed in two calls, and one store's failure is not the other's."""
    good, bad = FlakyStore(clock), FlakyStore(clock)
    kept, failed = make_lease("good", store=good), make_lease("bad", store=bad)
    bad.fault = StoreUnavailable("no answer")
    clock.run(renewer, TTL)
    assert (kept.lost, failed.lost) == (False, True)
    assert "no answer" in caplog.text


def test_discarded_lease_is_left_alone(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """After its release a lease is not renewed any more (B40)."""
    lease = make_lease()
    renewer.discard(lease.token)
    assert renewer.tick() is None
    flaky.clock.advance(20)
    assert renewer.tick() is None
    assert flaky.renewals == []


def test_forgotten_lease_is_not_renewed(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A lease that its call has forgotten, however that ended, is not kept alive for ever (B40)."""
    lease = make_lease()
    del lease
    gc.collect()
    flaky.clock.advance(10)
    renewer.tick()
    assert (flaky.renewals, len(renewer), renewer.tick()) == ([], 0, None)


def test_release_during_a_renewal(make_lease: MakeLease, renewer: Renewer, flaky: FlakyStore) -> None:
    """A renewal in flight while its body ends neither revives the lock nor reports a loss (B40)."""
    told: list[Lease] = []
    lease = make_lease(on_lost=told.append)
    flaky.clock.advance(10)

    def body_ends() -> None:
        flaky.afterwards = lambda: None
        renewer.discard(lease.token)
        lease.end()
        flaky.release(lock_under(flaky, lease))

    flaky.afterwards = body_ends
    renewer.tick()
    assert (told, is_held(flaky), renewer.tick()) == ([], False, None)
