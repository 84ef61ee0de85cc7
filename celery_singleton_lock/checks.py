"""What a worker looks at before its first message: one line for each thing that will not work as its user expects."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from celery import Task

from .errors import LockConfigError, StoreUnavailable
from .keys import names
from .options import DEFAULTS
from .plan import Plan
from .protocol import Store
from .settings import LockSettings
from .stores.inspect import look, same_server

logger = logging.getLogger(__name__)


class Limits(NamedTuple):
    """The worker's own time limits in seconds, which a task may replace by its own."""

    hard: float | None = None
    soft: float | None = None


def check(settings: LockSettings, tasks: Iterable[tuple[Task, Plan]], limits: Limits) -> None:
    """Say what is found in one warning each; `LockConfigError` for all of it with ``singleton_lock_strict_checks``.

    Two of a quorum's URLs that lead to one server are always an error: its vote would count twice.
    """
    found = [*of_store(settings.store, settings.strict_checks)]
    for task, plan in tasks:
        if plan.options.enabled:
            found += [f"task {plan.name}: {line}" for line in of_task(task, plan, limits)]
    if found and settings.strict_checks:
        raise LockConfigError(f"singleton_lock_strict_checks: {'; '.join(found)}")
    for line in found:
        logger.warning("%s", line)


def of_store(store: Store, strict: bool = False) -> Iterator[str]:
    """What is wrong with the lock servers. Raises `LockConfigError` where one of them has two votes."""
    try:
        servers = look(store)
        twice = same_server(store, servers)
        if twice is not None:
            raise LockConfigError(
                f"singleton_lock_url: {twice[0]} and {twice[1]} are the same server, or one is the other's replica; "
                "its vote must count once"
            )
        yield from (f"{server.shown}: {_cannot(server.error)}" for server in servers if server.error is not None)
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
                f"{server.shown}: at its memory's limit this server evicts keys (maxmemory-policy {server.policy}), "
                "held locks, fences and records among them; set noeviction, or give locks a server of their own"
            )
    if strict and len(servers) > 2 and len(servers) % 2 == 0 and hasattr(store, "majority"):
        yield f"singleton_lock_url: {len(servers)} servers bear the loss of no more than {len(servers) - 1} would"


def _cannot(error: StoreUnavailable | None) -> str:
    assert error is not None
    if error.denied:
        return f"this lock server turns the credentials down, and no task will run by it: {error.reason}"
    return f"this lock server cannot be used now; tasks do what their on_unavailable says: {error.reason}"


def of_task(task: Task, plan: Plan, limits: Limits) -> Iterator[str]:
    """What is wrong with one task's options beside its other settings."""
    options = plan.options
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
    if options.retry_backoff_max > plan.longest:
        yield (
            f"retry_backoff_max: {options.retry_backoff_max:g} s is cut to {plan.longest:g} s, half of the broker's "
            "visibility timeout: a message that waits for longer would be delivered twice"
        )
    if task.reject_on_worker_lost and not task.acks_late:
        yield (
            "reject_on_worker_lost has no effect without acks_late: the message of a killed child is gone, and its "
            "work is not done again; set acks_late=True"
        )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value else None
