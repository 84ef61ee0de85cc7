"""One request to every server at once, without a thread per call and without waiting for any single one."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from redis.exceptions import RedisError

from ..errors import StoreUnavailable
from ..locks.clock import now
from .connection import unknown_scripts
from .errors import to_store_unavailable
from .node import Node
from .requests import Reply, Request
from .stream import Stream

#: Seconds between two looks for a connection that is being opened in the background: the first, and the most.
TICK_FIRST = 0.001
TICK_MOST = 0.02


class FanOut:
    """One round of requests: to each node its batch (or to those that ``only`` names).

    ``token``: whose requests they are; on a connection that owes one of its replies they follow behind that.
    ``until``: a node without a connection gets them on its next one, until then on our clock; else not at all.
    ``doubtful``: whether a request of this round may still be carried out, on a connection that is gone.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        batches: Sequence[Sequence[Request]],
        token: str | None = None,
        only: Collection[int] | None = None,
        until: float | None = None,
    ) -> None:
        self.replies: dict[int, Reply] = {}
        self.doubtful = False
        self.asked: set[int] = set()
        self._nodes = nodes
        self._batches = batches
        self._token = token
        packed: dict[int, bytes] = {}  # most rounds send every node the same
        for batch in batches:
            if id(batch) not in packed:
                packed[id(batch)] = b"".join([command.packed() for command in batch])
        self._requests = [packed[id(batch)] for batch in batches]
        self._until = until
        self._unsent = list(range(len(nodes))) if only is None else sorted(only)
        self._in_flight: dict[int, tuple[int, Stream]] = {}  # by file descriptor
        self._cut: set[int] = set()
        self._again: dict[int, tuple[list[Any], list[int]]] = {}  # replies so far, and which were sent by text
        self._poll = select.poll()
        self._count: Callable[[int, Reply], bool] = lambda _node, _reply: False
        self._enough = False

    def run(self, end: float, count: Callable[[int, Reply], bool]) -> None:
        """Ask, and read replies until ``count(node, reply)`` says that it is enough.

        It ends at ``end`` on our clock at the latest, and when every node has answered.
        """
        tick = TICK_FIRST
        self._count = count
        try:
            while True:
                if self._unsent:
                    self._send()
                if self._enough or not (self._in_flight or self._unsent):
                    break
                left = end - now()
                if left <= 0:
                    break
                if self._unsent:
                    left, tick = min(left, tick), min(tick * 1.5, TICK_MOST)
                self._read(left)
        finally:  # also where a time limit strikes: what is owed stays counted
            self._park_unfinished()

    def missing(self) -> list[StoreUnavailable]:
        """What to say of each node that gave no answer."""
        return [
            StoreUnavailable(f"{node.address.display_name}: no answer in time")
            for index, node in enumerate(self._nodes)
            if index not in self.replies
        ]

    def _send(self) -> None:
        waiting, self._unsent = self._unsent, []
        for index in waiting:
            node = self._nodes[index]
            stream = node.take(self._token)
            if stream is not None:
                self._start(index, stream, self._requests[index], len(self._batches[index]))
            else:
                error = node.connect_soon()
                if error is None:
                    self._unsent.append(index)
                else:
                    self._defer(index)
                    self._arrived(index, error)

    def _defer(self, index: int) -> None:
        if self._until is not None:
            self._nodes[index].defer(self._batches[index], self._until)

    def _start(self, index: int, stream: Stream, request: bytes, count: int) -> None:
        self.asked.add(index)
        number = stream.fileno()
        self._in_flight[number] = (index, stream)  # first: whatever strikes from now on, it is not lost
        try:
            stream.send(request, count)
        except RedisError as error:
            del self._in_flight[number]
            self._failed(index, stream, error)
        else:
            self._poll.register(number, select.POLLIN | select.POLLOUT if stream.stuck else select.POLLIN)

    def _read(self, seconds: float) -> None:
        if not self._in_flight:
            time.sleep(seconds)
            return
        for number, event in self._poll.poll(max(1, int(seconds * 1000 + 0.999))):
            if number not in self._in_flight:
                continue
            index, stream = self._in_flight[number]
            try:
                if event & select.POLLOUT:
                    stream.push()
                    if not stream.stuck:
                        self._poll.modify(number, select.POLLIN)
                if event == select.POLLOUT or not stream.pull():
                    continue
            except RedisError as error:
                self._forget(number)
                self._failed(index, stream, error)
            else:
                self._forget(number)
                self._complete(index, stream)

    def _forget(self, number: int) -> None:
        self._poll.unregister(number)
        del self._in_flight[number]

    def _complete(self, index: int, stream: Stream) -> None:
        # A parked connection may bring the replies of earlier requests first.
        again = self._again.pop(index, None)
        if again is not None:
            values, places = again
            for place, value in zip(places, stream.values[-len(places) :], strict=True):
                values[place] = value
        else:
            values = stream.values[-len(self._batches[index]) :]
            unknown = unknown_scripts(values)
            if unknown:
                self._again[index] = (values, unknown)
                texts = b"".join([self._batches[index][place].packed(by_text=True) for place in unknown])
                self._start(index, stream, texts, len(unknown))
                return
        self._nodes[index].give(stream)
        self._arrived(index, values)

    def _failed(self, index: int, stream: Stream, error: RedisError) -> None:
        stream.close()
        self.doubtful = True
        self._again.pop(index, None)
        if index not in self._cut:
            self._cut.add(index)
            self._nodes[index].drop_idle()
            self._unsent.append(index)  # once more, on a new connection: every command is idempotent
            return
        found = to_store_unavailable(error)
        self._arrived(
            index, StoreUnavailable(f"{self._nodes[index].address.display_name}: {found.reason}", found.denied)
        )

    def _arrived(self, index: int, reply: Reply) -> None:
        self.replies[index] = reply
        if self._count(index, reply):
            self._enough = True

    def _park_unfinished(self) -> None:
        while self._unsent:
            self._defer(self._unsent.pop())
        while self._in_flight:
            _, (index, stream) = self._in_flight.popitem()
            last = () if index in self._again else self._batches[index]
            if not self._nodes[index].give(stream, self._token, last):
                self.doubtful = True
