"""Locks in a cluster: all keys of a resource are in one slot, so that a call goes to one node."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, RedisError

from ..errors import StoreUnavailable
from ..locks.clock import now
from ..locks.forks import forget_in_children
from ..transport.address import Address
from ..transport.connection import Exchange, Link, Links, Replies
from ..transport.errors import to_store_unavailable
from ..transport.fanout import FanOut
from ..transport.node import Node
from ..transport.requests import Plain, Request, plain
from ..transport.urls import HostPort, Url
from .redis import RedisStore
from .scripts import SCRIPTS

_TOPOLOGY = plain("CLUSTER", "SLOTS")
_ASKING = plain("ASKING")


class ClusterStore(RedisStore):
    """The store contract on a cluster; connects on first use."""

    @classmethod
    def at(cls, url: Url, *, prefix: str, timeout: float, min_replicas: int = 0) -> ClusterStore:
        """The store on the cluster that has the nodes of ``url``. Raises `LockConfigError`."""
        seeds = [Address(url._replace(kind="server", hosts=[place])).at(*place) for place in url.hosts]
        route = Cluster(seeds, timeout)
        return cls(route, url.display_name, prefix=prefix, timeout=timeout, min_replicas=min_replicas)


class Cluster:
    """The way to the nodes of one cluster. Who has which slots is asked of any node, and again when one says MOVED."""

    def __init__(self, seeds: Sequence[Address], timeout: float) -> None:
        self._seeds = list(seeds)
        self._timeout = timeout
        self._links: dict[HostPort, Links] = {}
        self._nodes: dict[HostPort, Node] = {}  # for renewals, which ask several nodes at once
        self._owners: dict[int, HostPort] = {}
        self._stale = True
        self._doubted: HostPort | None = None
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        """In a forked child: the connections forget for themselves."""
        self._refreshing = threading.Lock()

    def call(self, exchange: Exchange, seconds: float) -> Replies:
        """See `Links.call`. Where the slot has moved the requests were not carried out, and follow it once."""
        end = now() + seconds
        slot = key_slot(exchange.bucket.encode())
        where = self._owner(slot, end)
        unanswered = False
        for last in (False, True):
            try:
                replies = self._links_to(where).call(exchange, end - now())
            except StoreUnavailable as error:
                found = self._new_owner(where, slot, end) if not last and not error.denied else None
                if found is None:
                    raise
                unanswered = True  # by the node of before
                where = found
                continue
            unanswered = unanswered or replies.unanswered
            redirect = next((value for value in replies.values if isinstance(value, AskError)), None)
            if redirect is None or last:
                return Replies(replies.values, unanswered)
            where = (redirect.host or where[0], int(redirect.port))
            if not isinstance(redirect, MovedError):
                return Replies(self._ask(where, exchange, end), unanswered)
            self._owners[slot] = where
            self._stale = True
        raise AssertionError("unreachable")

    def _ask(self, where: HostPort, exchange: Exchange, end: float) -> list[Any]:
        """Ask a node that a slot is on its way to, by the scripts' texts: it may not know them yet."""
        asked: list[Request] = []
        for request in exchange.requests:
            asked += (_ASKING, Plain(request.packed(by_text=True)))
        return self._links_to(where).call(exchange._replace(requests=asked, follow_up=None), end - now()).values[1::2]

    def call_all(self, commands: Sequence[tuple[str, Request]], seconds: float) -> list[Any]:
        """See `Links.call_all`: one batch a node, all nodes at once; those that have moved, once more."""
        end = now() + seconds
        replies: list[Any] = [None] * len(commands)
        places = list(range(len(commands)))
        for _ in range(2):
            groups: dict[HostPort, list[int]] = {}
            for place in places:
                groups.setdefault(self._owner(key_slot(commands[place][0].encode()), end), []).append(place)
            self._round(groups, commands, end, replies)
            places = [place for place in places if isinstance(replies[place], MovedError)]
            if not places or now() >= end:
                break
            for place in places:
                moved = replies[place]
                self._owners[key_slot(commands[place][0].encode())] = (moved.host, int(moved.port))
            self._stale = True
        return replies

    def _round(
        self, groups: dict[HostPort, list[int]], commands: Sequence[tuple[str, Request]], end: float, into: list[Any]
    ) -> None:
        nodes = [self._node(where) for where in groups]
        batches = [[commands[place][1] for place in places] for places in groups.values()]
        flight = FanOut(nodes, batches)
        flight.run(end, lambda _index, _reply: len(flight.replies) == len(nodes))
        silent = StoreUnavailable("no answer in time")
        for index, (where, places) in enumerate(groups.items()):
            reply = flight.replies.get(index, silent)
            if isinstance(reply, StoreUnavailable):
                self._stale, self._doubted = True, where
            for place, value in zip(places, reply if isinstance(reply, list) else [reply] * len(places), strict=True):
                into[place] = value

    def servers(self, seconds: float) -> list[Address]:
        """The masters."""
        self._owner(0, now() + seconds)
        return [self._seeds[0].at(*where) for where in sorted(set(self._owners.values()))]

    def close(self) -> None:
        """Close what is open."""
        for links in list(self._links.values()):
            links.close()
        for node in list(self._nodes.values()):
            node.close()

    def _links_to(self, where: HostPort) -> Links:
        return self._links.get(where) or self._links.setdefault(where, Links(self._seeds[0].at(*where)))

    def _node(self, where: HostPort) -> Node:
        found = self._nodes.get(where)
        return found or self._nodes.setdefault(where, Node(self._seeds[0].at(*where), self._timeout, SCRIPTS))

    def _new_owner(self, where: HostPort, slot: int, end: float) -> HostPort | None:
        """Who has the slot now that ``where`` does not answer; None where nobody else has."""
        self._stale, self._doubted = True, where
        if now() >= end:
            return None
        try:
            found = self._owner(slot, end)
        except StoreUnavailable:
            return None
        return found if found != where else None

    def _owner(self, slot: int, end: float) -> HostPort:
        if self._stale:
            self._refresh(end, must=slot not in self._owners)
        where = self._owners.get(slot)
        if where is None:
            raise StoreUnavailable(f"CLUSTERDOWN: no node of the cluster has slot {slot}")
        return where

    def _refresh(self, end: float, must: bool) -> None:
        """Learn who has which slot. One thread asks; another waits only where it ``must`` know."""
        if not self._refreshing.acquire(timeout=max(0.0, end - now()) if must else 0.0):
            return
        try:
            if not self._stale:
                return
            error: StoreUnavailable | None = None
            candidates = self._candidates()
            for turn, address in enumerate(candidates):
                try:
                    owners = self._fetch_slots(address, (end - now()) / (len(candidates) - turn + 1))
                except RedisError as failure:
                    found = to_store_unavailable(failure)
                    error = error or StoreUnavailable(f"{address.display_name}: {found.reason}", found.denied)
                    continue
                self._owners = owners
                self._stale, self._doubted = False, None
                return
            if must and error is not None:
                raise error
        finally:
            self._refreshing.release()

    def _candidates(self) -> list[Address]:
        seeds = {seed.where: seed for seed in self._seeds}
        known = {where: self._seeds[0].at(*where) for where in dict.fromkeys(self._owners.values())}
        places = {**known, **seeds}
        return [places[where] for where in sorted(places, key=lambda where: where == self._doubted)]

    def _fetch_slots(self, address: Address, seconds: float) -> dict[int, HostPort]:
        link = Link(address)
        try:
            (reply,) = link.exchange([_TOPOLOGY], seconds)
        finally:
            link.close()
        if isinstance(reply, RedisError):
            raise reply
        return dict(_parse_slots(reply, address.where[0]))


def _parse_slots(reply: list[Any], asked: str) -> Iterator[tuple[int, HostPort]]:
    for first, last, master, *_ in reply:
        host = master[0].decode() if master[0] else ""  # a node that does not know its own address: where we found it
        if host == "?":
            continue
        for slot in range(first, last + 1):
            yield slot, (host or asked, int(master[1]))
