"""What a worker looks at before its first message: one line for each thing that will not work as its user expects."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from celery import Task

from ..errors import LockConfigError, StoreUnavailable
from ..keys.names import names
from ..locks.protocol import Store
from ..stores import even_servers
from ..tasks.locked_task import LockedTask
from ..tasks.options import DEFAULTS
from ..tasks.settings import LockSettings

logger = logging.getLogger(__name__)


class Limits(NamedTuple):
    """The worker's own time limits in seconds, which a task may replace by its own."""

    hard: float | None = None
    soft: float | None = None


def check(settings: LockSettings, tasks: Iterable[tuple[Task, LockedTask]], limits: Limits) -> None:
    """Say what is found in one warning each; `LockConfigError` for all of it with ``singleton_lock_strict_checks``.

    Two of a quorum's URLs that lead to one server are always an error: its vote would count twice.
    """
    found = [*of_store(settings.store, settings.strict_checks)]
    for task, locked in tasks:
        if locked.options.enabled:
            found += [f"task {locked.name}: {line}" for line in of_task(task, locked, limits)]
    if found and settings.strict_checks:
        raise LockConfigError(f"singleton_lock_strict_checks: {'; '.join(found)}")
    for line in found:
        logger.warning("%s", line)


def of_store(store: Store, strict: bool = False) -> Iterator[str]:
    """What is wrong with the lock servers. Raises `LockConfigError` where one of them has two votes."""
    try:
        servers = store.inspect()
        yield from (f"{server.display_name}: {_cannot(server.error)}" for server in servers if server.error is not None)
        if not any(server.error for server in servers):
            try:
                store.peek(names(store.prefix, "a start-up check"))
            except StoreUnavailable as error:
                yield f"{store!r}: {_cannot(error)}"
    finally:
        store.close()
    for server in servers:
        if server.policy is not None:
            yield (
                f"{server.display_name}: at its memory's limit this server evicts keys (maxmemory-policy "
                f"{server.policy}), held locks, fences and records among them; set noeviction, or give locks a server "
                "of their own"
            )
    if strict and store.majority > 1 and len(servers) % 2 == 0:
        yield f"singleton_lock_url: {even_servers(len(servers))}"


def _cannot(error: StoreUnavailable | None) -> str:
    assert error is not None
    if error.denied:
        return f"this lock server rejects the credentials; no task will run under its locks: {error.reason}"
    return f"this lock server cannot be used now; tasks do what their on_unavailable says: {error.reason}"


def of_task(task: Task, locked: LockedTask, limits: Limits) -> Iterator[str]:
    """What is wrong with one task's options beside its other settings."""
    options = locked.options
    hard = _number(task.time_limit) or limits.hard
    soft = _number(task.soft_time_limit) or limits.soft
    first = min((limit for limit in (hard, soft) if limit), default=None)
    # A short ttl is right for a long body, since it is renewed; a long one only delays whoever comes after a crash.
    if hard and options.ttl > max(hard, DEFAULTS.ttl):
        yield (
            f"ttl: {options.ttl:g} s is longer than the task may run (time_limit {hard:g} s): after a crash the "
            "resource stays locked for longer than a run takes; a shorter ttl is renewed as long as the body runs"
        )
    if first and options.max_hold is not None and options.max_hold < first and options.on_lost != "abort":
        yield (
            f"max_hold: the lock ends after {options.max_hold:g} s, the body only at its time limit, {first:g} s: "
            'between the two it runs without; lower the limit, or set on_lost="abort"'
        )
    if first and options.on_conflict == "wait" and options.wait_timeout >= first:
        yield (
            f"wait_timeout: {options.wait_timeout:g} s of waiting count in the time limit, {first:g} s, which would "
            "end the task first; raise the limit or lower wait_timeout"
        )
    if options.retry_backoff_max > locked.max_delay:
        yield (
            f"retry_backoff_max: {options.retry_backoff_max:g} s is cut to {locked.max_delay:g} s, half of the "
            "broker's visibility timeout: a message that waits for longer would be delivered twice"
        )
    if task.reject_on_worker_lost and not task.acks_late:
        yield (
            "reject_on_worker_lost has no effect without acks_late: the message of a killed child is gone, and its "
            "work is not done again; set acks_late=True"
        )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value else None
