"""Senders that know a task by its name only: nothing is locked before a run, so nothing is bypassed or left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from celery.result import AsyncResult

from celery_singleton_lock import is_skipped

from ..support.process import Process
from ..support.waiting import eventually
from ..support.worker import ROOT
from .stage import APPS, PREFIX, Stage

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
    result = stage.tasks.hold_retry.apply_async([name], countdown=0.5)
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
        for beat in beats:
            beat.wait_for_log("beat: Starting")
        start = time.time()
        eventually(lambda: stage.notes.llen("ticks:beat") >= 5, message="five slots")
    finally:
        for beat in beats:
            beat.stop()

    def skipped() -> int:
        keys = stage.notes.keys("signal:lock_skipped:*")
        return sum(note["task"].endswith(".tick") for key in keys for note in stage.noted(key))

    sent = [beat.log().count("Sending due task") for beat in beats]
    assert min(sent) >= 4
    eventually(lambda: stage.notes.llen("ticks:beat") + skipped() == sum(sent))
    ticks = [note["at"] for note in stage.noted("ticks:beat")]
    assert all(later - earlier >= 0.65 for earlier, later in pairwise(ticks)), ticks
    assert len(ticks) <= ticks[-1] - start + 2
    assert skipped() >= 4
