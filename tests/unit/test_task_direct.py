"""Tasks called as functions: they lock, free, never publish, and nest under the lease that is held already."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import (
    LeaseLost,
    Lock,
    LockKeyError,
    LockTaken,
    SingleInstanceTask,
    current_lease,
    is_skipped,
    single_instance,
)
from celery_singleton_lock.keys.names import key_id
from celery_singleton_lock.locks.protocol import Store

from ..support.locks import is_held, lock_under, own_lease
from ..support.programs import run_python
from .inline_worker import InlineWorker


def test_lock_is_held_and_freed(charge: Any, store: Store, worker: InlineWorker) -> None:
    """A direct call holds the lock while its body runs, and frees it; nothing is published (B35)."""
    seen: list[bool] = []
    lease = charge(7, then=lambda: seen.append(is_held(store)))
    assert (seen, is_held(store), lease.remaining(), current_lease()) == ([True], False, 0.0, None)
    assert (lease.key, len(lease.token)) == ("order:7", 32)
    assert worker.waiting() == 0


def test_lock_is_freed_by_a_body_that_raises(charge: Any, store: Store) -> None:
    """A body that raises frees the lock, and its own exception comes out (B35)."""

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        charge(7, then=fail)
    assert not is_held(store)
    assert charge(7).fence > 0


@pytest.mark.parametrize("mode", ["retry", "wait", "raise"])
def test_conflict_is_a_plain_exception(
    app: Celery, store: Store, worker: InlineWorker, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A direct call that finds the lock taken raises LockTaken at once, whatever the mode; nothing is sent (B35)."""
    caplog.set_level(logging.INFO)
    waiting = {"lock_wait_timeout": 0.02} if mode == "wait" else {}

    @app.task(base=SingleInstanceTask, lazy=False, lock_key="order:{order_id}", lock_on_conflict=mode, **waiting)
    def ship(order_id: int) -> None:
        pytest.fail("two bodies at once")

    with Lock(store, "order:7"), pytest.raises(LockTaken) as caught:
        ship(7)
    assert caught.value.key_id == key_id("order:7")
    assert caught.value.remaining is not None
    assert worker.waiting() == 0
    assert key_id("order:7") in caplog.text
    assert "order:7" not in caplog.text


def test_wait_says_how_long_it_waited(app: Celery, store: Store) -> None:
    """After a wait in vain LockTaken has the seconds waited (B05)."""

    @app.task(base=SingleInstanceTask, lazy=False, lock_key="order", lock_on_conflict="wait", lock_wait_timeout=0.03)
    def ship() -> None:
        pytest.fail("two bodies at once")

    with Lock(store, "order"), pytest.raises(LockTaken) as caught:
        ship()
    assert caught.value.waited >= 0.03


def test_skip_is_an_answer(app: Celery, store: Store) -> None:
    """A direct call that is skipped returns the marker, or what the task says to return (B03)."""

    @app.task(lazy=False)
    @single_instance(key="report", on_conflict="skip")
    def report() -> None:
        pytest.fail("two bodies at once")

    @app.task(lazy=False)
    @single_instance(key="report", on_conflict="skip", skip_result=None)
    def other() -> int:
        return 1

    with Lock(store, "report"):
        result = report()
        assert is_skipped(result)
        assert result == {"singleton_lock": "skipped", "task_id": None, "key": key_id("report")}
        assert other() is None
    assert other() == 1


def test_wait_gets_the_lock(app: Celery, store: Store) -> None:
    """In the mode "wait" a direct call blocks until the holder is done."""

    @app.task(lazy=False)
    @single_instance(key="report", on_conflict="wait", wait_timeout=20)
    def report() -> int:
        return 1

    lock, results = Lock(store, "report"), list[int]()
    lock.acquire()
    thread = threading.Thread(target=lambda: results.append(report()))
    thread.start()
    lock.release()
    thread.join(20)
    assert results == [1]


def test_run_is_bare(charge: Any, store: Store) -> None:
    """`task.run(...)` takes no lock, even where it is taken (B35)."""
    with Lock(store, "order:7"):
        assert charge.run(7) is None


def test_wrong_arguments_are_celerys_type_error(charge: Any, store: Store) -> None:
    """Arguments that do not bind fail with a TypeError that names them, before any lock is taken (B10)."""
    with pytest.raises(TypeError, match="order_id"):
        charge()
    with pytest.raises(TypeError, match="nonsense"):
        charge(7, nonsense=1)


def test_key_that_cannot_be_built(charge: Any, store: Store) -> None:
    """A missing or unstable value is an error that names the field and shows no value; no body runs (B10, B23)."""
    with pytest.raises(LockKeyError) as caught:
        charge(None)
    assert caught.value.field == "order_id"
    with pytest.raises(LockKeyError) as caught:
        charge(object())
    assert "0x" not in str(caught.value)


def test_lost_lease_is_known_to_the_body(app: Celery, store: Store) -> None:
    """A body whose key has gone finds out at its next look, and its own result stands (B07)."""

    @app.task(lazy=False)
    @single_instance(key="order", ttl=0.3)
    def charge() -> str:
        lease = own_lease()
        store.release(lock_under(store, lease))
        try:
            while True:
                lease.ensure_held()
        except LeaseLost:
            return "told"

    assert charge() == "told"


KEYS = """
import {module}
print({module}.charge(7, when={module}.WHEN))
"""
SHOP = """
from datetime import datetime, timezone
from celery import Celery
from celery_singleton_lock import current_lease, single_instance
app = Celery("shop", broker="memory://")
app.conf.singleton_lock_url = "memory://"
WHEN = datetime(2024, 5, 1, tzinfo=timezone.utc)
@app.task(bind=True, name="shop.charge")
@single_instance
def charge(self, order_id, tags=frozenset(("a", "b", "c")), when=None):
    return current_lease().key
if __name__ == "__main__":
    print(charge(7, when=WHEN))
"""


def test_default_key_is_the_same_everywhere(tmp_path: Path) -> None:
    """The task object stays out of the default key: in two processes it is the same (B23, B24)."""
    (tmp_path / "shop.py").write_text(SHOP)
    printed = [
        run_python(*arguments, cwd=tmp_path, PYTHONHASHSEED=seed)
        for seed, arguments in (("1", ["shop.py"]), ("2", ["-c", KEYS.format(module="shop")]))
    ]
    assert printed[0] == printed[1]
    assert printed[0].startswith("shop.charge:")
