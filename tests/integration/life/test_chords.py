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
from .life import Life


@pytest.fixture(scope="module", params=[True, False], ids=["ordered", "unordered"])
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """Two prefork workers; chords that keep the order of their results, and chords that do not."""
    conf = {"result_backend_transport_options": {"result_chord_ordered": request.param}}
    life = Life(tmp_path_factory.mktemp("chords"), TEST_LIFE_CONF=json.dumps(conf))
    life.start_worker(concurrency=3)
    yield life
    life.close()


def _members(life: Life, group_id: str) -> int:
    """How many results the chord's header has so far."""
    with life.server.client(1) as client:
        name = f"celery-taskset-meta-{group_id}.j"
        kind = client.type(name)
        return client.zcard(name) if kind == "zset" else client.llen(name) if kind == "list" else 0


class TestOneCount:
    """A message that is delivered twice."""

    def test_alive(self, life: Life, key: str) -> None:
        """B06: delivered again while the first run lives, its result too large to keep: one count, its own result."""
        result = chord([life.tasks.hold_big.s(key), life.tasks.late.s(f"{key}-2", 30)])(life.tasks.gather.s())
        life.begun(key)
        life.begun(f"{key}-2")
        life.redeliver()
        life.waited(result.parent.results[0].id)
        life.go(key)
        eventually(lambda: _members(life, result.parent.id) == 1)
        time.sleep(1.5)
        assert _members(life, result.parent.id) == 1
        life.go(f"{key}-2")
        values = result.get(timeout=20)
        assert sorted(map(str, values)) == sorted(["1", "x" * 50])
        time.sleep(0.5)
        assert len(life.noted("gathered")) == 1
        life.notes.delete("gathered")

    def test_a_dead_worker_after_the_count(self, life: Life, key: str) -> None:
        """B06: the worker dies after the count and before the acknowledgement: the copy is not counted again."""
        doomed = life.start_worker(pool="solo", args=["-Q", key])
        header = [life.tasks.stays.s(key).set(queue=key), life.tasks.late.s(f"{key}-2", 60)]
        result = chord(header)(life.tasks.gather.s())
        life.begun(key)
        eventually(lambda: _members(life, result.parent.id) == 1)
        life.note(f"stays:{key}")
        doomed.kill()
        life.redeliver()
        life.start_worker(pool="solo", args=["-Q", key])
        life.note(f"lock_replayed:{result.parent.results[0].id}")
        time.sleep(0.5)
        assert _members(life, result.parent.id) == 1
        life.go(f"{key}-2")
        assert len(result.get(timeout=20)) == 2


def test_nested(life: Life, key: str) -> None:
    """B03: waits, skips and replays inside nested chains, groups and chords: they end, each body once."""
    tasks = life.tasks
    with life.outsider(key) as outsider:
        inner = chord([tasks.early.s(key), tasks.late_skip.s(f"{key}-free")], tasks.gather.s())
        skipped = tasks.late_skip.s(key)
        work = chain(group(skipped, chain(inner, tasks.gather.s()), tasks.late.s(f"{key}-3")), tasks.gather.s())
        result = work.apply_async()
        time.sleep(1)
        outsider.release()
    values = sorted(result.get(timeout=30), key=lambda value: str(type(value)))
    assert is_skipped(values[0])
    assert values[1:] == [1, [1, 1]]
    life.notes.delete("gathered")


def test_a_killed_member(life: Life, key: str) -> None:
    """B15: a child is killed in a chord's header; the member runs again, and the chord completes."""
    result = chord([life.tasks.late.s(key, 60), life.tasks.late.s(f"{key}-2")])(life.tasks.gather.s())
    os.kill(life.begun(key)["pid"], signal.SIGKILL)
    assert sorted(result.get(timeout=30)) == [1, 2]


def test_replaced(life: Life, key: str) -> None:
    """replace() in a locked body: what replaces it runs after the lock is free, and the chord around it completes."""
    result = chord([life.tasks.replaced.s(key), life.tasks.late.s(f"{key}-2")])(life.tasks.gather.s())
    assert sorted(result.get(timeout=20)) == [1, 1]
    assert life.runs(key) == 1


def test_failed_member(life: Life, key: str) -> None:
    """A member that fails fails its chord, waits or not; link_error hears of it."""
    error = life.tasks.told.s(where=f"error:{key}")
    with life.outsider(key) as outsider:
        result = chord([life.tasks.fails.s(key), life.tasks.late.s(f"{key}-2")])(life.tasks.gather.s().on_error(error))
        life.waited(result.parent.results[0].id)
        outsider.release()
    with pytest.raises(Exception, match="the body's own"):
        result.get(timeout=20)
    assert life.note(f"error:{key}")["error"] == "ChordError"
