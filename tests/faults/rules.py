"""What the tests of a quorum's rules share: one resource, its guard, and what others do to its servers."""

from __future__ import annotations

from celery_singleton_lock import Lock
from celery_singleton_lock.keys.names import names
from celery_singleton_lock.locks.answers import Granted, Holder
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.protocol import HeldLock, Store
from celery_singleton_lock.locks.renewal import Renewer
from celery_singleton_lock.stores.quorum import QuorumStore
from celery_singleton_lock.stores.scripts import encode_holder

from ..support.network import Cable
from ..support.quorums import connect
from ..support.waiting import eventually
from .conftest import Deployment

NAMES = names("singleton-lock", "order:7")
RECORD = "ab" * 16
TTL = 20.0


def guard(store: Store, ttl: float = TTL, **options: object) -> Guard:
    """A guard whose lease is renewed by nobody but the test."""
    return Guard(store, "order:7", ttl=ttl, renewer=Renewer(threaded=False), **options)  # type: ignore[arg-type]


def granted(one: Guard) -> Granted:
    """The grant that ``one`` gets."""
    answer = one.acquire()
    assert isinstance(answer, Granted)
    return answer


def hold_of(one: Guard) -> HeldLock:
    """What ``one`` renews with."""
    assert one.lock is not None
    return one.lock


def occupy(deployment: Deployment, indexes: range | list[int], token: str = "c" * 32) -> None:
    """Somebody's lock on some of the servers."""
    for index in indexes:
        with deployment.servers[index].client() as client:
            client.set(NAMES.lock, f"h:{token}:5:{encode_holder(Holder('other'))}", px=30_000)


def leave(deployment: Deployment, index: int, fence: int, body: str = "done") -> None:
    """A record that only one server has."""
    with deployment.servers[index].client() as client:
        client.set(NAMES.record(RECORD), f"0:{fence}:{body}", px=30_000)
        client.set(NAMES.fence, fence)


def fences(deployment: Deployment) -> list[int]:
    """The fence that each server remembers, 0 where it remembers none."""
    found = []
    for server in deployment.servers:
        with server.client() as client:
            found.append(int(client.get(NAMES.fence) or 0))
    return found


def warm(store: Store) -> None:
    """Every connection is open."""
    other = Lock(store, "warm", ttl=TTL)
    assert other.acquire(blocking_timeout=5)
    other.release()
    if isinstance(store, QuorumStore):
        connect(store)


def lose_request(cable: Cable) -> None:
    """Wait until the cable holds a request back, and break its connections: the request is lost, new ones are sound."""
    eventually(lambda: cable._waiting, 20, "the request")
    cable.cut()
    cable.heal()
