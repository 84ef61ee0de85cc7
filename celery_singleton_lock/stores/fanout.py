"""One request to every server at once, without a thread per call."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis.exceptions import RedisError

from ..clock import now
from ..errors import StoreUnavailable
from .link import FINAL, Link, unknown_scripts
from .node import Node
from .refusal import unavailable
from .script import Request

#: A server's reply: its values, or why there is none.
Reply = list[Any] | StoreUnavailable

#: Seconds between two looks for a connection that is being opened in the background.
TICK = 0.001


class FanOut:
    """One round of requests. ``replies``: by node, as they came; ``doubtful``: the nodes where a request of this round
    may still be carried out, on a connection that is gone."""

    def __init__(self, nodes: Sequence[Node], commands: Sequence[Sequence[Request]], tokens: Iterable[str]) -> None:
        self.replies: dict[int, Reply] = {}
        self.doubtful: set[int] = set()
        self._nodes = nodes
        self._commands = commands
        self._tokens = frozenset(tokens)
        self._flying: dict[int, tuple[int, Link]] = {}  # by file descriptor
        self._unsent = set(range(len(commands)))
        self._again: dict[int, tuple[list[Any], list[int]]] = {}  # replies so far, and which were sent by text
        self._poll = select.poll()

    def run(self, end: float, enough: Callable[[dict[int, Reply]], bool]) -> dict[int, Reply]:
        """Ask, and read until ``enough(replies)``, until every node has answered, or until ``end`` on our clock."""
        try:
            while True:
                self._send(end)
                if enough(self.replies) or not (self._flying or self._unsent):
                    break
                left = end - now()
                if left <= 0:
                    break
                self._read(min(left, TICK) if self._unsent else left, end)
        finally:  # also where a time limit strikes: what is owed stays counted
            self._land()
        for index in range(len(self._commands)):
            if index not in self.replies:
                self.replies[index] = StoreUnavailable(f"{self._nodes[index].address.shown}: no answer in time")
        return self.replies

    def _send(self, end: float) -> None:
        for index in list(self._unsent):
            node = self._nodes[index]
            link = node.take(next(iter(self._tokens)) if len(self._tokens) == 1 else None)
            if link is None:
                error = node.connect_soon()
                if error is not None:
                    self._unsent.discard(index)
                    self.replies[index] = error
                continue
            self._unsent.discard(index)
            self._launch(index, link, [command.packed() for command in self._commands[index]], end)

    def _launch(self, index: int, link: Link, requests: list[bytes], end: float) -> None:
        try:
            link.send(requests, max(end - now(), TICK))
        except RedisError as error:
            self._failed(index, link, error)
        else:
            number = link.fileno()
            self._flying[number] = (index, link)
            self._poll.register(number, select.POLLIN)

    def _read(self, seconds: float, end: float) -> None:
        if not self._flying:
            time.sleep(seconds)
            return
        for number, _ in self._poll.poll(max(1, int(seconds * 1000 + 0.999))):
            index, link = self._flying.pop(number)
            self._poll.unregister(number)
            try:
                values = link.receive(max(end - now(), TICK))
            except RedisError as error:
                self._failed(index, link, error)
            else:
                self._arrived(index, link, values[-self._expected(index) :], end)

    def _expected(self, index: int) -> int:
        # A parked link may bring the replies of earlier requests first.
        again = self._again.get(index)
        return len(again[1]) if again else len(self._commands[index])

    def _arrived(self, index: int, link: Link, values: list[Any], end: float) -> None:
        again = self._again.pop(index, None)
        if again is not None:
            so_far, places = again
            for place, value in zip(places, values, strict=True):
                so_far[place] = value
            values = so_far
        else:
            unknown = unknown_scripts(values)
            if unknown:
                self._again[index] = (values, unknown)
                texts = [self._commands[index][place].packed(by_text=True) for place in unknown]
                self._launch(index, link, texts, end)
                return
        self.replies[index] = values
        self._nodes[index].give(link, ())

    def _failed(self, index: int, link: Link, error: RedisError) -> None:
        cut = link.owed > 0
        link.close()
        self._again.pop(index, None)
        first = index not in self.doubtful
        if cut:
            self.doubtful.add(index)
        if cut and first and not isinstance(error, FINAL):
            self._nodes[index].drop_idle()
            self._unsent.add(index)  # once more, on a new connection: the commands bear it
            return
        found = unavailable(error)
        self.replies[index] = StoreUnavailable(f"{self._nodes[index].address.shown}: {found.reason}", found.denied)

    def _land(self) -> None:
        for number, (index, link) in self._flying.items():
            self._poll.unregister(number)
            self._nodes[index].give(link, self._tokens)
        self._flying = {}
