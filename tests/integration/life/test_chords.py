"""A chord counts each member once, however often its message comes, and canvases around locked tasks always end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
from celery import chain, chord, group

from celery_singleton_lock import is_skipped

from ...support.waiting import eventually
from ..stage import Stage, resource


@pytest.fixture(scope="module", params=[True, False], ids=["ordered", "unordered"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two prefork workers; chords that keep the order of their results, and chords that do not."""
    conf = {"result_backend_transport_options": {"result_chord_ordered": request.param}}
    stage = Stage(tmp_path_factory.mktemp("chords"), "life", env={"TEST_CONF": json.dumps(conf)})
    stage.start_worker(concurrency=3)
    yield stage
    stage.close()


def _members(stage: Stage, group_id: str) -> int:
    """How many results the chord's header has so far."""
    with stage.server.client(1) as client:
        name = f"celery-taskset-meta-{group_id}.j"
        kind = client.type(name)
        return client.zcard(name) if kind == "zset" else client.llen(name) if kind == "list" else 0


class TestOneCount:
    """A message that is delivered twice."""

    def test_alive(self, stage: Stage, name: str) -> None:
        """B06: delivered again while the first run lives, its result too large to keep: one count, its own result."""
        result = chord([stage.tasks.hold_big.s(name), stage.tasks.late.s(f"{name}-2", 30)])(stage.tasks.gather.s())
        stage.begun(name)
        stage.begun(f"{name}-2")
        stage.redeliver()
        stage.until_waiting(result.parent.results[0].id)
        stage.go(name)
        eventually(lambda: _members(stage, result.parent.id) == 1)
        time.sleep(1.5)
        assert _members(stage, result.parent.id) == 1
        stage.go(f"{name}-2")
        values = result.get(timeout=20)
        assert sorted(map(str, values)) == sorted(["1", "x" * 50])
        time.sleep(0.5)
        assert len(stage.noted("gathered")) == 1
        stage.notes.delete("gathered")

    def test_a_dead_worker_after_the_count(self, stage: Stage, name: str) -> None:
        """B06: the worker dies after the count and before the acknowledgement: the copy is not counted again."""
        doomed = stage.start_worker(pool="solo", args=["-Q", name])
        header = [stage.tasks.stays.s(name).set(queue=name), stage.tasks.late.s(f"{name}-2", 60)]
        result = chord(header)(stage.tasks.gather.s())
        stage.begun(name)
        eventually(lambda: _members(stage, result.parent.id) == 1)
        stage.note(f"stays:{name}")
        doomed.kill()
        stage.redeliver()
        stage.start_worker(pool="solo", args=["-Q", name])
        stage.note(f"signal:lock_replayed:{result.parent.results[0].id}")
        time.sleep(0.5)
        assert _members(stage, result.parent.id) == 1
        stage.go(f"{name}-2")
        assert len(result.get(timeout=20)) == 2


def test_nested(stage: Stage, name: str) -> None:
    """B03: waits, skips and replays inside nested chains, groups and chords: they end, each body once."""
    tasks = stage.tasks
    with stage.outsider(resource(name)) as outsider:
        inner = chord([tasks.early.s(name), tasks.late_skip.s(f"{name}-free")], tasks.gather.s())
        skipped = tasks.late_skip.s(name)
        work = chain(group(skipped, chain(inner, tasks.gather.s()), tasks.late.s(f"{name}-3")), tasks.gather.s())
        result = work.apply_async()
        time.sleep(1)
        outsider.release()
    values = sorted(result.get(timeout=30), key=lambda value: str(type(value)))
    assert is_skipped(values[0])
    assert values[1:] == [1, [1, 1]]
    stage.notes.delete("gathered")


def test_a_killed_member(stage: Stage, name: str) -> None:
    """B15: a child is killed in a chord's header; the member runs again, and the chord completes."""
    result = chord([stage.tasks.late.s(name, 60), stage.tasks.late.s(f"{name}-2")])(stage.tasks.gather.s())
    os.kill(stage.begun(name)["pid"], signal.SIGKILL)
    assert sorted(result.get(timeout=30)) == [1, 2]


def test_replaced(stage: Stage, name: str) -> None:
    """replace() in a locked body: what replaces it runs after the lock is free, and the chord around it completes."""
    result = chord([stage.tasks.replaced.s(name), stage.tasks.late.s(f"{name}-2")])(stage.tasks.gather.s())
    assert sorted(result.get(timeout=20)) == [1, 1]
    assert stage.runs(name) == 1


def test_failed_member(stage: Stage, name: str) -> None:
    """A member that fails fails its chord, waits or not; link_error hears of it."""
    error = stage.tasks.told.s(where=f"error:{name}")
    with stage.outsider(resource(name)) as outsider:
        result = chord([stage.tasks.fails.s(name), stage.tasks.late.s(f"{name}-2")])(
            stage.tasks.gather.s().on_error(error)
        )
        stage.until_waiting(result.parent.results[0].id)
        outsider.release()
    with pytest.raises(Exception, match="the body's own"):
        result.get(timeout=20)
    assert stage.note(f"error:{name}")["error"] == "ChordError"
