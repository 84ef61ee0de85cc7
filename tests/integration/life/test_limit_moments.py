"""A soft time limit at any moment: before each line of this package that a run passes through, and at each return."""

from __future__ import annotations

import dis
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.app.trace import build_tracer
from celery.exceptions import SoftTimeLimitExceeded

import celery_singleton_lock
from celery_singleton_lock import single_instance
from celery_singleton_lock.locks.renewal import default_renewer
from celery_singleton_lock.tasks import abort

from ...support.servers import Server

#: Celery and redis-py disagree about it.
pytestmark = pytest.mark.filterwarnings("ignore:.*setex:DeprecationWarning")

PACKAGE = str(Path(celery_singleton_lock.__file__).parent)
TTL = 5.0
LOAD_CONST = dis.opmap["LOAD_CONST"]


class Striker:
    """Raises SoftTimeLimitExceeded at the ``at``-th event of one kind in the package's own frames, in this thread."""

    def __init__(self, at: int, kind: str) -> None:
        self.left = at
        self.kind = kind
        self.place: tuple[str, int] | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == self.kind and not self._leaves_with(frame):
            if self.left == 0:
                self.place = (Path(frame.f_code.co_filename).name, frame.f_lineno)
                raise SoftTimeLimitExceeded()
            self.left -= 1
        return self

    def _leaves_with(self, frame: FrameType) -> bool:
        """A with statement is about to call its __exit__: Python takes no signal there, though it traces the line."""
        code, names = frame.f_code, frame.f_code.co_code
        return names[frame.f_lasti] == LOAD_CONST and _line(code.co_filename, frame.f_lineno).startswith("with ")


def _line(file: str, number: int) -> str:
    return linecache.getline(file, number).strip()


@pytest.fixture
def app(valkey: Server) -> Iterator[Celery]:
    """An app whose tasks are traced in this process, as a worker's child does."""
    app = Celery("moments", broker=valkey.url(0), backend=valkey.url(1), set_as_current=False)
    app.conf.singleton_lock_url = valkey.url(2)
    app.conf.singleton_lock_ttl = TTL
    app.finalize()
    yield app
    app.close()


def _run(app: Celery, task: Any, key: str, striker: Callable[..., Any] | None) -> tuple[str, Any]:
    """The state and the result of one message, as a worker's child comes to them."""
    tracer = build_tracer(task.name, task, app=app)
    request = {"id": uuid4().hex, "delivery_info": {"exchange": "", "routing_key": "celery"}, "is_eager": False}
    sys.settrace(striker)
    try:
        retval, info, *_ = tracer(request["id"], [key], {}, request)
    finally:
        sys.settrace(None)
    if info is None:
        return states.SUCCESS, retval
    return info.state, info.retval


OPTIONS: dict[str, dict[str, Any]] = {
    "own record": {"idempotency_key": "{key}", "at_least": 0.003},
    "abort": {"on_lost": "abort", "on_conflict": "wait"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["line", "return"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_nothing_is_left(
    app: Celery, valkey: Server, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], kind: str
) -> None:
    """B37: no lock beyond its ttl, no lease being renewed, no lock of a thread; a finished body's result stays."""
    monkeypatch.setattr(abort, "_enabled", True)
    begun, ended = [], []

    @app.task(acks_late=True, name=f"moments.{uuid4().hex}")
    @single_instance(key="res:{key}", **options)
    def body(key: str) -> str:
        begun.append(key)
        ended.append(key)
        return key

    assert _run(app, body, "before", None) == (states.SUCCESS, "before")  # a worker has read its settings by then
    strikes = left = 0
    with valkey.client(2) as client:
        while True:
            key = f"struck-{strikes}"
            striker = Striker(strikes, kind)
            state, result = _run(app, body, key, striker)
            if striker.place is None:
                break
            strikes += 1
            if kind == "line" and key in ended:
                assert (state, result) == (states.SUCCESS, key), striker.place
            elif state != states.SUCCESS:
                assert isinstance(result, SoftTimeLimitExceeded), striker.place
            assert not [e for e in default_renewer()._entries.values() if e.owner()], striker.place
            assert default_renewer()._lock.acquire(timeout=5), striker.place
            default_renewer()._lock.release()
            for name in client.keys("*:lock:*"):
                assert client.pttl(name) <= TTL * 1000, striker.place
                assert client.ttl(name) != -1, striker.place
                left += 1
                client.delete(name)
            if strikes % 10 == 0:
                assert _run(app, body, f"after-{strikes}", None) == (states.SUCCESS, f"after-{strikes}"), striker.place
    assert (state, result) == (states.SUCCESS, key)
    assert strikes > 40
    assert begun
    print(f"{strikes} strikes, {left} locks left to their ttl")
