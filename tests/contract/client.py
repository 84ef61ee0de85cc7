"""How the contract's tests speak to a store, and look behind it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from celery_singleton_lock.keys.names import Names, names
from celery_singleton_lock.locks.answers import Answer, Granted, Holder
from celery_singleton_lock.locks.protocol import AcquireRequest, HeldLock, RecordWrite, Store

TTL = 30.0
#: No answer of these tests takes so long that a remaining time would be wrong by more, in seconds.
SLACK = 10.0
ANNA = Holder("anna", "shop.charge", "host-1", 11)
BERT = Holder("bert", "shop.ship", "host-2", 22)
RECORD = "ab" * 16
BODY = b"\x00result:\r\n\xff" * 10


class BackDoor(Protocol):
    """How a test gets at the keys behind a store, past the store."""

    def leave(self, name: str, seconds: float) -> None:
        """Key ``name`` has ``seconds`` to live from now; with 0 it has come to its end."""

    def lifetimes(self) -> dict[str, float]:
        """Every key behind the store, and the seconds it has to live; infinity where it has no end."""


class Client:
    """One run's view of a store: its token, who it is, and what it asks for."""

    def __init__(self, store: Store, token: str, holder: Holder = ANNA, key: str = "order:7") -> None:
        self.store = store
        self.token = (token * 32)[:32]
        self.holder = holder
        self.names: Names = names(store.prefix, key)
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
        assert isinstance(answer, Granted)
        return answer.fence

    def hold(self, ttl: float = TTL) -> HeldLock:
        """What renewal and release say."""
        return HeldLock(self.names, self.token, self.fence, ttl)

    def renew(self, ttl: float = TTL) -> bool | None:
        """Renew the lock."""
        (held,) = self.store.renew([self.hold(ttl)], 1.0)
        return held

    def extend(self, ttl: float) -> bool | None:
        """Set the lock's end, to an earlier one, too."""
        (held,) = self.store.renew([self.hold(ttl)._replace(may_shorten=True)], 1.0)
        return held

    def release(self, rest: float = 0.0, write: RecordWrite | None = None, unanswered: bool = False) -> bool:
        """Free the lock."""
        return self.store.release(self.hold(), rest=rest, write=write, unanswered=unanswered)

    def record(self, body: bytes = BODY, attempt: int = 0, ttl: float = 60.0) -> bool:
        """Free the lock and leave a record."""
        return self.release(write=RecordWrite(RECORD, attempt, body, ttl))


def about(seconds: float | None, expected: float) -> bool:
    """Whether a remaining time is what it should be, or a little less."""
    return seconds is not None and expected - SLACK < seconds <= expected


def all_at_once(clients: Sequence[Client]) -> list[Answer]:
    """What the clients are answered that ask for their locks at the same moment, in the order of the answers."""
    answers: list[Answer] = []
    start = threading.Barrier(len(clients), timeout=20)

    def ask(client: Client) -> None:
        start.wait()
        answers.append(client.acquire())

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return answers
