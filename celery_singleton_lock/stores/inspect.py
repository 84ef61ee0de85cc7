"""A look at servers, for start-up checks: who answers, who may evict locks, who is there twice."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from ..errors import LockConfigError, StoreUnavailable
from ..keys.names import names
from ..locks.protocol import ServerState
from ..transport.address import Address
from ..transport.connection import INFO, Exchange, Links
from ..transport.requests import Request, plain
from . import scripts

#: How long a mark stays, in seconds: longer than a look at many slow servers takes.
_MARK_TTL = 20.0


def look(address: Address, timeout: float) -> ServerState:
    """What the server at ``address`` says of itself within ``timeout`` seconds."""
    try:
        replies = _ask(address, [plain("INFO", "memory"), INFO], timeout)
    except StoreUnavailable as error:
        return ServerState(address.display_name, error)
    memory, server = map(_fields, replies)
    policy = memory.get("maxmemory_policy", "noeviction")
    evicts = policy != "noeviction" and memory.get("maxmemory", "0") != "0"
    return ServerState(address.display_name, None, policy if evicts else None, server.get("run_id"))


def _ask(address: Address, requests: Sequence[Request], timeout: float) -> list[Any]:
    links = Links(address)
    try:
        return links.call(Exchange("", requests), timeout).values
    finally:
        links.close()


def _fields(reply: Any) -> dict[str, str]:
    if isinstance(reply, RedisError):  # INFO is not among the commands that a lock needs
        return {}
    return dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)


def check_different(addresses: Sequence[Address], states: Sequence[ServerState], prefix: str, timeout: float) -> None:
    """Raise `LockConfigError` where two of a quorum's addresses lead to one server, or to a server and its replica."""
    twice = _one_process(states) or _marked_twice(addresses, states, prefix, timeout)
    if twice is not None:
        raise LockConfigError(
            f"singleton_lock_url: {twice[0]} and {twice[1]} are the same server, or one is the other's replica; "
            "its vote must count once"
        )


def _one_process(states: Sequence[ServerState]) -> tuple[str, str] | None:
    runs: dict[str, str] = {}
    for state in states:
        if state.run_id is not None and state.run_id in runs:
            return runs[state.run_id], state.display_name
        if state.run_id is not None:
            runs[state.run_id] = state.display_name
    return None


def _marked_twice(
    addresses: Sequence[Address], states: Sequence[ServerState], prefix: str, timeout: float
) -> tuple[str, str] | None:
    bucket = names(prefix, "a quorum's servers").bucket
    nonce = secrets.token_hex(16)
    keys = [f"{bucket}mark:{nonce}:{number}" for number in range(len(addresses))]
    for number, address in enumerate(addresses):
        if states[number].error is not None:
            continue
        try:
            (reply,) = _ask(address, [scripts.mark(keys, number, _MARK_TTL)], timeout)
            found = [other for other, here in enumerate(scripts.checked(reply)) if here and other != number]
        except StoreUnavailable:
            continue  # unreachable now: it cannot vote, and is reported when used
        if found:
            return addresses[found[0]].display_name, address.display_name
    return None
