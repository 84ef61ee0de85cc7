"""RabbitMQ as the broker: waits keep canvases whole, and a killed run's message is not dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from celery import chain, chord

from ..support.rabbitmq import RabbitMQ
from .stage import Stage

pytestmark = pytest.mark.slow

QUEUE = "locked-on-rabbitmq"


@pytest.fixture(scope="module")
def stage(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker."""
    env = {"TEST_DEFAULT_QUEUE": QUEUE}
    with Stage(tmp_path_factory.mktemp("rabbitmq-stage"), broker_url=rabbitmq.url, env=env) as stage:
        stage.start_worker(pool="threads", concurrency=8)
        yield stage


def test_canvases_complete_with_a_wait_in_every_member(stage: Stage, name: str) -> None:
    """B03: a chord whose header waits and then its body, and a chain behind a wait."""
    members = [f"{name}-{number}" for number in range(3)]
    with stage.outsider(f"res:{name}") as last, ExitStack() as outsiders:
        for member in members:
            outsiders.enter_context(stage.outsider(f"res:{member}"))
        result = chord([stage.tasks.dump.s(member) for member in members])(stage.tasks.dump.si(name))
        chained = chain(stage.tasks.dump.si(members[0]), stage.tasks.echo.s())()
        for waiting in (chained.parent, *result.parent.results):
            stage.until_waiting(waiting.id, 2)
        outsiders.close()
        stage.until_waiting(result.id, 2)
        last.release()
        assert result.get(timeout=15) == name
    assert chained.get(timeout=15) == members[0]


def test_a_wait_keeps_the_message(stage: Stage, name: str) -> None:
    """B31: id, headers, priority, limits and links survive a wait."""
    with stage.outsider(f"res:{name}"):
        result = stage.tasks.dump.apply_async(
            [name],
            priority=3,
            headers={"trace": "x"},
            time_limit=90,
            argsrepr="(***)",
            link=stage.tasks.noted.s(where=f"link:{name}"),
        )
        stage.until_waiting(result.id, 3)
    request = stage.note(f"request:{name}")
    assert (request["id"], request["retries"], request["parent_id"]) == (result.id, 0, None)
    assert request["headers"] == {"trace": "x"}
    assert request["timelimit"][0] == 90
    assert request["argsrepr"] == "(***)"
    assert request["delivery_info"]["priority"] == 3
    assert request["delivery_info"]["routing_key"] == QUEUE
    assert stage.note(f"link:{name}") == {"value": name}
    assert result.get(timeout=15) == name


def test_a_killed_workers_message_is_run_again(stage: Stage, name: str) -> None:
    """B15: RabbitMQ delivers a dead worker's message again at once, marked: in skip mode it waits, then runs."""
    doomed = stage.start_worker(pool="solo", args=["-Q", f"doomed-{name}"])
    result = stage.tasks.hold_late.apply_async([name], queue=f"doomed-{name}")
    first = stage.begun(name)
    doomed.kill()
    stage.start_worker(pool="solo", args=["-Q", f"doomed-{name}"])
    second = stage.begun(name)
    assert second["fence"] > first["fence"]
    stage.go(name)
    assert result.get(timeout=15) == "held"
    assert stage.notes.get(f"runs:{name}") == "2"
    assert stage.heard("lock_skipped", result.id) == []
