"""Chains, groups and chords around a task that finds its resource taken: they end, on a worker and eagerly alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_singleton_lock import LockTaken

from ..support.waiting import eventually
from .stage import Stage, key_id, resource


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker of many threads."""
    with Stage(tmp_path_factory.mktemp("canvas")) as stage:
        stage.start_worker(pool="threads", concurrency=12)
        yield stage


@pytest.fixture(params=["worker", "eager"])
def place(request: pytest.FixtureRequest, stage: Stage) -> Iterator[str]:
    """Where the tasks run."""
    stage.app.conf.task_always_eager = request.param == "eager"
    stage.app.conf.task_store_eager_result = False
    yield request.param
    stage.app.conf.task_always_eager = False


def marker(name: str) -> dict[str, Any]:
    """What a task is answered with that was skipped for the outsider."""
    return {"singleton_lock": "skipped", "task_id": "an-outsider", "key": key_id(resource(name))}


class TestSkipped:
    """A skip is an answer: SUCCESS with the marker, which whatever follows receives."""

    def test_get(self, stage: Stage, name: str, place: str) -> None:
        """B03 (a): .get() gives the marker; the state is SUCCESS."""
        with stage.outsider(resource(name)):
            result = stage.tasks.hold_skip.delay(name)
            assert result.get(timeout=15) == marker(name)
            assert result.state == "SUCCESS"

    def test_chord(self, stage: Stage, name: str, place: str) -> None:
        """B03 (b): the body of a chord gets the marker among the results of its header."""
        with stage.outsider(resource(name)):
            result = chord([stage.tasks.echo.s("ok"), stage.tasks.hold_skip.s(name)])(stage.tasks.collect.s())
            assert result.get(timeout=15) == ["ok", marker(name)]

    def test_chain(self, stage: Stage, name: str, place: str) -> None:
        """B03 (c): a chain goes on; its next step receives the marker, or runs without it."""
        with stage.outsider(resource(name)):
            result = chain(stage.tasks.hold_skip.si(name), stage.tasks.echo.si("next"))()
            assert result.get(timeout=15) == "next"
            result = chain(stage.tasks.hold_skip.si(name), stage.tasks.echo.s())()
            assert result.get(timeout=15) == marker(name)

    def test_group(self, stage: Stage, name: str, place: str) -> None:
        """B03 (d): a group's results are complete."""
        with stage.outsider(resource(name)):
            result = group(stage.tasks.hold_skip.s(name), stage.tasks.echo.s("ok"), stage.tasks.hold_skip.s(name))()
            assert result.get(timeout=15) == [marker(name), "ok", marker(name)]

    def test_chord_body(self, stage: Stage, name: str, place: str) -> None:
        """B03 (b): a chord whose body is skipped ends with the marker."""
        with stage.outsider(resource(name)):
            result = chord([stage.tasks.echo.s("ok")])(stage.tasks.hold_skip.si(name))
            assert result.get(timeout=15) == marker(name)

    def test_link(self, stage: Stage, name: str, place: str) -> None:
        """B03: a link is called once, with the marker."""
        with stage.outsider(resource(name)):
            result = stage.tasks.hold_skip.apply_async([name], link=stage.tasks.noted.s(where=f"link:{name}"))
            assert result.get(timeout=15) == marker(name)
        assert stage.note(f"link:{name}") == {"value": marker(name)}
        assert stage.noted(f"link:{name}") == []


class TestRefused:
    """A refusal is an error like the body's own."""

    def test_get(self, stage: Stage, name: str, place: str) -> None:
        """B03 (a): .get() raises LockTaken, with its attributes."""
        with stage.outsider(resource(name)), pytest.raises(LockTaken) as caught:
            stage.tasks.hold_raise.delay(name).get(timeout=15)
        assert (caught.value.key_id, caught.value.holder) == (key_id(resource(name)), "an-outsider")

    def test_chord(self, stage: Stage, name: str, place: str) -> None:
        """B03 (b): the chord's body does not run, and its result is an error."""
        with stage.outsider(resource(name)), pytest.raises((ChordError, LockTaken)):
            chord([stage.tasks.echo.s("ok"), stage.tasks.hold_raise.s(name)])(stage.tasks.collect.s()).get(timeout=15)

    def test_chain(self, stage: Stage, name: str, place: str) -> None:
        """B03 (c): the chain's next step does not run, nor is it sent."""
        following = stage.tasks.noted.si("next", where=f"next:{name}").set(task_id=f"next-{name}")
        work = chain(stage.tasks.hold_raise.si(name), following)
        with stage.outsider(resource(name)), pytest.raises(LockTaken):  # the eager one raises from the call itself
            work().parent.get(timeout=15)
        # A worker sends the next step before it stores the result of the one before.
        assert f"next-{name}" not in stage.notes.lrange("published", 0, -1)
        assert stage.noted(f"next:{name}") == []

    def test_group(self, stage: Stage, name: str, place: str) -> None:
        """B03 (d): a group ends; its refused members have failed with LockTaken, the others are done."""
        with stage.outsider(resource(name)):
            result = group(stage.tasks.hold_raise.s(name), stage.tasks.echo.s("ok"), stage.tasks.hold_raise.s(name))()
            first, second, third = result.get(timeout=15, propagate=False)
            with pytest.raises(LockTaken):
                result.get(timeout=15)
        assert [member.state for member in result.results] == ["FAILURE", "SUCCESS", "FAILURE"]
        assert second == "ok"
        for error in (first, third):
            assert isinstance(error, LockTaken)
            assert (error.key_id, error.holder) == (key_id(resource(name)), "an-outsider")


class TestWaited:
    """A lock wait inside a canvas: only a worker can wait."""

    @pytest.fixture
    def released(self, stage: Stage, name: str) -> Any:
        """Frees the resource once a task has waited for it twice, and lets that run."""

        def free(outsider: Any, count: int = 1) -> None:
            eventually(lambda: _waits(stage, name) >= 2 * count, message="the waits")
            outsider.release()
            stage.go(name, count)

        return free

    def test_chord(self, stage: Stage, name: str, released: Any) -> None:
        """B03 (b): a chord completes with a wait in its header and another one in its body."""
        with stage.outsider(resource(name)) as outsider:
            header = [
                stage.tasks.echo.s("ok"),
                stage.tasks.hold_retry.s(name, "one"),
                stage.tasks.hold_retry.s(name, "two"),
            ]
            result = chord(header)(stage.tasks.hold_retry.si(name, "body"))
            released(outsider, 2)
        stage.go(name)
        assert result.get(timeout=15) == "body"
        assert stage.notes.get(f"runs:{name}") == "3"

    def test_chain(self, stage: Stage, name: str, released: Any) -> None:
        """B03 (c): a chain goes on after a wait, with its first step's result; its ids are those of a free chain."""
        with stage.outsider(resource(name)) as outsider:
            result = chain(stage.tasks.echo.si("zero"), stage.tasks.hold_retry.si(name, "one"), stage.tasks.echo.s())()
            released(outsider)
        assert result.get(timeout=15) == "one"
        begun = stage.begun(name)
        assert begun["task_id"] == result.parent.id
        assert begun["parent_id"] == result.parent.parent.id
        assert stage.notes.get(f"runs:{name}") == "1"

    def test_group(self, stage: Stage, name: str, released: Any) -> None:
        """B03 (d): every member of a group waits for its turn, and runs once."""
        with stage.outsider(resource(name)) as outsider:
            result = group(stage.tasks.hold_retry.s(name, number) for number in range(4))()
            released(outsider, 4)
        assert result.get(timeout=15) == [0, 1, 2, 3]
        assert stage.notes.get(f"runs:{name}") == "4"

    def test_eagerly_there_is_no_wait(self, stage: Stage, name: str) -> None:
        """B03 (e): an eager task that would wait raises LockTaken at once, and leaves nothing behind."""
        with stage.outsider(resource(name)):
            result = stage.tasks.hold_retry.apply([name])
            assert result.state == "FAILURE"
            with pytest.raises(LockTaken):
                result.get()
        assert stage.lock(resource(name)) is None


def _waits(stage: Stage, name: str) -> int:
    """How often any task waited for the resource."""
    keys = stage.notes.keys("signal:lock_waiting:*")
    return sum(note["key_id"] == key_id(resource(name)) for key in keys for note in stage.noted(key))
