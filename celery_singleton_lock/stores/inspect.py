"""A look at a store's servers, for start-up checks: who answers, who may evict locks, who is there twice."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from ..errors import StoreUnavailable
from ..keys import names
from ..protocol import Store
from .address import Address
from .commands import checked
from .links import Links
from .quorum import QuorumStore
from .redis import RedisStore
from .script import MARK, plain

#: How long a mark stays, in milliseconds: longer than a look at many slow servers takes.
_MARK_MS = 20_000


class Server(NamedTuple):
    """What one server says of itself. ``error``: why it says nothing.

    ``policy``: by which it evicts keys at its memory's limit; None where it has no limit, evicts nothing or may not be
    asked. ``run``: names its process; None where it may not be asked.
    """

    shown: str
    error: StoreUnavailable | None = None
    policy: str | None = None
    run: str | None = None


def look(store: Store) -> list[Server]:
    """Each of the store's servers, asked within the store's timeout; none for a store without."""
    if isinstance(store, QuorumStore):
        return [_ask(node.address, store.timeout) for node in store.nodes]
    if isinstance(store, RedisStore):
        try:
            return [_ask(address, store.timeout) for address in store.route.servers(store.timeout)]
        except StoreUnavailable as error:
            return [Server(store.shown, error)]
    return []


def _ask(address: Address, timeout: float) -> Server:
    links = Links(address)
    try:
        replies = links.call(None, [plain("INFO", "memory"), plain("INFO", "server")], timeout).values
    except StoreUnavailable as error:
        return Server(address.shown, error)
    finally:
        links.close()
    memory, server = map(_fields, replies)
    policy = memory.get("maxmemory_policy", "noeviction")
    evicts = policy != "noeviction" and memory.get("maxmemory", "0") != "0"
    return Server(address.shown, None, policy if evicts else None, server.get("run_id"))


def _fields(reply: Any) -> dict[str, str]:
    if isinstance(reply, RedisError):  # INFO is not among the commands that a lock needs
        return {}
    return dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)


def same_server(store: Store, servers: Sequence[Server]) -> tuple[str, str] | None:
    """Two of a quorum's addresses that lead to one server, or to a server and its replica; None where all differ."""
    if not isinstance(store, QuorumStore):
        return None
    runs: dict[str, str] = {}
    for server in servers:
        if server.run is not None and server.run in runs:
            return runs[server.run], server.shown
        if server.run is not None:
            runs[server.run] = server.shown
    return _marked_twice(store, [number for number, server in enumerate(servers) if server.error is None])


def _marked_twice(store: QuorumStore, answering: Sequence[int]) -> tuple[str, str] | None:
    bucket = names(store.prefix, "a quorum's servers").bucket
    mark = secrets.token_hex(16)
    keys = [f"{bucket}mark:{mark}:{number}" for number in range(len(store.nodes))]
    for number in answering:
        address = store.nodes[number].address
        links = Links(address)
        try:
            reply = links.call(None, [MARK(keys, number + 1, _MARK_MS)], store.timeout).values[0]
            found = [other for other, here in enumerate(checked(reply)) if here and other != number]
        except StoreUnavailable:
            continue  # what does not bear the question now will not have a vote, and says so then
        finally:
            links.close()
        if found:
            return store.nodes[found[0]].address.shown, address.shown
    return None
