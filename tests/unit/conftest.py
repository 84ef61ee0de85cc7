"""Apps that need no server: broker, result backend and locks are in this process's memory, each test has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import pytest
from celery import Celery, _state

from celery_singleton_lock import open_store
from celery_singleton_lock.protocol import Store

from ..support.clock import ManualClock
from .inline_worker import InlineWorker

MakeApp = Callable[..., Celery]


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
