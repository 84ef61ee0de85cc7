"""What many runs come to: nobody counts twice, a killed holder is gone in time, one thread renews, little is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from celery import group

from celery_singleton_lock import LockTaken

from ..support.apps import APPS
from ..support.process import Process
from ..support.waiting import eventually
from ..support.worker import ROOT
from .stage import PREFIX, Stage, lock_name, resource


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A worker of eight threads; tests add others with queues of their own."""
    with Stage(tmp_path_factory.mktemp("many")) as stage:
        stage.start_worker(pool="threads", concurrency=8)
        yield stage


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_killed_holder_is_gone_within_its_ttl(stage: Stage, name: str, pool: str) -> None:
    """B15: SIGKILL for a whole worker: its lock has an end that nothing puts off, within a ttl of 4 s."""

    def left() -> int:
        return int(stage.locks.pttl(lock_name(resource(name))))

    doomed = stage.start_worker(pool=pool, concurrency=1, args=["-Q", "doomed"])
    stage.tasks.hold_longer.apply_async([name], queue="doomed")
    stage.begun(name)
    before = [left()]

    def grows() -> bool:
        before.append(left())
        return before[-1] > before[-2]

    eventually(grows, 10, "a renewal")
    doomed.kill()
    killed = time.monotonic()
    samples = [left()]
    assert 0 < samples[0] <= 4000
    with pytest.raises(LockTaken):
        stage.tasks.hold_longer.delay(name).get(timeout=15)

    def gone() -> bool:
        samples.append(left())
        return samples[-1] == -2

    eventually(gone, 10, "the end of the lock")
    assert time.monotonic() - killed <= samples[0] / 1000 + 2
    assert samples == sorted(samples, reverse=True), "its end was put off after the kill"
    assert -1 not in samples
    result = stage.tasks.hold_longer.delay(name)
    stage.go(name)
    assert result.get(timeout=15) == "held"


@pytest.mark.slow
def test_one_thread_renews_every_lease(stage: Stage) -> None:
    """However many leases a process holds, one thread renews them; when none was held for a while, there is none."""
    names = [uuid4().hex for _ in range(7)]
    results = [stage.tasks.hold_short.delay(name) for name in names]
    for name in names:
        stage.begun(name)
    time.sleep(1.2)  # more than a ttl
    assert stage.tasks.renewal_threads.delay().get(timeout=15) == 1
    assert all(stage.lock(resource(name)) for name in names)
    for name in names:
        stage.go(name)
    assert [result.get(timeout=15) for result in results] == ["held"] * 7
    eventually(lambda: stage.tasks.renewal_threads.delay().get(timeout=15) == 0, message="the thread's end")
    again = stage.tasks.hold_short.delay(names[0])
    stage.begun(names[0])
    assert stage.tasks.renewal_threads.delay().get(timeout=15) == 1
    stage.go(names[0])
    assert again.get(timeout=15) == "held"


def test_little_is_left_on_the_server(stage: Stage) -> None:
    """After 400 runs there are records, fences and one resting key, each of them with an end."""
    (stage.locks.flushdb(), stage.tasks.rests.delay("resting").get(timeout=15))
    results = group(stage.tasks.one_of_many.s(number % 300) for number in range(400))()
    assert results.get(timeout=30) == [number % 300 for number in range(400)]
    assert stage.tasks.rests.delay("resting-2").get(timeout=15) == 0
    kinds: dict[str, list[str]] = {}
    for key in stage.locks.scan_iter(count=1000):
        prefix, _, rest = key.partition(":1:{")
        assert prefix == PREFIX
        kinds.setdefault(rest[4:].partition(":")[0], []).append(key)
        assert stage.locks.pttl(key) > 0 or not stage.locks.exists(key), f"{key} has no end"
    assert len(kinds.pop("fence")) == 302
    assert len(kinds.pop("record")) == 402
    assert all("resting" in key for key in kinds.pop("lock", []))
    index = kinds.popitem()[1] if kinds else []  # the list of what is held: of the resting ones alone
    assert not kinds
    assert {member for key in index for member in stage.locks.zrange(key, 0, -1)} <= {
        "res:resting",
        "res:resting-2",
    }


def test_a_resting_resource(stage: Stage, name: str) -> None:
    """at_least: after a run its resource rests, for others; the task's own next attempt takes it over at once."""
    start = time.monotonic()
    assert stage.tasks.rests.delay(name, 3).get(timeout=15) == 2
    assert time.monotonic() - start < 3
    assert stage.lock(resource(name)) is not None
    assert 0 < stage.locks.pttl(lock_name(resource(name))) <= 3000
    with pytest.raises(LockTaken):
        stage.tasks.hold_raise.delay(name).get(timeout=15)
    eventually(lambda: stage.lock(resource(name)) is None, message="the end of the rest")


@pytest.mark.slow
def test_eight_processes_count_exactly(stage: Stage, name: str) -> None:
    """8 processes x 200 direct calls that read, sleep and write a counter nobody guards: exactly 1600."""
    command = [sys.executable, "-m", f"{APPS}.locked", name, "200"]
    env = {**stage.env, "PYTHONPATH": str(ROOT)}
    programs = [
        Process(command, log=stage.directory / f"counter-{number}.log", env=env, cwd=stage.directory)
        for number in range(8)
    ]
    try:
        eventually(lambda: stage.notes.get(f"ready:{name}") == "8", 30)
        stage.go(name, 8)
        eventually(lambda: not any(program.running for program in programs), 100, "the end of the count")
        assert [program.exit_code for program in programs] == [0] * 8, programs[0].log()
    finally:
        for program in programs:
            program.kill()
    assert stage.notes.get(f"counter:{name}") == "1600"
    assert stage.lock(f"counter:{name}") is None


@pytest.mark.slow
@pytest.mark.parametrize(("task", "steps"), [("count_waiting", 200), ("count_retrying", 60)])
def test_eight_children_count_exactly(stage: Stage, name: str, task: str, steps: int) -> None:
    """The same by messages to a prefork worker of eight children, which wait in their slots or are sent again."""
    queue = f"count-{task}"
    stage.start_worker(pool="prefork", concurrency=8, args=["-Q", queue])
    results = [getattr(stage.tasks, task).apply_async([name], queue=queue) for _ in range(steps)]
    eventually(lambda: results[-1].ready() and all(result.ready() for result in results), 60)
    assert {result.state for result in results} == {"SUCCESS"}
    assert stage.notes.get(f"counter:{name}") == str(steps)
