"""A lock wait sends the whole message again: what a body sees of it is what it would have seen without a wait."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import chain, chord

from ..support.waiting import eventually
from .stage import Stage

#: What two messages never have in common.
OWN = {"id", "root_id", "correlation_id", "eta"}
OWN_PROPERTIES = {"correlation_id", "delivery_tag", "expiration", "origin"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker of two queues."""
    with Stage(tmp_path_factory.mktemp("message")) as stage:
        stage.start_worker(pool="threads", concurrency=12, args=["-Q", "celery,q2"])
        yield stage


def _request(stage: Stage, name: str, *, waits: int, send: Any) -> dict[str, Any]:
    """The request that a body sees after so many waits."""
    resource = f"res:{name}"
    if not waits:
        send()
        return dict(stage.note(f"request:{name}"))
    with stage.outsider(resource) as outsider:
        result = send()
        stage.until_waiting(result.id, waits)
        outsider.release()
    return dict(stage.note(f"request:{name}"))


def _common(request: dict[str, Any]) -> dict[str, Any]:
    """What should be equal in two messages that were sent in the same way."""
    properties = {name: value for name, value in request["properties"].items() if name not in OWN_PROPERTIES}
    return {name: value for name, value in request.items() if name not in OWN} | {"properties": properties}


def test_a_wait_keeps_the_whole_message(stage: Stage, name: str) -> None:
    """B31: id, arguments, queue, priority, expiry, limits, headers, stamps, links and the like are kept."""
    expires = datetime.now(timezone.utc) + timedelta(minutes=10)

    def send() -> Any:
        return stage.tasks.dump.apply_async(
            [name],
            {"secret": "tok_abc"},
            queue="q2",
            priority=7,
            expires=expires,
            time_limit=90,
            soft_time_limit=80,
            headers={"trace": "x", "baggage": {"a": [1]}},
            stamped_headers=["stamp"],
            stamp="s-1",
            shadow="shown.name",
            argsrepr="(***)",
            kwargsrepr="{***}",
            link=stage.tasks.noted.s(where=f"link:{name}"),
            reply_to=stage.app.thread_oid,
        )

    free = _request(stage, name, waits=0, send=send)
    free_link = stage.note(f"link:{name}")
    waited = _request(stage, name, waits=3, send=send)
    assert stage.note(f"link:{name}") == free_link == {"value": name}
    ours = waited.pop("singleton_lock")
    assert _common(waited) == _common(free)
    for request in (free, waited):
        assert request["root_id"] == request["correlation_id"] == request["id"]
        assert request["parent_id"] is None
        assert request["retries"] == 0
        assert request["delivery_info"]["routing_key"] == "q2"
        assert request["delivery_info"]["priority"] == 7
        assert (request["argsrepr"], request["kwargsrepr"]) == ("(***)", "{***}")
        assert request["shadow"] == "shown.name"
        assert request["reply_to"] == stage.app.thread_oid
        assert request["timelimit"] == [90, 80]
        assert request["stamps"] == {"stamp": "s-1"}
        assert datetime.fromisoformat(request["expires"]) == expires
        assert request["headers"] == {"trace": "x", "baggage": {"a": [1]}}
    assert (ours["v"], ours["waits"], ours["begun"]) == (1, 3, False)
    assert 0 < time.time() - ours["since"] < 10
    time.sleep(0.3)
    assert stage.noted(f"link:{name}") == [], "the link was called again"


def test_a_wait_keeps_serializer_and_compression(stage: Stage, name: str) -> None:
    """B31: a message that JSON could not carry waits as any other, in its own serializer and compression."""

    def send() -> Any:
        return stage.tasks.dump.apply_async([name], {"secret": {1, 2}}, serializer="pickle", compression="gzip")

    free = _request(stage, name, waits=0, send=send)
    waited = _request(stage, name, waits=2, send=send)
    assert waited["kwargs"] == free["kwargs"] == {"secret": "{1, 2}"}
    assert waited["properties"] == {**waited["properties"], "body_encoding": "base64"}


def test_a_late_message_does_not_spin(stage: Stage, name: str) -> None:
    """B31: acknowledged late, such a message waits with a backoff; it does not turn in its queue."""
    (worker,) = stage.workers
    with stage.outsider(f"res:{name}"):
        result = stage.tasks.late_any.apply_async([name, {1, 2}], serializer="pickle")
        time.sleep(1)
    taken = [line for line in worker.log().splitlines() if result.id in line and line.endswith("received")]
    assert len(taken) <= 20  # the backoff is at least 0.05 s
    assert result.get(timeout=15) == "set"


def test_an_unknown_field_of_the_state_is_kept(stage: Stage, name: str) -> None:
    """A newer release may add to the header: what this one does not know goes along."""

    def send() -> Any:
        state = {"v": 1, "waits": 4, "since": time.time() - 5, "begun": False, "later": {"x": 1}}
        return stage.tasks.dump.apply_async([name], headers={"singleton_lock": state})

    ours = _request(stage, name, waits=2, send=send)["singleton_lock"]
    assert ours["later"] == {"x": 1}
    assert ours["waits"] == 6
    assert time.time() - ours["since"] > 5


def test_a_waiter_that_expires_is_revoked(stage: Stage, name: str) -> None:
    """B31: a message whose expiry passes during its waits ends as Celery ends it, and its body never runs."""
    with stage.outsider(f"res:{name}"):
        result = stage.tasks.dump.apply_async([name], expires=0.5)
        stage.until_waiting(result.id)
        eventually(lambda: result.state == "REVOKED")
    time.sleep(0.3)
    assert stage.noted(f"request:{name}") == []


def test_ignored_results_stay_ignored(stage: Stage, name: str) -> None:
    """A message sent with ignore_result=True stores no result after a wait either."""
    request = _request(stage, name, waits=2, send=lambda: stage.tasks.dump.apply_async([name], ignore_result=True))
    assert request["ignore_result"] is True
    time.sleep(0.2)
    kept = [json.loads(stage.results.get(key)) for key in stage.results.keys(f"*{request['id']}*")]
    assert {meta["status"] for meta in kept} <= {"STARTED", "RETRY"}  # Celery 5.6 stores these for any task


def test_family_ids_in_a_chain(stage: Stage, name: str) -> None:
    """A waiting step keeps its parent, its root and its group, and the steps behind it."""
    resource = f"res:{name}"
    with stage.outsider(resource) as outsider:
        work = chain(stage.tasks.echo.si(1), stage.tasks.dump.si(name), stage.tasks.echo.s())
        result = work.apply_async()
        step, first = result.parent, result.parent.parent
        stage.until_waiting(step.id, 2)
        outsider.release()
    request = stage.note(f"request:{name}")
    assert (request["id"], request["parent_id"], request["root_id"]) == (step.id, first.id, first.id)
    assert result.get(timeout=15) == name
    assert {child.id for child in first.children or ()} == {step.id}


def test_family_ids_in_a_chord(stage: Stage, name: str) -> None:
    """A waiting member of a chord keeps its group and its place in it."""
    with stage.outsider(f"res:{name}") as outsider:
        result = chord([stage.tasks.dump.s(name), stage.tasks.echo.s("two")])(stage.tasks.collect.s())
        member = result.parent.results[0]
        stage.until_waiting(member.id, 2)
        outsider.release()
    request = stage.note(f"request:{name}")
    assert request["group"] == result.parent.id
    assert request["group_index"] == 0
    assert result.get(timeout=15) == [name, "two"]


def test_a_child_keeps_its_parent(stage: Stage, name: str) -> None:
    """What a task sends is its child before a wait and after it, and is listed once among the parent's children."""
    with stage.outsider(f"res:{name}") as outsider:
        parent = stage.tasks.sends_dump.delay(name)
        child = parent.get(timeout=15)
        stage.until_waiting(child, 2)
        outsider.release()
    request = stage.note(f"request:{name}")
    assert (request["id"], request["parent_id"], request["root_id"]) == (child, parent.id, parent.id)
    assert [each.id for each in parent.children or ()] == [child]
