"""What to do when the lock is taken: the whole table, as values, with the jitter's dice in the test's hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_singleton_lock.locks.answers import Holder, Taken
from celery_singleton_lock.tasks.conflict import (
    SLACK,
    Decision,
    GiveUp,
    RunUnlocked,
    SendAgain,
    Skip,
    Waiter,
    backoff,
    on_taken,
    on_unavailable,
    same_lineage,
)
from celery_singleton_lock.tasks.options import LockOptions

MODES = ("retry", "skip", "wait", "raise")
FRESH = Waiter(in_worker=True, begun=False, task_id="me", parent_id="parent")
STRANGER = Taken(Holder("other", "shop.charge", "host", 7), 20.0)
OWN = STRANGER._replace(holder=Holder("me"))
PARENT = STRANGER._replace(holder=Holder("parent"))
UNKNOWN = Taken(Holder(), None)
RESTING = STRANGER._replace(resting=True)


def longest(low: float, high: float) -> float:
    """Dice that always show the most."""
    return high


def shortest(low: float, high: float) -> float:
    """Dice that always show the least."""
    return low


def decide(taken: Taken = STRANGER, waiter: Waiter = FRESH, **options: Any) -> Decision:
    """The decision, with the longest delay."""
    return on_taken(LockOptions(**options), waiter, taken, longest)


@pytest.mark.parametrize(
    ("mode", "decision"), [("retry", SendAgain(1.0)), ("skip", Skip()), ("wait", GiveUp()), ("raise", GiveUp())]
)
@pytest.mark.parametrize("taken", [STRANGER, UNKNOWN, RESTING], ids=["held", "unknown", "resting"])
def test_fresh_message_in_a_worker(mode: str, decision: Decision, taken: Taken) -> None:
    """A message that never began does what the mode says, whoever holds the lock."""
    assert decide(taken, on_conflict=mode) == decision


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("taken", [STRANGER, OWN, PARENT, UNKNOWN, RESTING], ids=str)
@pytest.mark.parametrize("limits", [{}, {"retry_limit": 0}, {"retry_timeout": 0.0}], ids=str)
def test_begun_message_is_never_skipped_or_failed(mode: str, taken: Taken, limits: dict[str, Any]) -> None:
    """A message that has begun waits for its turn, in every mode, past every limit (B02)."""
    waiter = replace(FRESH, begun=True, waits=99, waited=9999.0)
    assert isinstance(decide(taken, waiter, on_conflict=mode, **limits), SendAgain)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("taken", [OWN, PARENT], ids=["own delivery", "parent"])
def test_lineage_counts_as_begun(mode: str, taken: Taken) -> None:
    """A message whose holder is its own other delivery, or the task that sent it, waits in every mode (B02, B06)."""
    assert isinstance(decide(taken, on_conflict=mode, retry_limit=0), SendAgain)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("taken", [STRANGER, OWN, PARENT, UNKNOWN, RESTING], ids=str)
@pytest.mark.parametrize("mode", ["retry", "wait", "raise"])
def test_nothing_is_sent_outside_a_worker(mode: str, taken: Taken, begun: bool) -> None:
    """A direct or eager call gives up at once where a worker would send its message again (B34, B35)."""
    waiter = replace(FRESH, in_worker=False, begun=begun)
    assert decide(taken, waiter, on_conflict=mode) == GiveUp()


def test_skip_outside_a_worker() -> None:
    """A direct or eager call that finds the lock taken is skipped as in a worker (B03)."""
    assert decide(waiter=replace(FRESH, in_worker=False), on_conflict="skip") == Skip()


@pytest.mark.parametrize("taken", [STRANGER, OWN, PARENT], ids=["stranger", "own", "parent"])
def test_begun_is_not_skipped_outside_a_worker(taken: Taken) -> None:
    """An eager retry has begun: a worker would send it again, so it gives up and is not skipped (B34)."""
    assert decide(taken, replace(FRESH, in_worker=False, begun=True), on_conflict="skip") == GiveUp()


@pytest.mark.parametrize(
    ("waits", "decision"), [(0, SendAgain(1.0)), (2, SendAgain(4.0)), (3, GiveUp()), (4, GiveUp())]
)
def test_retry_limit_counts_waits(waits: int, decision: Decision) -> None:
    """After `retry_limit` waits a message that never began gives up (B05)."""
    assert decide(waiter=replace(FRESH, waits=waits), retry_limit=3) == decision


def test_retry_limit_of_zero() -> None:
    """A limit of 0 sends nothing again."""
    assert decide(retry_limit=0) == GiveUp()


@pytest.mark.parametrize(("waited", "kind"), [(0.0, SendAgain), (59.9, SendAgain), (60.0, GiveUp), (61.0, GiveUp)])
def test_retry_timeout_counts_seconds(waited: float, kind: type) -> None:
    """After `retry_timeout` seconds a message that never began gives up (B05)."""
    assert isinstance(decide(waiter=replace(FRESH, waited=waited), retry_timeout=60.0), kind)


def test_no_limit_is_no_limit() -> None:
    """Without a limit a message goes on waiting however often it did (B05)."""
    assert decide(waiter=replace(FRESH, waits=10**6, waited=1e9)) == SendAgain(60.0)


@pytest.mark.parametrize(
    ("taken", "begun", "delay"),
    [
        (OWN, False, 20.0 + SLACK),
        (OWN, True, 20.0 + SLACK),
        (RESTING, False, 20.0 + SLACK),
        (RESTING, True, 20.0 + SLACK),
        (STRANGER, False, 60.0),
        (STRANGER, True, 60.0),
        (PARENT, False, 60.0),
        (OWN._replace(remaining=None), False, 60.0),
        (OWN._replace(remaining=100.0), False, 60.0),
        (RESTING._replace(remaining=0.0), False, SLACK),
    ],
    ids=str,
)
def test_only_own_and_resting_waits_are_cut(taken: Taken, begun: bool, delay: float) -> None:
    """Only a wait for one's own delivery or a resting resource ends with the lease; others keep their backoff."""
    assert decide(taken, replace(FRESH, waits=9, begun=begun)) == SendAgain(delay, quietly=taken.holder.task_id == "me")


def test_own_resting_resource_is_not_quiet() -> None:
    """A resource that rests has no live delivery behind it, so the stored state is this message's to change."""
    assert decide(OWN._replace(resting=True)) == SendAgain(1.0, quietly=False)


def test_lineage() -> None:
    """The holder is kin when it is the waiter itself or its parent; nobody is not kin to nobody."""
    kin = {taken: same_lineage(FRESH, taken) for taken in (OWN, PARENT, STRANGER, UNKNOWN)}
    assert kin == {OWN: True, PARENT: True, STRANGER: False, UNKNOWN: False}
    assert not same_lineage(replace(FRESH, task_id=None, parent_id=None), UNKNOWN)


def test_backoff_doubles_to_its_most() -> None:
    """Without jitter the delays are 1, 2, 4 and so on to 60 seconds, and stay there."""
    options = LockOptions(retry_jitter=False)
    delays = [backoff(options, replace(FRESH, waits=waits)) for waits in range(9)]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert backoff(options, replace(FRESH, waits=10**9)) == 60


def test_backoff_takes_its_options() -> None:
    """The first delay and the most are the task's own."""
    options = LockOptions(retry_backoff=0.5, retry_backoff_max=3.0, retry_jitter=False)
    assert [backoff(options, replace(FRESH, waits=waits)) for waits in range(5)] == [0.5, 1, 2, 3, 3]


@pytest.mark.parametrize("waits", range(8))
def test_jitter_is_the_upper_half(waits: int) -> None:
    """With jitter a delay is anything from half of it to all of it, so that waiters do not march in step."""
    whole = min(2.0**waits, 60.0)
    waiter = replace(FRESH, waits=waits)
    assert backoff(LockOptions(), waiter, shortest) == whole / 2
    assert backoff(LockOptions(), waiter, longest) == whole
    assert all(whole / 2 <= backoff(LockOptions(), waiter) <= whole for _ in range(50))


def test_backoff_stays_below_what_the_broker_bears() -> None:
    """A delay is never longer than the broker's visibility timeout allows (B32)."""
    waiter = replace(FRESH, waits=9, max_delay=1.5)
    assert backoff(LockOptions(), waiter, longest) == 1.5
    assert backoff(LockOptions(), waiter, shortest) == 0.75
    assert decide(STRANGER, waiter) == SendAgain(1.5)


def test_retry_timeout_cuts_the_last_delay() -> None:
    """The last delay ends with `retry_timeout`, not after it; a message that has begun has no such end."""
    options = LockOptions(retry_timeout=62.0)
    waiter = replace(FRESH, waits=9, waited=60.0)
    assert backoff(options, waiter, longest) == 2.0
    assert backoff(options, replace(waiter, waited=62.0), longest) == SLACK
    assert backoff(options, replace(waiter, begun=True), longest) == 60.0


@pytest.mark.parametrize(
    ("policy", "in_worker", "denied", "decision"),
    [
        ("retry", True, False, SendAgain(1.0)),
        ("retry", True, True, SendAgain(1.0)),
        ("retry", False, False, GiveUp()),
        ("retry", False, True, GiveUp()),
        ("raise", True, False, GiveUp()),
        ("raise", False, False, GiveUp()),
        ("run", True, False, RunUnlocked()),
        ("run", False, False, RunUnlocked()),
        ("run", True, True, SendAgain(1.0)),
        ("run", False, True, GiveUp()),
    ],
)
def test_store_out_of_reach(policy: str, in_worker: bool, denied: bool, decision: Decision) -> None:
    """Each policy does its own when the store cannot say; denied credentials never run without a lock."""
    waiter = replace(FRESH, in_worker=in_worker)
    assert on_unavailable(LockOptions(on_unavailable=policy), waiter, denied=denied, rand=longest) == decision


@pytest.mark.parametrize(
    ("policy", "begun", "decision"),
    [
        ("retry", False, SendAgain(1.0)),
        ("raise", False, GiveUp()),
        ("raise", True, SendAgain(1.0)),
        ("run", False, SendAgain(1.0)),
    ],
)
def test_store_that_grants_it_to_nobody(policy: str, begun: bool, decision: Decision) -> None:
    """Split votes are a conflict: nobody runs without a lock for them, and they fail nothing that has begun (B43)."""
    options, waiter = LockOptions(on_unavailable=policy), replace(FRESH, begun=begun)
    assert on_unavailable(options, waiter, contended=True, rand=longest) == decision


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_waits_for_the_store_are_lock_waits(mode: str, begun: bool) -> None:
    """A wait for the store counts like one for the lock: limits end it, unless the message has begun (B05)."""
    waiter = replace(FRESH, waits=3, begun=begun)
    decision = on_unavailable(LockOptions(on_conflict=mode, retry_limit=3), waiter, rand=longest)
    assert decision == (SendAgain(8.0) if begun else GiveUp())
    late = replace(FRESH, waited=5.0, begun=begun)
    assert isinstance(
        on_unavailable(LockOptions(on_conflict=mode, retry_timeout=5.0), late), SendAgain if begun else GiveUp
    )
