"""Passwords and arguments stay where they belong: in no log, result, error or key name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from celery_singleton_lock import LockTaken, StoreUnavailable, is_skipped

from ..support.waiting import eventually
from .stage import Stage, key_id

PASSWORD = "s3cret-Pa55"
TOKEN = "tok_abc"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A worker whose servers ask for a password; its locks are on a server of their own."""
    directory = tmp_path_factory.mktemp("secrets")
    with Stage(directory, "secretive", locks_apart=True, password=PASSWORD) as stage:
        stage.start_worker(pool="threads", concurrency=6)
        yield stage


@pytest.fixture
def argument() -> str:
    """A secret that no other test uses."""
    return f"{TOKEN}_{uuid4().hex}"


@pytest.fixture(autouse=True)
def _nothing_leaks(stage: Stage) -> Iterator[None]:
    """After each test: no password and no argument in what can be seen."""
    yield
    time.sleep(0.05)  # the last lines of the log
    seen = {f"log of {worker.log_file.stem}": worker.log() for worker in stage.workers}
    for client, which in ((stage.results, "results"), (stage.locks, "locks")):
        names = client.keys("*")
        seen[f"names of {which}"] = "\n".join(names)
        values = [client.get(name) for name in names if client.type(name) == "string"]
        if which == "results":
            seen["results"] = "\n".join(value or "" for value in values)
        else:
            locks = [name for name in names if ":lock:" in name]
            seen["values of locks"] = "\n".join(client.get(name) or "" for name in locks)
    for where, text in seen.items():
        for secret in (PASSWORD, TOKEN):
            lines = [line for line in text.splitlines() if secret in line]
            assert not lines, f"{secret} in {where}: {lines[:3]}"


def _resource(stage: Stage) -> str:
    """The one resource that is held now, by its name on the server."""
    (name,) = eventually(lambda: [key.split(":lock:")[1] for key in stage.locks.keys("*:lock:*")])
    return str(name)


def _hold(stage: Stage, argument: str) -> Any:
    """A run that holds the argument's resource."""
    result = stage.tasks.held_default.delay(argument)
    stage.begun("secret")
    return result


@pytest.mark.parametrize("mode", ["default", "sequence", "mapping"])
def test_skip(stage: Stage, argument: str, mode: str) -> None:
    """B47: a skip, by the default key or a sequence of arguments, shows the key id and nothing else."""
    task = getattr(stage.tasks, f"skipped_{mode}")
    value = {"password": argument} if mode == "mapping" else argument
    holder = task.delay(value)
    stage.begun("secret")
    resource = _resource(stage)
    result = task.delay(value)
    marker = result.get(timeout=15)
    assert is_skipped(marker)
    assert marker["key"] == key_id(resource)
    assert any(key_id(resource) in line for line in stage.workers[0].log().splitlines() if result.id in line)
    stage.go("secret")
    assert holder.get(timeout=15) == "held"


def test_retry_and_raise(stage: Stage, argument: str) -> None:
    """B47: so do a wait, the LockTaken that ends it, and its text and pickle in the result."""
    holder = _hold(stage, argument)
    waiting = stage.tasks.held_default.delay(argument)
    stage.until_waiting(waiting.id)
    stage.go("secret", 2)
    assert [holder.get(timeout=15), waiting.get(timeout=5)] == ["held", "held"]
    stage.begun("secret")
    for task in (stage.tasks.raised_default, stage.tasks.limited_default):
        holder = task.delay(argument)
        stage.begun("secret")
        with pytest.raises(LockTaken) as caught:
            task.delay(argument).get(timeout=15)
        assert TOKEN not in str(caught.value) + repr(caught.value)
        stage.go("secret")
        assert holder.get(timeout=15) == "held"


def test_lost(stage: Stage, argument: str) -> None:
    """B47: so does the loss of a lease."""
    holder = stage.tasks.skipped_default.delay(argument)
    stage.begun("secret")
    (name,) = stage.locks.keys("*:lock:*")
    stage.locks.delete(name)
    eventually(lambda: stage.heard("lease_lost", holder.id))
    stage.go("secret")
    assert holder.get(timeout=15) == "held"
    assert re.search("WARNING.*LOST", stage.workers[0].log())


def test_replay_and_mismatch(stage: Stage, argument: str) -> None:
    """B47: so do a replay, and an idempotency key that is a secret itself."""
    assert stage.tasks.paid.delay(argument, 1).get(timeout=15) == 1
    assert stage.tasks.paid.delay(argument, 1).get(timeout=15) == 1
    with pytest.raises(Exception, match="other arguments"):
        stage.tasks.paid.delay(argument, 2).get(timeout=15)


def test_key_errors(stage: Stage, argument: str) -> None:
    """B47: so does an argument of which no key can be built, and a call that does not bind."""
    with pytest.raises(Exception, match="order"):
        stage.tasks.templated.delay({"wrong": argument}).get(timeout=15)
    with pytest.raises(Exception, match="order"):
        stage.tasks.templated.delay([argument]).get(timeout=15)
    with pytest.raises(TypeError):
        stage.app.send_task(stage.tasks.templated.name, [], {"other": argument}).get(timeout=15)


def test_connection_errors(stage: Stage, argument: str) -> None:
    """B47: so does a lock server that is gone, and one that is silent."""
    for stop, start in (
        (stage.lock_server.pause, stage.lock_server.resume),
        (stage.lock_server.kill, stage.lock_server.process.start),
    ):
        stop()
        try:
            with pytest.raises(StoreUnavailable) as caught:
                stage.tasks.refused_default.delay(argument).get(timeout=15)
            assert caught.value.denied is False
            assert PASSWORD not in str(caught.value) + repr(caught.value)
        finally:
            start()
    with stage.lock_server.client() as client:
        eventually(lambda: _answers(client))
        client.config_set("requirepass", PASSWORD)


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except Exception:
        return False


def test_a_wrong_password(stage: Stage, argument: str) -> None:
    """B47: so does a server that turns the credentials down; on_unavailable="run" does not run for that."""
    wrong = stage.env["TEST_LOCK_URL"].replace(PASSWORD, f"{PASSWORD}-wrong")
    stage.start_worker(pool="solo", env={"TEST_LOCK_URL": wrong}, args=["-Q", "wrong"])
    with pytest.raises(StoreUnavailable) as caught:
        stage.tasks.refused_default.apply_async([argument], queue="wrong").get(timeout=15)
    assert caught.value.denied is True
    result = stage.tasks.open_default.apply_async([argument], queue="wrong")
    eventually(lambda: isinstance(result.result, StoreUnavailable))
    result.revoke()
    assert stage.notes.llen("begun:secret") == 0


def test_where_the_locks_are_is_said_without_the_password(stage: Stage, argument: str) -> None:
    """B47: a worker that takes the broker's URL says so, redacted."""
    worker = stage.start_worker(pool="solo", env={"TEST_LOCK_URL": ""}, args=["-Q", "unset"])
    result = stage.tasks.refused_default.apply_async([argument], queue="unset")
    stage.begun("secret")
    stage.go("secret")
    assert result.get(timeout=15) == "held"
    (line,) = [line for line in worker.log().splitlines() if "singleton_lock_url is not set" in line]
    assert "broker_url" in line
    assert "***@127.0.0.1" in line
