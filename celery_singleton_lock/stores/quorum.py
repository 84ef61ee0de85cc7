"""Locks on several independent servers: what a majority of them grants, with one fence.

The algorithm is Redlock's (Redis's documentation, "Distributed locks with Redis"), with three things more: the fence is
agreed by the same majority, late requests are undone on their own connections, and a lock is restored on a node that
lost its memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from ..errors import StoreUnavailable
from ..keys.names import Names
from ..locks.answers import Answer, Granted, Recorded, SplitVote, Taken
from ..locks.clock import now
from ..locks.protocol import AcquireRequest, HeldLock, RecordWrite, ServerState
from ..locks.terms import call_timeout
from ..transport.address import Address
from ..transport.errors import to_store_unavailable
from ..transport.fanout import FanOut
from ..transport.node import Node
from ..transport.requests import Reply, Request
from ..transport.urls import Url
from . import scripts
from .inspect import check_different, look
from .votes import Tally, Votes


@dataclass
class _Ballot:
    """One token's try for one lock. ``silent``: what to say of the servers that have not answered."""

    request: AcquireRequest
    end: float
    fence: int
    doubtful: bool = False  # a request may still be carried out, on a connection that is gone
    asked: set[int] = field(default_factory=set)
    silent: Callable[[], list[StoreUnavailable]] = list

    def lock(self) -> HeldLock:
        """What has to be undone."""
        return HeldLock(self.request.names, self.request.token, self.fence, self.request.ttl)


class QuorumStore:
    """The store contract on independent servers; connects on first use. Raises `LockConfigError`."""

    shared = True

    def __init__(
        self, urls: Sequence[Url], *, prefix: str, timeout: float, wall: Callable[[], float] = time.time
    ) -> None:
        self.prefix = prefix
        self.timeout = timeout
        servers: dict[int, str] = {}
        self.nodes = [Node(Address(url), timeout, scripts.SCRIPTS, servers) for url in urls]
        self.majority = len(urls) // 2 + 1
        self._wall = wall

    def __repr__(self) -> str:
        return f"<QuorumStore {', '.join(node.address.display_name for node in self.nodes)}>"

    def acquire(self, request: AcquireRequest) -> Answer:
        """See `Store.acquire`. Call it with a fresh token each time: after a `SplitVote`, try again with a new one."""
        start = now()
        bound = request.timeout if request.timeout is not None else call_timeout(self.timeout, request.ttl)
        ballot = _Ballot(request, start + bound, int(self._wall() * 1_000_000))
        try:
            votes = self._ask(ballot)
            if votes.recorded:
                return self._copied(ballot, max(votes.recorded, key=lambda record: record.fence))
            if votes.won and not votes.agreed(ballot.fence):
                ballot.fence = votes.highest(ballot.fence)
                votes = self._ask(ballot, last=True)
        except BaseException:  # a time limit, say: whatever was granted meanwhile is given back
            ballot.doubtful = True
            self._undo(ballot, None)
            raise
        if votes.agreed(ballot.fence):
            return Granted(ballot.fence, ballot.doubtful)
        ballot.fence = votes.highest(ballot.fence)
        self._undo(ballot, votes)
        holder = votes.holder()
        if holder is not None:
            return holder
        if not votes.won and votes.winnable:
            raise self._unreachable("answered", votes.answered, votes.errors + ballot.silent())
        return SplitVote(now() - start)

    def _ask(self, ballot: _Ballot, last: bool = False) -> Votes:
        votes = Votes(self.majority, len(self.nodes))
        fence = ballot.fence

        def count(index: int, reply: Reply) -> bool:
            votes.count(index, reply)
            if votes.recorded:
                return votes.answered >= self.majority
            if last:
                return votes.agreed(fence) or not votes.agreeable(fence)
            return votes.won or votes.holder() is not None

        flight = FanOut(self.nodes, self._all(scripts.acquire(ballot.request, fence)), ballot.request.token)
        flight.run(ballot.end, count)
        # A reply that is only late is owed on a connection that the token's next request takes first. On a broken
        # one the request is in doubt: a server may carry it out after everything that follows.
        ballot.doubtful = ballot.doubtful or flight.doubtful
        ballot.asked |= flight.asked
        ballot.silent = flight.missing
        return votes

    def _unreachable(self, verb: str, answered: int, errors: Iterable[StoreUnavailable]) -> StoreUnavailable:
        errors = list(errors)
        reasons = "; ".join(error.reason for error in errors)
        text = f"{answered} of {len(self.nodes)} servers {verb}, {self.majority} are needed: {reasons}"
        return StoreUnavailable(text, any(error.denied for error in errors))

    def _undo(self, ballot: _Ballot, votes: Votes | None) -> None:
        """Send the undo wherever the lock may have been taken; wait only for those that said so."""
        granted = set() if votes is None else set(votes.granted)
        where = ballot.asked
        if votes is None:
            where = set(range(len(self.nodes)))
        elif not ballot.doubtful:
            where = where - set(votes.taken)
        if not where:
            return
        command = scripts.release(ballot.lock(), unanswered=ballot.doubtful, raise_fence=True)

        def count(index: int, _reply: Reply) -> bool:
            granted.discard(index)
            return not granted

        flight = FanOut(self.nodes, self._all(command), ballot.request.token, where, now() + ballot.request.ttl)
        flight.run(ballot.end if granted else now(), count)

    def _copied(self, ballot: _Ballot, record: Recorded) -> Recorded:
        """One server's record is proof; it is answered once a majority has it, so that no later asker misses it."""
        request = ballot.request
        assert request.record_id is not None
        undo = scripts.release(ballot.lock(), unanswered=ballot.doubtful, raise_fence=True)
        written = self._count_ones(
            [undo, scripts.copy(request.names, record, request.record_id)], request.token, ballot.end, request.ttl
        )
        if isinstance(written, StoreUnavailable):
            raise written
        return record

    def _count_ones(self, requests: Sequence[Request], token: str, end: float, ttl: float) -> int | StoreUnavailable:
        """How many servers answered 1 to the last of ``requests``, of the majority that answered at all.

        The others get them, too, as soon as they have a connection, while the lock may still be there.
        """
        ones = 0
        answered = 0
        errors: list[StoreUnavailable] = []

        def count(_index: int, reply: Reply) -> bool:
            nonlocal ones, answered
            if isinstance(reply, StoreUnavailable):
                errors.append(reply)
            elif isinstance(reply[-1], RedisError):
                errors.append(to_store_unavailable(reply[-1]))
            else:
                answered += 1
                ones += reply[-1] == 1
            return answered >= self.majority

        flight = FanOut(self.nodes, self._all(*requests), token, until=now() + ttl)
        flight.run(end, count)
        if answered < self.majority:
            return self._unreachable("carried it out", answered, errors + flight.missing())
        return ones

    def renew(self, locks: Sequence[HeldLock], timeout: float) -> list[bool | None]:
        """See `Store.renew`. On a node that has lost its memory the lock is restored."""
        tally = Tally(self.majority, len(locks))
        # No token: nothing needs to follow behind a renewal, since a release raises the fence past it.
        flight = FanOut(self.nodes, self._all(*[scripts.renew(lock, restore=True) for lock in locks]))
        flight.run(now() + timeout, lambda _, reply: tally.count(reply))
        return tally.verdicts()

    def release(
        self, lock: HeldLock, *, rest: float = 0.0, write: RecordWrite | None = None, unanswered: bool = False
    ) -> bool:
        """See `Store.release`."""
        command = scripts.release(lock, rest, write, unanswered, raise_fence=lock.fence > 0)
        held = self._count_ones([command], lock.token, now() + call_timeout(self.timeout, lock.ttl), lock.ttl)
        if isinstance(held, StoreUnavailable):
            raise held
        return held > 0  # of a majority that answered: all of it must say that it was lost

    def peek(self, names: Names) -> Taken | None:
        """See `Store.peek`."""
        votes = Votes(self.majority, len(self.nodes))

        def count(index: int, reply: Reply) -> bool:
            votes.count(index, reply)
            return votes.holder() is not None or votes.free >= self.majority

        flight = FanOut(self.nodes, self._all(scripts.peek(names)))
        flight.run(now() + self.timeout, count)
        if votes.holder() is None and votes.holdable:
            raise self._unreachable("answered", votes.answered, votes.errors + flight.missing())
        return votes.holder()

    def _all(self, *batch: Request) -> list[tuple[Request, ...]]:
        return [batch] * len(self.nodes)

    def inspect(self) -> list[ServerState]:
        """See `Store.inspect`."""
        addresses = [node.address for node in self.nodes]
        states = [look(address, self.timeout) for address in addresses]
        check_different(addresses, states, self.prefix, self.timeout)
        return states

    def close(self) -> None:
        """See `Store.close`."""
        for node in self.nodes:
            node.close()
