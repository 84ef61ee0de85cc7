"""Every delivery of a message is noted as it came from the broker; queues of both kinds, where RabbitMQ has them."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Task
from celery.signals import task_received
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError

from celery_singleton_lock import single_instance

from .kit import make_app, notes

app = make_app("raw")
app.conf.task_queue_max_priority = 10

if os.environ.get("TEST_QUEUES") == "quorum":
    quorum = {"x-queue-type": "quorum"}
    app.conf.task_queue_max_priority = None
    app.conf.task_queues = [
        Queue("q1", Exchange("x1", type="topic"), routing_key="q1", queue_arguments=quorum),
        Queue("orders", Exchange("shop", type="topic"), routing_key="order.#", queue_arguments=quorum),
        Queue("direct", Exchange("direct", type="direct"), routing_key="direct", queue_arguments=quorum),
    ]
    app.conf.task_default_queue = app.conf.task_default_routing_key = "q1"
    app.conf.task_default_exchange = "x1"
    app.conf.task_default_exchange_type = "topic"
elif os.environ.get("TEST_QUEUES") == "topic":
    app.conf.task_queues = [Queue("bills", Exchange("office", type="topic"), routing_key="bill.#"), Queue("celery")]


@task_received.connect(weak=False)
def _note(request: Any = None, **_: Any) -> None:
    message = request.message
    properties = {
        name: value for name, value in message.properties.items() if isinstance(value, (str, int, type(None)))
    }
    args, kwargs, embed = message.payload
    fields = {
        "headers": message.headers,
        "properties": {**properties, "priority": message.properties.get("priority")},
        "delivery_info": message.delivery_info,
        "payload": [args, kwargs, embed],
        "content": [message.content_type, message.content_encoding],
    }
    notes.rpush(f"raw:{request.id}", json.dumps(fields, default=repr))


class Refused(Task):  # type: ignore[misc]
    """The broker takes as many messages less as ``refuse:<key>`` says."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        if args and int(notes.get(f"refuse:{args[0]}") or 0) > 0:
            notes.decr(f"refuse:{args[0]}")
            raise OperationalError("the broker takes nothing")
        return super().apply_async(args, kwargs, **options)


def _body(self: Task, key: str, secret: str = "") -> str:
    notes.rpush(f"ran:{key}", json.dumps(self.request.delivery_info, default=repr))
    return key


@app.task(bind=True, base=Refused, acks_late=True)
@single_instance(key="res:{key}", retry_backoff=0.1, retry_backoff_max=0.3)
def work(self: Task, key: str, secret: str = "") -> str:
    """Waits for its lock."""
    return _body(self, key, secret)


@app.task(bind=True, base=Refused)
@single_instance(key="res:{key}", retry_backoff=0.1, retry_backoff_max=0.3)
def early(self: Task, key: str, secret: str = "") -> str:
    """The same, acknowledged before it runs."""
    return _body(self, key, secret)


@app.task(bind=True, acks_late=True)
@single_instance(key="res:{key}", retry_backoff=10, retry_backoff_max=60)
def patient(self: Task, key: str) -> str:
    """Its waits would be longer than the broker's visibility timeout."""
    return _body(self, key)


@app.task(bind=True)
@single_instance(key="res:{key}", retry_backoff=0.1, retry_backoff_max=0.1, retry_limit=2)
def impatient(self: Task, key: str) -> str:
    """Gives up after two waits."""
    return _body(self, key)


@app.task
def after(value: Any, where: str = "after") -> None:
    """A link."""
    notes.rpush(where, json.dumps(value))


@app.task
def failed(request: Any, exc: Any, traceback: Any, where: str) -> None:
    """A link_error."""
    fields = {name: getattr(exc, name, None) for name in ("key_id", "holder", "waited")}
    notes.rpush(where, json.dumps([type(exc).__name__, fields]))
