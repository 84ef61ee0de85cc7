"""Locks on several independent servers: what a majority of them grants, with one fence.

The algorithm is Redlock's (Redis's documentation, "Distributed locks with Redis"), with three things more: the fence is
agreed by the same majority, late requests are undone on their own connections, and a node without memory is set again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from ..clock import now
from ..errors import StoreUnavailable
from ..keys import Names
from ..protocol import Answer, Ask, Granted, Hold, Recorded, Split, Taken, Write, call_timeout
from . import commands
from .address import Address
from .fanout import FanOut, Reply
from .node import Node
from .script import Command


class Votes:
    """The replies to one round of acquires, counted. ``majority``: how many servers decide."""

    def __init__(self, majority: int, replies: dict[int, Reply], asked: int) -> None:
        self.majority = majority
        self.granted: dict[int, int] = {}
        self.taken: list[Taken] = []
        self.recorded: list[Recorded] = []
        self.errors: list[StoreUnavailable] = []
        for index, reply in replies.items():
            self._count(index, reply)
        self.unknown = asked - len(self.granted) - len(self.taken) - len(self.recorded)

    def _count(self, index: int, reply: Reply) -> None:
        try:
            if isinstance(reply, StoreUnavailable):
                raise reply
            answer = commands.answer(reply[0])
        except StoreUnavailable as error:
            self.errors.append(error)
            return
        if isinstance(answer, Granted):
            self.granted[index] = answer.fence
        elif isinstance(answer, Taken):
            self.taken.append(answer)
        elif isinstance(answer, Recorded):
            self.recorded.append(answer)

    @property
    def answered(self) -> int:
        """How many servers gave an answer that counts."""
        return len(self.granted) + len(self.taken) + len(self.recorded)

    @property
    def won(self) -> bool:
        """Whether a majority granted the lock."""
        return len(self.granted) >= self.majority

    def agreed(self, fence: int) -> bool:
        """Whether a majority granted it with this very fence."""
        return sum(found == fence for found in self.granted.values()) >= self.majority

    def holder(self) -> Taken | None:
        """The one owner that a majority names; None where nobody has one."""
        if not self.taken:
            return None
        token, count = Counter(taken.token for taken in self.taken).most_common(1)[0]
        if count < self.majority:
            return None
        return next(taken for taken in self.taken if taken.token == token)._replace(remaining=self._until_free())

    def _until_free(self) -> float | None:
        free = self.unknown + len(self.granted)
        ends = sorted(float("inf") if taken.remaining is None else taken.remaining for taken in self.taken)
        end = ends[max(0, self.majority - free - 1)]
        return None if end == float("inf") else end


class QuorumStore:
    """The store contract on independent servers. Raises `LockConfigError` for a malformed URL."""

    shared = True

    def __init__(
        self, urls: Sequence[str], *, prefix: str, timeout: float, wall: Callable[[], float] = time.time
    ) -> None:
        self.prefix = prefix
        self.timeout = timeout
        self.nodes = [Node(Address(url), timeout) for url in urls]
        self.majority = len(urls) // 2 + 1
        self._wall = wall
        self._doubtful: dict[str, set[int]] = {}  # by token: where a request may still be carried out

    def __repr__(self) -> str:
        return f"<QuorumStore {', '.join(node.address.shown for node in self.nodes)}>"

    def acquire(self, ask: Ask) -> Answer:
        """See `Store.acquire`. A token is asked with once: whoever is answered `Split` comes back with another."""
        start = now()
        end = start + min(self.timeout, ask.bound)
        try:
            return self._acquire(ask, start, end)
        except BaseException:  # a time limit, say: whatever was granted meanwhile is given back
            self._undo(ask, 0, end)
            raise

    def _acquire(self, ask: Ask, start: float, end: float) -> Answer:
        fence = int(self._wall() * 1_000_000)
        votes = self._ask(ask, fence, end)
        if votes.recorded:
            self._undo(ask, fence, end)
            return self._copied(ask, max(votes.recorded, key=lambda record: record.fence), end)
        highest = max([fence, *votes.granted.values()])
        if votes.won and not votes.agreed(fence):
            fence = highest
            votes = self._ask(ask, fence, end)  # the last round: it agrees, or the attempt is undone
        if votes.won and votes.agreed(fence):
            return Granted(fence, bool(self._doubtful.get(ask.token)))
        self._undo(ask, highest, end)
        holder = votes.holder()
        if holder is not None:
            return holder
        if not votes.won and len(votes.granted) + votes.unknown >= self.majority:
            raise self._unreachable(votes)
        return Split(now() - start)

    def _ask(self, ask: Ask, fence: int, end: float) -> Votes:
        command = commands.acquire(ask, fence)

        def enough(replies: dict[int, Reply]) -> bool:
            votes = Votes(self.majority, replies, len(self.nodes))
            if votes.recorded:
                return votes.answered >= self.majority
            return votes.agreed(fence) or votes.won or votes.holder() is not None

        flight = FanOut(self.nodes, [[command]] * len(self.nodes), [ask.token])
        try:
            flight.run(end, enough)
        finally:
            # A reply that is only late is owed on a link that the token's next request takes first. A broken
            # connection leaves the request in doubt: a server may carry it out after everything that follows.
            if flight.doubtful:
                self._doubtful.setdefault(ask.token, set()).update(flight.doubtful)
        return Votes(self.majority, flight.replies, len(self.nodes))

    def _unreachable(self, votes: Votes) -> StoreUnavailable:
        reasons = "; ".join(error.reason for error in votes.errors)
        text = f"{votes.answered} of {len(self.nodes)} servers answered, {self.majority} are needed: {reasons}"
        return StoreUnavailable(text, any(error.denied for error in votes.errors))

    def _copied(self, ask: Ask, record: Recorded, end: float) -> Recorded:
        """One server's record is proof; it is answered once a majority has it, so that no later asker misses it."""
        assert ask.record_id is not None
        write = Write(ask.record_id, record.rank, record.body, max(record.ttl, 0.001))
        self._release(Hold(ask.names, ask.token, record.fence, ask.ttl), end, write=write)
        return record

    def _undo(self, ask: Ask, fence: int, end: float) -> None:
        try:
            self._release(Hold(ask.names, ask.token, fence, ask.ttl), max(end, now() + 0.01))
        except StoreUnavailable:
            pass  # what could not be undone ends with its ttl

    def renew(self, holds: Sequence[Hold], timeout: float) -> list[bool | None]:
        """See `Store.renew`. A node that has lost its memory is set again."""
        batch = [commands.renew(hold, again=True) for hold in holds]

        def verdicts(replies: dict[int, Reply]) -> list[bool | None]:
            yes = [0] * len(holds)
            no = [0] * len(holds)
            for reply in replies.values():
                if not isinstance(reply, StoreUnavailable):
                    for place, value in enumerate(reply):
                        yes[place] += value == 1
                        no[place] += value == 0
            return [
                True if yes[place] >= self.majority else False if no[place] >= self.majority else None
                for place in range(len(holds))
            ]

        flight = FanOut(self.nodes, [batch] * len(self.nodes), [hold.token for hold in holds])
        return verdicts(flight.run(now() + timeout, lambda found: None not in verdicts(found)))

    def release(self, hold: Hold, *, rest: float = 0.0, write: Write | None = None, unanswered: bool = False) -> bool:
        """See `Store.release`."""
        return self._release(hold, now() + call_timeout(self.timeout, hold.ttl), rest, write)

    def _release(self, hold: Hold, end: float, rest: float = 0.0, write: Write | None = None) -> bool:
        doubtful = self._doubtful.pop(hold.token, set())

        def command(index: int) -> Command:
            return commands.release(hold, rest, write, unanswered=index in doubtful, raise_fence=hold.fence > 0)

        def enough(replies: dict[int, Reply]) -> bool:
            return sum(not isinstance(reply, StoreUnavailable) for reply in replies.values()) >= self.majority

        flight = FanOut(self.nodes, [[command(index)] for index in range(len(self.nodes))], [hold.token])
        replies = flight.run(end, enough)
        if not enough(replies):
            errors = [reply.reason for reply in replies.values() if isinstance(reply, StoreUnavailable)]
            raise StoreUnavailable(f"too few servers answered a release: {'; '.join(errors)}")
        held = sum(reply == [1] for reply in replies.values())
        return held >= self.majority

    def peek(self, names: Names) -> Taken | None:
        """See `Store.peek`."""
        end = now() + self.timeout

        def enough(replies: dict[int, Reply]) -> bool:
            votes = Votes(self.majority, replies, len(self.nodes))
            free = len(replies) - len(votes.taken) - len(votes.errors)
            return votes.holder() is not None or free >= self.majority

        flight = FanOut(self.nodes, [[commands.peek(names)]] * len(self.nodes), [])
        replies = flight.run(end, enough)
        votes = Votes(self.majority, replies, len(self.nodes))
        holder = votes.holder()
        if holder is not None or len(replies) - len(votes.errors) >= self.majority:
            return holder
        raise self._unreachable(votes)

    def close(self) -> None:
        """See `Store.close`."""
        for node in self.nodes:
            node.close()
