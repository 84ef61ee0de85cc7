"""Fixtures that need no server: stores, guards, and apps whose broker and results are in this process's memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import pytest
from celery import Celery, _state

from celery_singleton_lock import Lease, Lock, current_lease, open_store, single_instance
from celery_singleton_lock.locks.guard import Guard
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.locks.renewal import Renewer
from celery_singleton_lock.tasks.settings import settings_of

from ..support.clock import ManualClock
from ..support.locks import KEY, guard_on, lease_of
from .flaky_store import FlakyStore
from .inline_worker import InlineWorker

MakeApp = Callable[..., Celery]
MakeGuard = Callable[..., Guard]
MakeLease = Callable[..., Lease]


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The package's own lines in the log."""
    return [record for record in caplog.records if record.name.startswith("celery_singleton_lock")]


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture
def lock_url() -> str:
    """The URL of a lock store of this test's own."""
    return f"memory://{uuid4().hex}"


@pytest.fixture(autouse=True)
def celery_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """An app has its own tasks and Celery's, though Celery shares tasks between all apps of a process."""
    own = {connect for connect in _state._on_app_finalizers if connect.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", own)
    monkeypatch.setattr(_state, "_apps", WeakSet())


@pytest.fixture
def make_app(lock_url: str) -> Iterator[MakeApp]:
    """``make_app(**settings)``: an app whose locks are in the store of `lock_url`, closed after the test."""
    apps: list[Celery] = []

    def make(**settings: Any) -> Celery:
        app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.update(task_default_queue=uuid4().hex, singleton_lock_url=lock_url)
        app.conf.update(settings)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    """An app with nothing set but its URLs."""
    return make_app()


@pytest.fixture
def store(lock_url: str) -> Store:
    """The store in which the locks of `app` are."""
    return open_store(lock_url)


@pytest.fixture
def worker(app: Celery) -> InlineWorker:
    """A worker of `app` that runs a message when told to."""
    return InlineWorker(app)


@pytest.fixture
def flaky(clock: ManualClock) -> FlakyStore:
    """A store that shares the test's clock."""
    return FlakyStore(clock)


@pytest.fixture
def renewer(clock: ManualClock) -> Renewer:
    """A renewer that moves only by `tick`."""
    return Renewer(clock, threaded=False)


@pytest.fixture
def app_store(app: Celery, clock: ManualClock) -> FlakyStore:
    """The store of `app`, whose faults the test switches on."""
    store = settings_of(app).store = FlakyStore(clock)
    return store


@pytest.fixture
def make_guard(flaky: FlakyStore, renewer: Renewer, clock: ManualClock) -> MakeGuard:
    """``make_guard(key, held=False, store=flaky, **options)``: a guard; the clock goes on where it would sleep."""

    def make(key: str = KEY, *, held: bool = False, store: Store = flaky, **options: Any) -> Guard:
        guard = guard_on(store, key, **{"renewer": renewer, "clock": clock, "sleep": clock.advance, **options})
        if held:
            guard.acquire()
        return guard

    return make


@pytest.fixture
def make_lease(make_guard: MakeGuard) -> MakeLease:
    """``make_lease(key, **options)``: the lease of such a guard, renewed by the ticks of `renewer`."""
    return lambda *args, **options: lease_of(make_guard(*args, held=True, **options))


@pytest.fixture
def ran() -> list[Any]:
    """What bodies put in."""
    return []


@pytest.fixture
def taken(store: Store) -> Iterator[Lock]:
    """The lock of order 7, held by a stranger."""
    lock = Lock(store, "order:7")
    lock.acquire()
    yield lock
    if lock.lease is not None:
        lock.release()


@pytest.fixture
def charge(app: Celery) -> Any:
    """A locked task that returns its lease."""

    @app.task(lazy=False)
    @single_instance(key="order:{order_id}")
    def charge(order_id: int, then: Callable[[], Any] | None = None) -> Lease | None:
        lease = current_lease()
        if then is not None:
            then()
        return lease

    return charge
