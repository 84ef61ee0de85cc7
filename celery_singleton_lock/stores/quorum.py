"""Locks on several independent servers: what a majority of them grants, with one fence.

The algorithm is Redlock's (Redis's documentation, "Distributed locks with Redis"), with three things more: the fence is
agreed by the same majority, late requests are undone on their own connections, and a node without memory is set again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from redis.exceptions import RedisError

from ..clock import now
from ..errors import StoreUnavailable
from ..keys import Names
from ..protocol import Answer, Ask, Granted, Hold, Recorded, Split, Taken, Write, call_timeout
from . import commands
from .address import Address
from .fanout import FanOut
from .node import Node
from .refusal import unavailable
from .script import Reply, Request
from .votes import Tally, Votes


class _Attempt:
    """One token's try for one lock."""

    def __init__(self, ask: Ask, start: float, end: float, fence: int) -> None:
        self.ask = ask
        self.start = start
        self.end = end
        self.fence = fence
        self.doubtful = False  # a request may still be carried out, on a connection that is gone
        self.asked: set[int] = set()

    def hold(self) -> Hold:
        """What has to be undone."""
        return Hold(self.ask.names, self.ask.token, self.fence, self.ask.ttl)


class QuorumStore:
    """The store contract on independent servers. Raises `LockConfigError` for a malformed URL."""

    shared = True

    def __init__(
        self, urls: Sequence[str], *, prefix: str, timeout: float, wall: Callable[[], float] = time.time
    ) -> None:
        self.prefix = prefix
        self.timeout = timeout
        servers: dict[int, str] = {}
        self.nodes = [Node(Address(url), timeout, servers) for url in urls]
        self.majority = len(urls) // 2 + 1
        self._wall = wall

    def __repr__(self) -> str:
        return f"<QuorumStore {', '.join(node.address.shown for node in self.nodes)}>"

    def acquire(self, ask: Ask) -> Answer:
        """See `Store.acquire`. A token is asked with once: whoever is answered `Split` comes back with another."""
        start = now()
        attempt = _Attempt(ask, start, start + ask.bound(self.timeout), int(self._wall() * 1_000_000))
        try:
            votes = self._ask(attempt)
            if votes.recorded:
                return self._copied(attempt, max(votes.recorded, key=lambda record: record.fence))
            if votes.won and not votes.agreed(attempt.fence):
                attempt.fence = votes.highest(attempt.fence)
                votes = self._ask(attempt, last=True)
        except BaseException:  # a time limit, say: whatever was granted meanwhile is given back
            attempt.doubtful = True
            self._undo(attempt, None)
            raise
        if votes.agreed(attempt.fence):
            return Granted(attempt.fence, attempt.doubtful)
        attempt.fence = votes.highest(attempt.fence)
        self._undo(attempt, votes)
        holder = votes.holder()
        if holder is not None:
            return holder
        if not votes.won and votes.winnable:
            raise self._unreachable("answered", votes.answered, votes.errors)
        return Split(now() - start)

    def _ask(self, attempt: _Attempt, last: bool = False) -> Votes:
        votes = Votes(self.majority, len(self.nodes))
        fence = attempt.fence

        def count(index: int, reply: Reply) -> bool:
            votes.count(index, reply)
            if votes.recorded:
                return votes.answered >= self.majority
            if last:
                return votes.agreed(fence) or not votes.agreeable(fence)
            return votes.won or votes.holder() is not None

        flight = FanOut(self.nodes, self._all(commands.acquire(attempt.ask, fence)), attempt.ask.token)
        flight.run(attempt.end, count)
        # A reply that is only late is owed on a connection that the token's next request takes first. On a broken
        # one the request is in doubt: a server may carry it out after everything that follows.
        attempt.doubtful = attempt.doubtful or flight.doubtful
        attempt.asked |= flight.asked
        votes.errors += flight.missing()
        return votes

    def _unreachable(self, verb: str, answered: int, errors: Iterable[StoreUnavailable]) -> StoreUnavailable:
        errors = list(errors)
        reasons = "; ".join(error.reason for error in errors)
        text = f"{answered} of {len(self.nodes)} servers {verb}, {self.majority} are needed: {reasons}"
        return StoreUnavailable(text, any(error.denied for error in errors))

    def _undo(self, attempt: _Attempt, votes: Votes | None) -> None:
        """Send the undo wherever the lock may have been taken; wait only for those that said so."""
        granted = set() if votes is None else set(votes.granted)
        where = attempt.asked
        if votes is None:
            where = set(range(len(self.nodes)))
        elif not attempt.doubtful:
            where = where - set(votes.taken)
        if not where:
            return
        command = commands.release(attempt.hold(), unanswered=attempt.doubtful, raise_fence=True)

        def count(index: int, reply: Reply) -> bool:
            granted.discard(index)
            return not granted

        flight = FanOut(self.nodes, self._all(command), attempt.ask.token, where, now() + attempt.ask.ttl)
        flight.run(attempt.end if granted else now(), count)

    def _copied(self, attempt: _Attempt, record: Recorded) -> Recorded:
        """One server's record is proof; it is answered once a majority has it, so that no later asker misses it."""
        ask = attempt.ask
        assert ask.record_id is not None
        undo = commands.release(attempt.hold(), unanswered=attempt.doubtful, raise_fence=True)
        written = self._count_ones(
            [undo, commands.copy(ask.names, record, ask.record_id)], ask.token, attempt.end, ask.ttl
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

        def count(index: int, reply: Reply) -> bool:
            nonlocal ones, answered
            if isinstance(reply, StoreUnavailable):
                errors.append(reply)
            elif isinstance(reply[-1], RedisError):
                errors.append(unavailable(reply[-1]))
            else:
                answered += 1
                ones += reply[-1] == 1
            return answered >= self.majority

        flight = FanOut(self.nodes, self._all(*requests), token, until=now() + ttl)
        flight.run(end, count)
        if answered < self.majority:
            return self._unreachable("carried it out", answered, errors + flight.missing())
        return ones

    def renew(self, holds: Sequence[Hold], timeout: float) -> list[bool | None]:
        """See `Store.renew`. A node that has lost its memory is set again."""
        tally = Tally(self.majority, len(holds))
        # No token: nothing needs to follow behind a renewal, since a release raises the fence past it.
        flight = FanOut(self.nodes, self._all(*[commands.renew(hold, again=True) for hold in holds]))
        flight.run(now() + timeout, lambda index, reply: tally.count(reply))
        return tally.verdicts()

    def release(self, hold: Hold, *, rest: float = 0.0, write: Write | None = None, unanswered: bool = False) -> bool:
        """See `Store.release`."""
        command = commands.release(hold, rest, write, unanswered, raise_fence=hold.fence > 0)
        held = self._count_ones([command], hold.token, now() + call_timeout(self.timeout, hold.ttl), hold.ttl)
        if isinstance(held, StoreUnavailable):
            raise held
        return held > 0  # of a majority that answered: all of it must say that it was lost

    def peek(self, names: Names) -> Taken | None:
        """See `Store.peek`."""
        votes = Votes(self.majority, len(self.nodes))

        def count(index: int, reply: Reply) -> bool:
            votes.count(index, reply)
            return votes.holder() is not None or votes.free >= self.majority

        flight = FanOut(self.nodes, self._all(commands.peek(names)))
        flight.run(now() + self.timeout, count)
        if votes.holder() is None and votes.holdable:
            raise self._unreachable("answered", votes.answered, votes.errors + flight.missing())
        return votes.holder()

    def _all(self, *batch: Request) -> list[tuple[Request, ...]]:
        return [batch] * len(self.nodes)

    def close(self) -> None:
        """See `Store.close`."""
        for node in self.nodes:
            node.close()
