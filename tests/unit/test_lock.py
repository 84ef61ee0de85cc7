"""`Lock`, for use without Celery: it reads like redis-py's own."""

from __future__ import annotations

import math
import threading
from datetime import timedelta
from typing import Any

import pytest

from celery_singleton_lock import LeaseLost, Lock, LockConfigError, LockTaken, StoreUnavailable
from celery_singleton_lock.keys.names import key_id
from celery_singleton_lock.locks.protocol import Store

from ..support.locks import KEY, about, lease_of, lock_under, peek
from .flaky_store import FlakyStore


def test_acquire_and_release(store: Store) -> None:
    """A free lock is taken, held and freed; another object cannot have it meanwhile."""
    lock, other = Lock(store, KEY), Lock(store, KEY)
    assert (lock.owned(), lock.locked(), lock.lease) == (False, False, None)
    assert lock.acquire() is True
    assert (lock.owned(), lock.locked()) == (True, True)
    assert (other.acquire(blocking=False), other.owned(), other.locked()) == (False, False, True)
    assert lock.release() is True
    assert (lock.owned(), other.locked(), lock.lease) == (False, False, None)
    assert other.acquire(blocking=False) is True
    assert other.release() is True


def test_context_manager_gives_the_lease(store: Store) -> None:
    """The block gets its lease, with the fence to hand on; afterwards the lock is free."""
    with Lock(store, KEY, ttl=5) as lease:
        lease.ensure_held()
        assert (lease.key, lease.ttl) == (KEY, 5)
        assert lease.fence > 0
    assert not Lock(store, KEY).locked()
    with pytest.raises(LeaseLost):
        lease.ensure_held()


def test_block_that_raises_frees(store: Store) -> None:
    """A block that raises frees the lock, and its exception comes out."""
    with pytest.raises(ZeroDivisionError), Lock(store, KEY):
        _ = 1 / 0
    assert not Lock(store, KEY).locked()


def test_context_manager_on_a_taken_lock(store: Store) -> None:
    """A block that cannot have the lock in time raises LockTaken: the key id, the time waited and the lease's rest."""
    with Lock(store, KEY), pytest.raises(LockTaken) as caught, Lock(store, KEY, blocking_timeout=0.02):
        pytest.fail("two blocks at once")
    assert caught.value.key_id == key_id(KEY)
    assert 0.02 <= caught.value.waited < 20
    assert caught.value.remaining is not None
    assert 10 < caught.value.remaining <= 30
    assert KEY not in str(caught.value)


def test_fences_increase(store: Store) -> None:
    """Each holder's fence is larger than the one before."""
    fences = []
    for _ in range(5):
        with Lock(store, KEY) as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))


def test_blocking_waits_for_the_holder(store: Store) -> None:
    """A blocking acquire gets the lock when its holder frees it."""
    held, got = Lock(store, KEY), list[bool]()
    held.acquire()
    waiter = threading.Thread(target=lambda: got.append(Lock(store, KEY).acquire(blocking_timeout=20)))
    waiter.start()
    held.release()
    waiter.join(20)
    assert got == [True]


@pytest.mark.parametrize("timeout", ["5", -1, float("nan"), True], ids=repr)
def test_bad_blocking_timeouts(store: Store, timeout: Any) -> None:
    """What is no length of time is refused before anything is asked (B25)."""
    with pytest.raises(LockConfigError, match=r"^blocking_timeout: "):
        Lock(store, KEY, blocking_timeout=timeout)
    with pytest.raises(LockConfigError, match=r"^blocking_timeout: "):
        Lock(store, KEY).acquire(blocking_timeout=timeout)


def test_blocking_timeout_of_the_call_wins(store: Store) -> None:
    """`acquire(blocking_timeout=)` goes before the constructor's."""
    with Lock(store, KEY):
        assert Lock(store, KEY, blocking_timeout=3600).acquire(blocking_timeout=0) is False
        assert Lock(store, KEY, blocking_timeout=0).acquire() is False


def test_one_object_is_one_holder(store: Store) -> None:
    """The same object does not take the lock twice, and what does not hold it cannot release or extend it."""
    lock = Lock(store, KEY)
    for misuse in (lock.release, lock.extend):
        with pytest.raises(RuntimeError, match="does not hold the lock"):
            misuse()
    lock.acquire()
    with pytest.raises(RuntimeError, match="holds the lock already"):
        lock.acquire()
    lock.release()
    assert lock.acquire()
    lock.release()


def test_extend_sets_and_never_adds(store: Store) -> None:
    """`extend` sets the rest of the lease to its argument, however often (B41)."""
    lock = Lock(store, KEY, ttl=20)
    lock.acquire()
    for length in (60, 60, 15):
        assert lock.extend(length)
        assert about(peek(store).remaining, length)
    lock.release()


def test_extend_without_an_argument_is_the_ttl(store: Store) -> None:
    """`extend()` sets the lease to the ttl that the lock was made with."""
    lock = Lock(store, KEY, ttl=20)
    lock.acquire()
    lock.extend(60)
    lock.extend()
    assert lease_of(lock).ttl == 20
    lock.release()


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, "30", True, None, 1e9, 0.01], ids=repr)
def test_bad_ttl(store: Store, ttl: Any) -> None:
    """A ttl that is none is refused when the lock is made, by name (B41)."""
    with pytest.raises(LockConfigError, match=r"^ttl: "):
        Lock(store, KEY, ttl=ttl)


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, "30", True, 1e9, 0.01], ids=repr)
def test_bad_extension(store: Store, ttl: Any) -> None:
    """An extension to nothing is refused by name, and the lock stays held as it was (B41)."""
    lock = Lock(store, KEY)
    lock.acquire()
    with pytest.raises(LockConfigError, match=r"^ttl: "):
        lock.extend(ttl)
    assert (lock.owned(), lock.locked(), lock.release()) == (True, True, True)


@pytest.mark.parametrize(
    "options", [{"at_least": 31}, {"at_least": -1}, {"max_hold": 0}, {"max_hold": 29}, {"at_least": "1"}], ids=str
)
def test_other_bad_options(store: Store, options: dict[str, Any]) -> None:
    """The other durations are checked as a task's are (B25)."""
    with pytest.raises(LockConfigError, match=rf"^{next(iter(options))}: "):
        Lock(store, KEY, **options)


def test_timedelta_is_a_duration(store: Store) -> None:
    """A ttl may be a timedelta, as everywhere."""
    with Lock(store, KEY, ttl=timedelta(seconds=20)) as lease:
        assert lease.ttl == 20.0


def test_at_least_rests(store: Store) -> None:
    """A lock with `at_least` stays taken after its release."""
    with Lock(store, KEY, at_least=20):
        pass
    assert Lock(store, KEY).locked()
    assert not Lock(store, KEY).acquire(blocking=False)


def test_lost_lock_is_not_owned(store: Store) -> None:
    """What was lost is not owned, its release answers False, and afterwards the object can be used again."""
    lock = Lock(store, KEY)
    lock.acquire()
    store.release(lock_under(store, lease_of(lock)))
    assert lock.extend() is False
    assert lock.owned() is False
    assert lock.release() is False
    assert lock.acquire(blocking=False) is True
    lock.release()


def test_release_that_fails_keeps_the_block_s_outcome(flaky: FlakyStore, caplog: pytest.LogCaptureFixture) -> None:
    """A store that is out of reach at the block's end is a warning with the key id, not an error (B47)."""
    with Lock(flaky, "mail:someone@example.org"):
        flaky.fault = StoreUnavailable("no answer")
    assert key_id("mail:someone@example.org") in caplog.text
    assert "someone" not in caplog.text


def test_interrupted_acquire_leaves_nothing(flaky: FlakyStore) -> None:
    """A time limit that lands while the answer is on its way leaves neither a lock nor a half-held object (B37)."""

    def interrupt() -> None:
        flaky.afterwards = lambda: None
        raise KeyboardInterrupt

    lock = Lock(flaky, KEY)
    flaky.afterwards = interrupt
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert (lock.locked(), lock.lease, lock.acquire(blocking=False)) == (False, None, True)
    lock.release()


def test_acquire_that_fails_is_an_error(flaky: FlakyStore) -> None:
    """A store that is out of reach at the start is neither taken nor granted."""
    flaky.fault = StoreUnavailable("no answer")
    with pytest.raises(StoreUnavailable):
        Lock(flaky, KEY).acquire()


@pytest.mark.parametrize("key", ["", None, 5])
def test_bad_key(store: Store, key: Any) -> None:
    """A key that names nothing is refused where the lock is made."""
    with pytest.raises(LockConfigError, match="key must be a text"):
        Lock(store, key)


def test_url_for_a_store() -> None:
    """A URL where the store belongs is refused, and the way to a store named."""
    with pytest.raises(LockConfigError, match="open_store"):
        Lock("redis://localhost/0", KEY)  # type: ignore[arg-type]  # on purpose


def test_usable_after_a_release_that_failed(flaky: FlakyStore) -> None:
    """A block whose release found no server leaves an object that can lock again."""
    lock = Lock(flaky, KEY, ttl=30)
    with lock:
        flaky.fault = StoreUnavailable("no answer")
    flaky.fault = None
    flaky.clock.advance(31)
    with lock as lease:
        assert lease.remaining() > 0
