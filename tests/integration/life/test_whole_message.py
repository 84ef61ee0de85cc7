"""A lock wait sends the whole message again: what the broker delivers the second time is what it delivered first."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest

from celery_singleton_lock.keys.names import key_id

from ...support.rabbitmq import RabbitMQ
from ...support.waiting import eventually
from ..stage import Stage, resource

#: What a second message has of its own: when it is due, how often it has waited, and what the transport counts.
OWN_HEADERS = {"eta", "singleton_lock"}
OWN_PROPERTIES = {"delivery_tag", "expiration", "origin"}
#: Celery puts these options into the properties, too, beside the headers.
REPRESENTATIONS = {"argsrepr", "kwargsrepr"}


@pytest.fixture(scope="module", params=["valkey", "rabbitmq"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A worker on each broker."""
    broker = request.getfixturevalue("rabbitmq").url if request.param == "rabbitmq" else None
    stage = Stage(tmp_path_factory.mktemp("raw"), "raw", broker_url=broker)
    stage.start_worker(concurrency=4, args=["-Q", "celery,q2"])
    yield stage
    stage.close()


def _deliveries(stage: Stage, task_id: str, count: int) -> list[Any]:
    eventually(lambda: stage.notes.llen(f"raw:{task_id}") >= count, message=f"{count} deliveries")
    return stage.noted(f"raw:{task_id}")[:count]


def _waited(stage: Stage, name: str, send: Any) -> tuple[Any, Any, str]:
    """The first delivery of what ``send()`` sends, the third (after two waits), and its id."""
    with stage.outsider(resource(name)):
        task_id = send().id
        first, _, third = _deliveries(stage, task_id, 3)
    eventually(lambda: stage.notes.llen(f"ran:{name}"), message="the run")
    return first, third, task_id


EXPIRES = datetime.now(timezone.utc) + timedelta(minutes=30)
#: Each option of a message, and what of the delivery it is read from.
OPTIONS: dict[str, Any] = {
    "queue": "q2",
    "priority": 7,
    "expires": EXPIRES,
    "time_limit": 90,
    "soft_time_limit": 80,
    "headers": {"trace": "x", "baggage": {"a": [1]}},
    "stamped_headers": ["stamp"],
    "stamp": "s-1",
    "shadow": "shown.name",
    "argsrepr": "(***)",
    "kwargsrepr": "{***}",
    "reply_to": str(uuid4()),
    "correlation_id": "another-id",
    "compression": "gzip",
    "delivery_mode": 1,
    "ignore_result": True,
    "serializer": "json",
    "retries": 0,
}


def test_every_option(stage: Stage, name: str) -> None:
    """B31: one message with every option there is waits twice; headers, properties and payload arrive as at first."""
    tasks = stage.tasks
    family = {"root_id": str(uuid4()), "parent_id": str(uuid4()), "group_id": str(uuid4()), "group_index": 3}
    options = {
        **OPTIONS,
        **family,
        "link": tasks.after.s(where=f"after:{name}"),
        "link_error": tasks.failed.s(where=f"failed:{name}"),
        "chord": tasks.after.s(where=f"chord:{name}"),
    }
    first, third, task_id = _waited(stage, name, lambda: tasks.work.apply_async([name], {"secret": "tok"}, **options))
    assert _without(third["headers"], OWN_HEADERS) == _without(first["headers"], OWN_HEADERS)
    assert _without(third["properties"], OWN_PROPERTIES) == _without(first["properties"], OWN_PROPERTIES)
    assert third["payload"] == first["payload"]
    assert third["content"] == first["content"]
    assert third["delivery_info"]["routing_key"] == first["delivery_info"]["routing_key"] == "q2"
    headers, properties = first["headers"], first["properties"]
    assert headers["id"] == task_id
    assert headers["timelimit"] == [90, 80]
    assert datetime.fromisoformat(headers["expires"]) == EXPIRES
    assert headers["stamps"] == {"stamp": "s-1"}
    assert (headers["argsrepr"], headers["kwargsrepr"], headers["shadow"]) == ("(***)", "{***}", "shown.name")
    assert headers["ignore_result"] is True
    assert (headers["trace"], headers["baggage"]) == ("x", {"a": [1]})
    assert (headers["root_id"], headers["parent_id"]) == (family["root_id"], family["parent_id"])
    assert (headers["group"], headers["group_index"]) == (family["group_id"], 3)
    assert "gzip" in headers["compression"]
    assert (properties["reply_to"], properties["correlation_id"]) == (OPTIONS["reply_to"], "another-id")
    assert (properties["priority"], properties["delivery_mode"]) == (7, 1)
    embed = first["payload"][2]
    assert embed["chord"]["task"] == embed["callbacks"][0]["task"] == tasks.after.name
    assert embed["errbacks"][0]["task"] == tasks.failed.name
    assert third["headers"]["singleton_lock"]["waits"] == 2
    eventually(lambda: stage.notes.llen(f"after:{name}"), message="the link")
    time.sleep(0.3)
    assert stage.noted(f"after:{name}") == [name], "the link was called more than once"
    assert stage.noted(f"failed:{name}") == []


def test_nothing_is_added(stage: Stage, name: str) -> None:
    """B31: a message with no option at all arrives with none after its waits."""
    first, third, _ = _waited(stage, name, lambda: stage.tasks.work.delay(name))
    assert _without(third["headers"], OWN_HEADERS) == _without(first["headers"], OWN_HEADERS)
    own = OWN_PROPERTIES | REPRESENTATIONS
    assert _without(third["properties"], own) == _without(first["properties"], own)
    assert third["payload"] == first["payload"]


def test_giving_up(stage: Stage, name: str) -> None:
    """B05, B31: at retry_limit link_error sees LockTaken with the name id, the holder and the seconds waited."""
    with stage.outsider(resource(name)):
        stage.tasks.impatient.apply_async([name], link_error=stage.tasks.failed.s(where=f"failed:{name}"))
        kind, fields = stage.note(f"failed:{name}")
    assert kind == "LockTaken"
    assert (fields["key_id"], fields["holder"]) == (key_id(f"res:{name}"), "an-outsider")
    assert 0.05 < fields["waited"] < 10
    assert stage.noted(f"ran:{name}") == []


def _without(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


class TestQuorumQueues:
    """RabbitMQ's quorum queues: the broker itself delays, through topic exchanges and by whole seconds."""

    @pytest.fixture
    def quorum(self, rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
        """A worker of three quorum queues, each behind an exchange of its own."""
        stage = Stage(tmp_path_factory.mktemp("quorum"), "raw", broker_url=rabbitmq.url, env={"TEST_QUEUES": "quorum"})
        stage.start_worker(pool="threads", concurrency=4, args=["-Q", "q1,orders,direct"])
        yield stage
        stage.close()

    @pytest.mark.slow
    def test_it_comes_back_to_its_queue(self, quorum: Stage) -> None:
        """B31, B32: waits neither spin, nor lengthen the routing name, nor lead to the default queue."""
        keys = {name: f"{name}-{uuid4().hex}" for name in ("plain", "topic", "direct")}
        work = quorum.tasks.work
        with ExitStack() as outsiders:
            for one in keys.values():
                outsiders.enter_context(quorum.outsider(resource(one)))
            sent = {
                "plain": work.apply_async([keys["plain"]]).id,
                "topic": work.apply_async([keys["topic"]], exchange="shop", routing_key="order.7.paid").id,
                "direct": work.apply_async([keys["direct"]], queue="direct").id,
            }
            time.sleep(3.2)
        for name, suffix in {"plain": "q1", "topic": "order.7.paid", "direct": "direct"}.items():
            ran = quorum.note(f"ran:{keys[name]}")
            assert ran["routing_key"].endswith(suffix)
            assert len(ran["routing_key"]) <= 56 + len(suffix)
            raw = quorum.noted(f"raw:{sent[name]}")
            if name != "direct":
                assert 3 <= len(raw) <= 6, "a wait is a second at least"
                assert _without(raw[-1]["headers"], {"eta", "singleton_lock", *_deaths(raw[-1])}) == _without(
                    raw[0]["headers"], {"eta", "singleton_lock"}
                )


def _deaths(raw: Any) -> set[str]:
    return {name for name in raw["headers"] if name.startswith(("x-death", "x-first-death", "x-last-death"))}


@pytest.mark.slow
def test_topic_exchange(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """B31: a classic queue behind a topic exchange: exchange and routing name stay as they were."""
    stage = Stage(tmp_path_factory.mktemp("topic"), "raw", broker_url=rabbitmq.url, env={"TEST_QUEUES": "topic"})
    try:
        stage.start_worker(pool="threads", concurrency=4, args=["-Q", "bills"])
        with stage.outsider(resource(name)):
            task_id = stage.tasks.work.apply_async([name], exchange="office", routing_key="bill.7.paid").id
            _deliveries(stage, task_id, 3)
        ran = stage.note(f"ran:{name}")
        assert (ran["exchange"], ran["routing_key"]) == ("office", "bill.7.paid")
    finally:
        stage.close()


@pytest.mark.slow
def test_waits_stay_below_the_visibility_timeout(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """B32: visibility timeout 2 s, backoff of 10 s: each wait is a second at most, one message, one run."""
    stage = Stage(tmp_path_factory.mktemp("visibility"), "raw", env={"TEST_VISIBILITY_TIMEOUT": "2"})
    try:
        stage.start_worker(pool="threads", concurrency=4)
        with stage.outsider(resource(name)):
            task_id = stage.tasks.patient.delay(name).id
            _deliveries(stage, task_id, 8)
        stage.note(f"ran:{name}")
        time.sleep(2.5)  # for copies
        raw = stage.noted(f"raw:{task_id}")
        waits = [each["headers"].get("singleton_lock", {}).get("waits", 0) for each in raw]
        assert waits == list(range(len(raw))), "a copy was delivered"
        delays = re.findall(rf"\[{task_id}\]: sent again in (\d+\.\d+) s", stage.workers[0].log())
        assert len(delays) == len(raw) - 1
        assert all(0 < float(delay) <= 1.0 for delay in delays), delays
        assert stage.noted(f"ran:{name}") == []
    finally:
        stage.close()


def test_a_publish_that_fails(stage: Stage, name: str) -> None:
    """B50: the broker takes nothing, twice: with acks_late the message stays with it, waits again, and then runs."""
    with stage.outsider(resource(name)):
        task_id = stage.tasks.work.delay(name).id
        stage.notes.set(f"refuse:{name}", 2)
        eventually(lambda: stage.notes.get(f"refuse:{name}") == "0", message="two refusals")
        time.sleep(0.3)
    eventually(lambda: stage.notes.llen(f"ran:{name}"), message="the run")
    time.sleep(0.5)
    assert stage.notes.llen(f"ran:{name}") == 1
    assert stage.app.AsyncResult(task_id).state == "SUCCESS"


def test_a_publish_that_fails_after_the_acknowledgement(stage: Stage, name: str) -> None:
    """B50: where the broker has given the message away, the task fails in sight, with LockTaken."""
    with stage.outsider(resource(name)):
        link = stage.tasks.failed.s(where=f"failed:{name}")
        stage.notes.set(f"refuse:{name}", 1)
        stage.app.send_task(stage.tasks.early.name, [name], link_error=link)
        assert stage.note(f"failed:{name}")[0] == "LockTaken"
    time.sleep(0.3)
    assert stage.noted(f"ran:{name}") == []


@pytest.mark.slow
def test_an_expired_waiter(stage: Stage, name: str) -> None:
    """B31: a message that expires while it waits is revoked, or dropped by RabbitMQ itself; it does not run."""
    with stage.outsider(resource(name)):
        result = stage.tasks.work.apply_async([name], expires=4)
        end = time.time() + 4
        _deliveries(stage, result.id, 2)
        if stage.env["TEST_BROKER_URL"].startswith("redis"):
            eventually(lambda: result.state == "REVOKED")
        time.sleep(max(0.0, end + 1 - time.time()))  # a wait is 0.3 s at most: the message is gone
        count = stage.notes.llen(f"raw:{result.id}")
        time.sleep(1)
        assert stage.notes.llen(f"raw:{result.id}") == count
    assert stage.tasks.work.delay(name).get(timeout=30) == name
    assert len(stage.noted(f"ran:{name}")) == 1
    assert result.state in ("REVOKED", "RETRY")
