"""The servers' replies to one question, counted: pure, and the only place where a majority is decided."""

from __future__ import annotations

from collections import Counter

from redis.exceptions import RedisError

from ..errors import StoreUnavailable
from ..locks.answers import Granted, Recorded, Taken
from ..transport.errors import to_store_unavailable
from ..transport.requests import Reply
from . import scripts


class Votes:
    """The replies to one round of acquires, or of peeks. ``majority``: how many of ``asked`` servers decide."""

    def __init__(self, majority: int, asked: int) -> None:
        self.majority = majority
        self.asked = asked
        self.granted: dict[int, int] = {}  # fences by server
        self.taken: dict[int, Taken] = {}
        self.recorded: list[Recorded] = []
        self.free = 0
        self.errors: list[StoreUnavailable] = []
        self._fences: Counter[int] = Counter()

    def count(self, index: int, reply: Reply) -> None:
        """Count the reply of one server."""
        if isinstance(reply, StoreUnavailable):
            self.errors.append(reply)
            return
        if isinstance(reply[0], RedisError):
            self.errors.append(to_store_unavailable(reply[0]))
            return
        answer = scripts.answer(reply[0])
        if isinstance(answer, Granted):
            self.granted[index] = answer.fence
            self._fences[answer.fence] += 1
        elif isinstance(answer, Taken):
            self.taken[index] = answer
        elif isinstance(answer, Recorded):
            self.recorded.append(answer)
        else:
            self.free += 1

    @property
    def answered(self) -> int:
        """How many servers gave an answer that counts."""
        return len(self.granted) + len(self.taken) + len(self.recorded) + self.free

    @property
    def unknown(self) -> int:
        """How many have not answered, or with an error."""
        return self.asked - self.answered

    @property
    def won(self) -> bool:
        """Whether a majority granted the lock."""
        return len(self.granted) >= self.majority

    @property
    def winnable(self) -> bool:
        """Whether the servers that did not answer could still make a majority."""
        return len(self.granted) + self.unknown >= self.majority

    @property
    def holdable(self) -> bool:
        """Whether one owner could still be named by a majority, were those asked that did not answer."""
        tokens = Counter(taken.token for taken in self.taken.values())
        return max(tokens.values(), default=0) + self.unknown >= self.majority

    def agreed(self, fence: int) -> bool:
        """Whether a majority granted it with this very fence."""
        return self._fences[fence] >= self.majority

    def agreeable(self, fence: int) -> bool:
        """Whether that may still come about."""
        return self._fences[fence] + self.unknown - len(self.errors) >= self.majority

    def highest(self, least: int) -> int:
        """The highest fence that was granted, ``least`` at the least."""
        return max([least, *self._fences])

    def holder(self) -> Taken | None:
        """The one owner that a majority names, and how long until a majority is free; None where nobody has one."""
        if len(self.taken) < self.majority:
            return None
        tokens = Counter(taken.token for taken in self.taken.values())
        token, count = tokens.most_common(1)[0]
        if count < self.majority:
            return None
        its = [taken for taken in self.taken.values() if taken.token == token]
        shown = next((taken for taken in its if taken.resting), its[0])  # where it rests anywhere, its body has ended
        return shown._replace(remaining=self._until_free())

    def _until_free(self) -> float | None:
        needed = self.majority - len(self.granted) - self.free - self.unknown
        ends = sorted(float("inf") if taken.remaining is None else taken.remaining for taken in self.taken.values())
        end = ends[max(0, needed - 1)]
        return None if end == float("inf") else end


class Tally:
    """The replies to one batch of renewals: for each lock, whether a majority has it still."""

    def __init__(self, majority: int, locks: int) -> None:
        self._majority = majority
        self._yes = [0] * locks
        self._no = [0] * locks

    def count(self, reply: Reply) -> bool:
        """Count the reply of one server. Returns whether every lock is decided."""
        if isinstance(reply, StoreUnavailable):
            return False
        for place, value in enumerate(reply):
            if value == 1:
                self._yes[place] += 1
            elif value == 0:
                self._no[place] += 1
        return None not in self.verdicts()

    def verdicts(self) -> list[bool | None]:
        """By lock: True, False, or None where nobody can tell."""
        most = self._majority
        return [
            True if yes >= most else False if no >= most else None for yes, no in zip(self._yes, self._no, strict=True)
        ]
