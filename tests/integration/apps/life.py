"""Tasks that meet every end there is: killed, limited, revoked, retried, restarted. Their key is ``res:{key}``."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import Any

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import worker_init
from celery.worker.request import Request

from celery_singleton_lock import LeaseLost, current_lease, open_store, single_instance

from . import kit
from .kit import LATE, begin, make_app, notes, say, wait

__all__ = ["app", "notes"]

app = make_app("life")
QUICK: dict[str, Any] = {"key": "res:{key}", "ttl": 20, **kit.QUICK}


@worker_init.connect(weak=False)
def _use_in_parent(**_: Any) -> None:
    if os.environ.get("TEST_USE_IN_PARENT"):  # the client is used before the children are forked
        late("in-the-parent")


def _life(name: str, celery: dict[str, Any] | None = None, **options: Any) -> Any:
    @app.task(bind=True, name=f"life.{name}", **(celery or {}))
    @single_instance(**{**QUICK, **options})
    def live(self: Task, key: str, seconds: float = 0.0) -> int:
        number = begin(self, key)
        if number == 1:
            try:
                wait(key, seconds)
            finally:
                notes.incr(f"unwound:{key}")
        return number

    return live


late = _life("late", LATE)
late_skip = _life("late_skip", LATE, on_conflict="skip")
early = _life("early")
kept = _life("kept", {"acks_late": True, "acks_on_failure_or_timeout": False})
retried = _life("retried", {"retry_on_worker_lost": True, "default_retry_delay": 0, "max_retries": 2})
short = _life("short", LATE, ttl=1)
lasting = _life("lasting", LATE, ttl=7)
limited = _life("limited", max_hold=1, ttl=0.6)
aborted = _life("aborted", {"autoretry_for": (Exception,), "default_retry_delay": 0}, ttl=0.6, on_lost="abort")
named = _life("named", {"autoretry_for": (LeaseLost,), "default_retry_delay": 0}, ttl=0.6, on_lost="abort")
resting = _life("resting", at_least=2)
beside = _life("beside", ttl=1.5)


class LingersRequest(Request):  # type: ignore[misc]
    """In the parent: after a hard limit and the task's hooks it stays until the test says so."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        key = self.args[0]
        say(f"over:{key}", pid=os.getpid(), lease=current_lease())
        notes.blpop([f"end:{key}"], 30)


class Lingers(Task):  # type: ignore[misc]
    """Says where its hooks run, and under which lease."""

    abstract = True
    Request = LingersRequest

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        say(f"hook:{args[0]}", hook="on_failure", pid=os.getpid(), lease=current_lease())

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        say(f"hook:{args[0]}", hook="after_return", pid=os.getpid(), lease=current_lease())


lingers = _life("lingers", {"base": Lingers}, ttl=6)


@app.task(bind=True)
@single_instance(key="res:{key}", ttl=2)
def cleans_up(self: Task, key: str, seconds: float) -> str:
    """Takes its soft limit for what it is, and ends well."""
    begin(self, key)
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        return "cleaned up"
    return "slept"


def _is_lost() -> bool:
    lease = current_lease()
    assert lease is not None
    return lease.lost


@app.task(bind=True, **LATE)
@single_instance(key="res:{key}", ttl=1.5, on_lost="abort")
def spins(self: Task, key: str, path: str) -> bool:
    """Never yields to another greenlet until the file is there: whether it knows then that its lease is lost."""
    begin(self, key)
    while not os.path.exists(path):
        pass
    return _is_lost()


@app.task(bind=True, **LATE)
@single_instance(key="res:{key}", ttl=1.5)
def stuck(self: Task, key: str, path: str) -> bool:
    """One C call keeps the GIL until something is in the named pipe: whether it knows then that its lease is lost."""
    begin(self, key)
    with open(path, "rb", buffering=0) as pipe:
        ctypes.PyDLL(None).read(pipe.fileno(), ctypes.create_string_buffer(1), ctypes.c_size_t(1))
        return _is_lost()


@app.task(bind=True, **LATE)
@single_instance(key="res:{key}", ttl=1.5)
def knows(self: Task, key: str) -> bool:
    """Whether it knows, when the test lets it end, that its lease is lost."""
    begin(self, key)
    wait(key, 60)
    return _is_lost()


@app.task(bind=True, **LATE)
@single_instance(key="res:{key}", ttl=1.5)
def forks(self: Task, key: str, way: str) -> bool:
    """Runs a program, and forks a process that runs a locked task of its own and outlives this body."""
    begin(self, key)
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    if way == "multiprocessing":
        current: Any = multiprocessing.current_process()
        current._config["daemon"] = False  # a pool's child may have none, else
        multiprocessing.get_context("fork").Process(target=beside, args=(f"{key}-child", 60)).start()
    elif os.fork() == 0:
        try:
            beside(f"{key}-child", 60)
        finally:
            os._exit(0)
    wait(key, 60)
    return _is_lost()


@app.task(bind=True)
@single_instance(key="res:{key}", ttl=20)
def splits(self: Task, key: str) -> bool:
    """Forks a process that leaves this call at once; whether the lease is lost at the end."""
    begin(self, key)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        say(f"left:{key}")
        wait(key, 60)
    return _is_lost()


@app.task
def leaves_twice(key: str) -> bool:
    """No lock: what it calls is left by two processes, and the second one ends here."""
    pid = os.getpid()
    try:
        return bool(splits(key))
    finally:
        if os.getpid() != pid:
            os._exit(0)


@app.task
@single_instance(key="quick:{number}", ttl=0.3)
def quick(number: int) -> int:
    """As short as a task can be."""
    return number


@app.task
@single_instance(key="res:{key}", ttl=0.5, on_conflict="raise")
def at_once(key: str, seconds: float) -> float:
    """Fails if its lock is not free."""
    time.sleep(seconds)
    return seconds


@app.task
def threads() -> list[int]:
    """No lock: this process's pid, threads, and open files."""
    return [os.getpid(), threading.active_count(), len(os.listdir("/proc/self/fd"))]


@app.task(bind=True, **LATE)
@single_instance(**{**QUICK, "idempotency_max_bytes": 10})
def hold_big(self: Task, key: str) -> str:
    """Its result is not kept for a repeat."""
    begin(self, key)
    wait(key, 60)
    return "x" * 50


class Stays(Task):  # type: ignore[misc]
    """Does not come to its acknowledgement."""

    abstract = True

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        first = notes.incr(f"stayed:{args[0]}") == 1  # before the note, on which the test kills it
        say(f"stays:{args[0]}")
        if first:
            time.sleep(60)


@app.task(bind=True, base=Stays, **LATE)
@single_instance(**{**QUICK, "idempotency_max_bytes": 10})
def stays(self: Task, key: str) -> str:
    """Its worker can be killed between its chord's count and its acknowledgement."""
    begin(self, key)
    return "x" * 50


@app.task(bind=True)
@single_instance(**QUICK)
def replaced(self: Task, key: str) -> Any:
    """Puts another locked task of the same key in its place."""
    raise self.replace(early.s(key))


lasting_skip = _life("lasting_skip", LATE, ttl=3, retry_backoff=60, retry_backoff_max=60, on_conflict="skip")


@app.task(bind=True, acks_late=True)
@single_instance(**QUICK, on_conflict="skip")
def falls(self: Task, key: str) -> int:
    """Fails at its first run."""
    number = begin(self, key)
    if number == 1:
        wait(key, 60)
        raise ValueError("the first run fails")
    return number


@app.task(bind=True)
@single_instance(**QUICK)
def fails(self: Task, key: str) -> None:
    """Fails."""
    raise ValueError("the body's own")


@app.task
def gather(values: list[Any]) -> list[Any]:
    """No lock: a chord's body that counts how often it is called."""
    say("gathered", values=values)
    return values


@app.task
def told(request: Any, exc: Any, traceback: Any, where: str) -> None:
    """A link_error."""
    say(where, error=type(exc).__name__, args=getattr(exc, "args", None))


@app.task
def linked(value: Any, where: str) -> None:
    """A link."""
    say(where, value=value)


store = open_store(app.conf.singleton_lock_url)


@app.task
@single_instance(key="res:{key}", ttl=5, retry_backoff=0.05, retry_backoff_max=0.2)
def counts(key: str) -> None:
    """Reads, sleeps and writes a counter that nothing else guards; notes if it is not alone."""
    if notes.incr(f"inside:{key}") > 1:
        notes.set(f"most:{key}", 2)
    value = int(notes.get(f"count:{key}") or 0)
    time.sleep(0.002)
    notes.set(f"count:{key}", value + 1)
    notes.decr(f"inside:{key}")
