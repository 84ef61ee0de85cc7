"""What tests do with locks, in the package's own words: a request, a held lock, a guard and its lease, an owner."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Any

from celery_singleton_lock import Lease, Lock, StoreUnavailable, current_lease
from celery_singleton_lock.keys.names import DEFAULT_PREFIX, names
from celery_singleton_lock.locks.answers import Answer, Granted, Holder, Recorded, Taken
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.protocol import AcquireRequest, HeldLock, RecordWrite, Store
from celery_singleton_lock.locks.records import ALL_ATTEMPTS
from celery_singleton_lock.locks.renewal import Renewer, default_renewer
from celery_singleton_lock.stores.quorum import QuorumStore

from .waiting import eventually

KEY, TTL = "order:7", 30.0
VALIDITY = 29.698  # of a lease of `TTL`: without 1 % and 2 ms
NAMES = names(DEFAULT_PREFIX, KEY)
RECORD_ID = "ab" * 16
BODY = b"\x00result:\r\n\xff" * 10
ANNA = Holder("anna", "shop.charge", "host-1", 11)
BERT = Holder("bert", "shop.ship", "host-2", 22)


def about(seconds: float | None, expected: float) -> bool:
    """Whether a remaining time is what it should be, or up to ten seconds less: no answer takes longer."""
    return seconds is not None and expected - 10.0 < seconds <= expected


def peek(store: Store, key: str = KEY) -> Taken:
    """Who has the lock, and for how long; somebody must."""
    found = store.peek(names(store.prefix, key))
    assert found is not None, f"nobody has {key}"
    return found


def is_held(store: Store, key: str = KEY) -> bool:
    """Whether somebody has the lock."""
    return store.peek(names(store.prefix, key)) is not None


def guard_on(store: Store, key: str = KEY, ttl: float = TTL, *, renewed: bool = False, **options: Any) -> Guard:
    """A guard. Unless ``renewed``, nobody renews its lease but the test."""
    renewer = default_renewer() if renewed else Renewer(threaded=False)
    return Guard(store, key, ttl=ttl, **{"renewer": renewer, **options})


def held_guard(store: Store, key: str = KEY, ttl: float = TTL, *, renewed: bool = False, **options: Any) -> Guard:
    """A guard that holds its lock."""
    guard = guard_on(store, key, ttl, renewed=renewed, **options)
    answer = guard.acquire()
    assert isinstance(answer, Granted), answer
    return guard


def lock_of(guard: Guard) -> HeldLock:
    """What a guard renews and releases."""
    assert guard.lock is not None
    return guard.lock


def lease_of(held: Guard | Lock) -> Lease:
    """The lease of a guard, or of a lock, that is held."""
    assert held.lease is not None
    return held.lease


def own_lease() -> Lease:
    """The lease of the body that asks."""
    lease = current_lease()
    assert lease is not None
    return lease


def lock_under(store: Store, lease: Lease) -> HeldLock:
    """The lock that a lease is for, as somebody else would release it."""
    return HeldLock(names(store.prefix, lease.key), lease.token, lease.fence, lease.ttl)


def replace_record(store: Store, lease: Lease, body: bytes) -> None:
    """Put ``body`` where the run of this lease has left its record."""
    assert lease.record_id is not None
    store.release(lock_under(store, lease), write=RecordWrite(lease.record_id, ALL_ATTEMPTS, body, 60.0))


class Owner:
    """One owner token: who it is, and what it asks of a store about one resource."""

    def __init__(self, store: Store, token: str = "a", holder: Holder = ANNA, key: str = KEY) -> None:
        self.store = store
        self.token = (token * 32)[:32]
        self.holder = holder
        self.names = names(store.prefix, key)
        self.fence = 0

    def acquire(self, ttl: float = TTL, record_id: str | None = None, attempt: int = 0) -> Answer:
        """Ask for the lock."""
        answer = self.store.acquire(AcquireRequest(self.names, self.token, self.holder, ttl, record_id, attempt))
        if isinstance(answer, Granted):
            self.fence = answer.fence
        return answer

    def granted(self, ttl: float = TTL) -> int:
        """The fence of the lock, which is granted."""
        answer = self.acquire(ttl)
        assert isinstance(answer, Granted), answer
        return answer.fence

    def taken(self) -> Taken:
        """By whom the lock is taken that it asks for."""
        answer = self.acquire()
        assert isinstance(answer, Taken), answer
        return answer

    def recorded(self, attempt: int = 0) -> Recorded:
        """The record that it is answered with."""
        answer = self.acquire(record_id=RECORD_ID, attempt=attempt)
        assert isinstance(answer, Recorded), answer
        return answer

    def peek(self) -> Taken:
        """Who has the lock."""
        return peek(self.store, self.names.resource)

    def lock(self, ttl: float = TTL) -> HeldLock:
        """What it renews and releases."""
        return HeldLock(self.names, self.token, self.fence, ttl)

    def renew(self, ttl: float = TTL) -> bool | None:
        """Renew the lock."""
        (held,) = self.store.renew([self.lock(ttl)], 1.0)
        return held

    def extend(self, ttl: float) -> bool | None:
        """Set the lock's end, to an earlier one, too."""
        (held,) = self.store.renew([self.lock(ttl)._replace(may_shorten=True)], 1.0)
        return held

    def release(self, rest: float = 0.0, write: RecordWrite | None = None, unanswered: bool = False) -> bool:
        """Free the lock."""
        return self.store.release(self.lock(), rest=rest, write=write, unanswered=unanswered)

    def record(self, body: bytes = BODY, attempt: int = 0, ttl: float = 60.0) -> bool:
        """Free the lock and leave a record."""
        return self.release(write=RecordWrite(RECORD_ID, attempt, body, ttl))


def held_lock(store: Store, key: str = KEY, ttl: float = TTL) -> HeldLock:
    """The lock, held by a new owner, as a quorum would restore it."""
    owner = Owner(store, secrets.token_hex(16), key=key)
    owner.granted(ttl)
    return owner.lock(ttl)._replace(holder=owner.holder)


def held_lock_soon(store: Store, key: str = KEY, seconds: float = 15.0) -> HeldLock:
    """The lock, held as soon as the deployment is well again."""

    def attempt() -> HeldLock | None:
        try:
            return held_lock(store, key)
        except StoreUnavailable:
            return None

    lock = eventually(attempt, seconds, "a grant")
    assert lock is not None
    return lock


def all_at_once(owners: Sequence[Owner]) -> list[Answer]:
    """What the owners are answered that ask for their locks at the same moment, in the order of the answers."""
    answers: list[Answer] = []
    start = threading.Barrier(len(owners), timeout=20)

    def ask(owner: Owner) -> None:
        start.wait()
        answers.append(owner.acquire())

    threads = [threading.Thread(target=ask, args=(owner,)) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return answers


def settle(store: QuorumStore, timeout: float = 5.0) -> None:
    """Returns when every reply that is owed to the store has come: a call ends with its majority, the rest follows."""
    eventually(lambda: sum(node.settle()[1] for node in store.nodes) == 0, timeout, "the last replies")


def connect(store: QuorumStore, timeout: float = 5.0) -> None:
    """Returns when every server has a connection: the first calls go to a majority, whichever is there first."""

    def connected() -> bool:
        for node in store.nodes:
            if node.settle() == (0, 0):
                node.connect_soon()
        settle(store)
        return all(node.settle()[0] for node in store.nodes)

    eventually(connected, timeout, "a connection to every server")


def warm(store: Store) -> None:
    """Returns when every connection is open, and every server knows the scripts."""
    other = Lock(store, "warm", ttl=TTL)
    assert other.acquire(blocking_timeout=5)
    assert other.extend()
    other.release()
    if isinstance(store, QuorumStore):
        connect(store)
