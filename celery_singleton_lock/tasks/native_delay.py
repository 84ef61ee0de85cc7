"""RabbitMQ's native delayed delivery: how Celery delays a message once one of an app's queues is a quorum queue."""

from __future__ import annotations

import math
import re
from typing import Any

from celery import Celery
from celery.utils.quorum_queues import detect_quorum_queues
from kombu.entity import Exchange, Queue

#: What a delay puts in front of the routing key: its bits.
_DELAY = re.compile(r"^(?:[01]\.){28}")
#: Part of the names of the exchanges that a delayed message passes through.
_DELAYED = "celery_delayed_"
#: What RabbitMQ adds to the headers on the way.
_ADDED = ("x-death", "x-first-death", "x-last-death", "x-delivery-count", "x-acquired-count")


def in_use(app: Celery) -> bool:
    """Whether the broker itself delays a message with a countdown."""
    driver: str = app.producer_pool.connections.connection.transport.driver_type
    return bool(detect_quorum_queues(app, driver)[0])


def adapt(app: Celery, options: dict[str, Any], countdown: float) -> None:
    """Make a message's ``options`` fit to be sent again in ``countdown`` seconds, to where it came from.

    Celery would take the routing key of the default queue, refuse a delay below a second, and let an earlier delay's
    bits stand in the routing key.
    """
    options["countdown"] = math.ceil(countdown)
    headers = options.get("headers") or {}
    options["headers"] = {name: value for name, value in headers.items() if not name.startswith(_ADDED)}
    exchange = options.get("exchange")
    if not exchange:
        return
    key = options["routing_key"] = _DELAY.sub("", options.get("routing_key") or "")
    queues = [queue for queue in app.amqp.queues.values() if queue.exchange is not None]
    if _DELAYED in exchange:
        kind = "topic"  # only such messages are delayed natively; the key says where to
    else:
        kind = next((queue.exchange.type for queue in queues if queue.exchange.name == exchange), "direct")
    # Of this object Celery reads where to and which type, if it delays natively; else it must not be declared.
    options["queue"] = Queue(exchange=Exchange(exchange, type=kind), routing_key=key)
    options["declare"] = []
