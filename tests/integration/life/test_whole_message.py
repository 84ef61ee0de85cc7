"""A lock wait sends the whole message again: what the broker delivers the second time is what it delivered first."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest

from celery_singleton_lock.keys.names import key_id

from ...support.rabbitmq import RabbitMQ
from ...support.waiting import eventually
from .life import Life

#: What a second message has of its own: when it is due, how often it has waited, and what the transport counts.
OWN_HEADERS = {"eta", "singleton_lock"}
OWN_PROPERTIES = {"delivery_tag", "expiration", "origin"}
#: Celery puts these options into the properties, too, beside the headers.
REPRESENTATIONS = {"argsrepr", "kwargsrepr"}


@pytest.fixture(scope="module", params=["valkey", "rabbitmq"])
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """A worker on each broker."""
    broker = request.getfixturevalue("rabbitmq").url if request.param == "rabbitmq" else None
    life = Life(tmp_path_factory.mktemp("raw"), "raw", broker)
    life.start_worker(concurrency=4, args=["-Q", "celery,q2"])
    yield life
    life.close()


def _deliveries(life: Life, task_id: str, count: int) -> list[Any]:
    eventually(lambda: life.notes.llen(f"raw:{task_id}") >= count, message=f"{count} deliveries")
    return life.noted(f"raw:{task_id}")[:count]


def _waited(life: Life, key: str, send: Any) -> tuple[Any, Any, str]:
    """The first delivery of what ``send()`` sends, the third (after two waits), and its id."""
    with life.outsider(key):
        task_id = send().id
        first, _, third = _deliveries(life, task_id, 3)
    eventually(lambda: life.notes.llen(f"ran:{key}"), message="the run")
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


def test_every_option(life: Life, key: str) -> None:
    """B31: one message with every option there is waits twice; headers, properties and payload arrive as at first."""
    tasks = life.tasks
    family = {"root_id": str(uuid4()), "parent_id": str(uuid4()), "group_id": str(uuid4()), "group_index": 3}
    options = {
        **OPTIONS,
        **family,
        "link": tasks.after.s(where=f"after:{key}"),
        "link_error": tasks.failed.s(where=f"failed:{key}"),
        "chord": tasks.after.s(where=f"chord:{key}"),
    }
    first, third, task_id = _waited(life, key, lambda: tasks.work.apply_async([key], {"secret": "tok"}, **options))
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
    eventually(lambda: life.notes.llen(f"after:{key}"), message="the link")
    time.sleep(0.3)
    assert life.noted(f"after:{key}") == [key], "the link was called more than once"
    assert life.noted(f"failed:{key}") == []


def test_nothing_is_added(life: Life, key: str) -> None:
    """B31: a message with no option at all arrives with none after its waits."""
    first, third, _ = _waited(life, key, lambda: life.tasks.work.delay(key))
    assert _without(third["headers"], OWN_HEADERS) == _without(first["headers"], OWN_HEADERS)
    own = OWN_PROPERTIES | REPRESENTATIONS
    assert _without(third["properties"], own) == _without(first["properties"], own)
    assert third["payload"] == first["payload"]


def test_giving_up(life: Life, key: str) -> None:
    """B05, B31: at retry_limit link_error sees LockTaken with the key id, the holder and the seconds waited."""
    with life.outsider(key):
        life.tasks.impatient.apply_async([key], link_error=life.tasks.failed.s(where=f"failed:{key}"))
        kind, fields = life.note(f"failed:{key}")
    assert kind == "LockTaken"
    assert (fields["key_id"], fields["holder"]) == (key_id(f"res:{key}"), "an-outsider")
    assert 0.05 < fields["waited"] < 10
    assert life.noted(f"ran:{key}") == []


def _without(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


class TestQuorumQueues:
    """RabbitMQ's quorum queues: the broker itself delays, through topic exchanges and by whole seconds."""

    @pytest.fixture
    def quorum(self, rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
        """A worker of three quorum queues, each behind an exchange of its own."""
        life = Life(tmp_path_factory.mktemp("quorum"), "raw", rabbitmq.url, TEST_QUEUES="quorum")
        life.start_worker(pool="threads", concurrency=4, args=["-Q", "q1,orders,direct"])
        yield life
        life.close()

    @pytest.mark.slow
    def test_it_comes_back_to_its_queue(self, quorum: Life) -> None:
        """B31, B32: waits neither spin, nor lengthen the routing key, nor lead to the default queue."""
        keys = {name: f"{name}-{uuid4().hex}" for name in ("plain", "topic", "direct")}
        work = quorum.tasks.work
        with quorum.outsider(keys["plain"]), quorum.outsider(keys["topic"]), quorum.outsider(keys["direct"]):
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
def test_topic_exchange(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    """B31: a classic queue behind a topic exchange: exchange and routing key stay as they were."""
    life = Life(tmp_path_factory.mktemp("topic"), "raw", rabbitmq.url, TEST_QUEUES="topic")
    try:
        life.start_worker(pool="threads", concurrency=4, args=["-Q", "bills"])
        with life.outsider(key):
            task_id = life.tasks.work.apply_async([key], exchange="office", routing_key="bill.7.paid").id
            _deliveries(life, task_id, 3)
        ran = life.note(f"ran:{key}")
        assert (ran["exchange"], ran["routing_key"]) == ("office", "bill.7.paid")
    finally:
        life.close()


@pytest.mark.slow
def test_waits_stay_below_the_visibility_timeout(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    """B32: visibility timeout 2 s, backoff of 10 s: each wait is a second at most, one message, one run."""
    life = Life(tmp_path_factory.mktemp("visibility"), "raw", TEST_VISIBILITY_TIMEOUT="2")
    try:
        life.start_worker(pool="threads", concurrency=4)
        with life.outsider(key):
            task_id = life.tasks.patient.delay(key).id
            _deliveries(life, task_id, 8)
        life.note(f"ran:{key}")
        time.sleep(2.5)  # for copies
        raw = life.noted(f"raw:{task_id}")
        waits = [each["headers"].get("singleton_lock", {}).get("waits", 0) for each in raw]
        assert waits == list(range(len(raw))), "a copy was delivered"
        delays = re.findall(rf"\[{task_id}\]: sent again in (\d+\.\d+) s", life.workers[0].log())
        assert len(delays) == len(raw) - 1
        assert all(0 < float(delay) <= 1.0 for delay in delays), delays
        assert life.noted(f"ran:{key}") == []
    finally:
        life.close()


def test_a_publish_that_fails(life: Life, key: str) -> None:
    """B50: the broker takes nothing, twice: with acks_late the message stays with it, waits again, and then runs."""
    with life.outsider(key):
        task_id = life.tasks.work.delay(key).id
        life.notes.set(f"refuse:{key}", 2)
        eventually(lambda: life.notes.get(f"refuse:{key}") == "0", message="two refusals")
        time.sleep(0.3)
    eventually(lambda: life.notes.llen(f"ran:{key}"), message="the run")
    time.sleep(0.5)
    assert life.notes.llen(f"ran:{key}") == 1
    assert life.app.AsyncResult(task_id).state == "SUCCESS"


def test_a_publish_that_fails_after_the_acknowledgement(life: Life, key: str) -> None:
    """B50: where the broker has given the message away, the task fails in sight, with LockTaken."""
    with life.outsider(key):
        link = life.tasks.failed.s(where=f"failed:{key}")
        life.notes.set(f"refuse:{key}", 1)
        life.app.send_task(life.tasks.early.name, [key], link_error=link)
        assert life.note(f"failed:{key}")[0] == "LockTaken"
    time.sleep(0.3)
    assert life.noted(f"ran:{key}") == []


@pytest.mark.slow
def test_an_expired_waiter(life: Life, key: str) -> None:
    """B31: a message that expires while it waits is revoked, or dropped by RabbitMQ itself; it does not run."""
    with life.outsider(key):
        result = life.tasks.work.apply_async([key], expires=4)
        end = time.time() + 4
        _deliveries(life, result.id, 2)
        if life.env["TEST_BROKER_URL"].startswith("redis"):
            eventually(lambda: result.state == "REVOKED")
        time.sleep(max(0.0, end + 1 - time.time()))  # a wait is 0.3 s at most: the message is gone
        count = life.notes.llen(f"raw:{result.id}")
        time.sleep(1)
        assert life.notes.llen(f"raw:{result.id}") == count
    assert life.tasks.work.delay(key).get(timeout=30) == key
    assert len(life.noted(f"ran:{key}")) == 1
    assert result.state in ("REVOKED", "RETRY")
