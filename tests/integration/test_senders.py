"""Senders that know a task by its name only: nothing is locked before a run, so nothing is bypassed or left."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from celery.result import AsyncResult

from celery_singleton_lock import is_skipped

from ..support.apps import APPS
from ..support.process import Process
from ..support.waiting import eventually
from ..support.worker import ROOT
from .stage import PREFIX, Stage

PRODUCER = """
import json, sys
from celery import Celery
app = Celery(broker=sys.argv[1], backend=sys.argv[2])
print(json.dumps([app.send_task(sys.argv[3], [sys.argv[4]]).id for _ in range(3)]))
assert "celery_singleton_lock" not in sys.modules
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker of many threads."""
    with Stage(tmp_path_factory.mktemp("senders")) as stage:
        stage.start_worker(pool="threads", concurrency=6)
        yield stage


def _keys(stage: Stage, name: str) -> list[str]:
    """Everything that the lock server keeps of a resource."""
    return list(stage.locks.keys(f"{PREFIX}:*{name}*"))


def test_send_task_without_the_module(stage: Stage, name: str, tmp_path: Path) -> None:
    """B53: a process that knows neither the task nor this package sends three: one runs, two are skipped."""
    arguments = [stage.env["TEST_BROKER_URL"], stage.env["TEST_BACKEND_URL"], "locked.hold_skip", name]
    command = [sys.executable, "-c", PRODUCER, *arguments]
    sent = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    ids = json.loads(sent.stdout)
    holder = stage.begun(name)["task_id"]
    for task_id in set(ids) - {holder}:
        assert is_skipped(AsyncResult(task_id, app=stage.app).get(timeout=15))
    stage.go(name)
    assert AsyncResult(holder, app=stage.app).get(timeout=15) == "held"
    assert stage.notes.get(f"runs:{name}") == "1"


def test_a_message_that_is_revoked_before_its_start(stage: Stage, name: str) -> None:
    """B53: it has locked nothing, neither while it was queued nor afterwards."""
    result = stage.tasks.hold_retry.apply_async([name], countdown=3)
    result.revoke()
    assert _keys(stage, name) == []
    eventually(lambda: result.state == "REVOKED")
    assert _keys(stage, name) == []
    assert stage.notes.get(f"runs:{name}") is None


def test_a_message_that_expires_in_the_queue(stage: Stage, name: str) -> None:
    """B53: it has locked nothing, neither while it was queued nor afterwards."""
    result = stage.tasks.hold_retry.apply_async([name], countdown=0.5, expires=0.2)
    assert _keys(stage, name) == []
    eventually(lambda: result.state == "REVOKED")
    assert _keys(stage, name) == []
    assert stage.notes.get(f"runs:{name}") is None


@pytest.mark.slow
def test_two_beats_run_once_a_slot(stage: Stage, tmp_path: Path) -> None:
    """B53: two beats send a task by name each second; with at_least it runs once a slot, and the rest is skipped."""

    def ran() -> list[str]:
        return [note["task_id"] for note in stage.noted("ticks:beat")]

    def skipped() -> list[str]:
        keys = stage.notes.keys("signal:lock_skipped:*")
        return [note["task_id"] for key in keys for note in stage.noted(key) if note["task"] == "locked.tick"]

    def received() -> set[str]:
        (worker,) = stage.workers
        return set(re.findall(r"Task locked\.tick\[(\S+)\] received", worker.log()))

    beats = []
    try:
        for number in range(2):
            command = [sys.executable, "-m", "celery", "-A", f"{APPS}.beats", "beat", "--loglevel", "INFO"]
            command += [
                "--schedule",
                str(tmp_path / f"schedule-{number}"),
                "--pidfile",
                str(tmp_path / f"{number}.pid"),
            ]
            log = tmp_path / f"beat-{number}.log"
            beats.append(Process(command, log=log, env={**stage.env, "PYTHONPATH": str(ROOT)}, cwd=tmp_path))
        eventually(lambda: len(ran()) >= 5 and len(skipped()) >= 4, message="five slots of two beats")
        for beat in beats:
            assert "Sending due task" in beat.log()
    finally:
        for beat in beats:
            beat.stop()
    # A beat says that it sends before it does, and may be stopped in between: what counts is what arrived.
    eventually(lambda: stage.broker.llen("celery") == 0 and received() == {*ran(), *skipped()}, message="the last ones")
    assert len(ran()) == len(set(ran()))
    assert len(skipped()) == len(set(skipped()))
    assert not set(ran()) & set(skipped())
    fences = [note["fence"] for note in stage.noted("ticks:beat")]
    # Fences are the server's clock in microseconds; 0.7 s are counted from before the request was sent.
    assert all(later - earlier >= 600_000 for earlier, later in pairwise(fences)), fences
