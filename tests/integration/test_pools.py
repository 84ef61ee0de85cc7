"""Every pool of Celery: a lease belongs to its own call, though many share a process and one task object."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from celery_singleton_lock import is_skipped

from .stage import Stage, lock_name

POOLS = {"prefork": 4, "threads": 6, "gevent": 6, "solo": 1}


@pytest.fixture(scope="module", params=POOLS)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker of the pool."""
    pool = request.param
    if pool == "gevent":
        pytest.importorskip("gevent")
    with Stage(tmp_path_factory.mktemp(pool)) as stage:
        stage.start_worker(pool=pool, concurrency=POOLS[pool])
        yield stage


@pytest.fixture
def slots(stage: Stage) -> int:
    """How many tasks the worker runs at once."""
    argv = stage.workers[0].argv
    return int(argv[argv.index("--concurrency") + 1])


def test_bodies_side_by_side_have_their_own_leases(stage: Stage, slots: int) -> None:
    """As many bodies as there are slots: each sees its own lease before and after the others have begun."""
    names = [uuid4().hex for _ in range(slots)]
    results = {name: stage.tasks.own_lease.delay(name) for name in names}
    tokens = {name: stage.begun(name)["token"] for name in names}
    assert len(set(tokens.values())) == len(names)
    for name in names:
        lock = stage.lock(f"res:{name}")
        assert lock is not None
        assert lock.startswith(f"h:{tokens[name]}:")
    for name in names:
        stage.go(name)
    for name, result in results.items():
        assert result.get(timeout=15) == [f"res:{name}", tokens[name], f"res:{name}", tokens[name], False]
        assert stage.locks.exists(lock_name(f"res:{name}")) == 0


def test_conflicts(stage: Stage) -> None:
    """A skip, a wait that ends, and a lease that outlives its ttl."""
    name = uuid4().hex
    with stage.outsider(f"res:{name}") as outsider:
        assert is_skipped(stage.tasks.hold_skip.delay(name).get(timeout=15))
        waiting = stage.tasks.hold_retry.delay(name)
        stage.until_waiting(waiting.id, 2)
        outsider.release()
    stage.go(name)
    assert waiting.get(timeout=15) == "held"
    watched = stage.tasks.watch_brief.delay(name, name, 0.8)
    assert watched.get(timeout=15)["lost_at"] is None
