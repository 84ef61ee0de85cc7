"""Celery's own worker request, run here and now: messages through a broker in memory, without a worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery import Celery, _state
from celery.concurrency.solo import TaskPool
from celery.worker.request import Request
from kombu.connection import Connection
from kombu.message import Message
from kombu.simple import SimpleQueue

from celery_singleton_lock import SingleInstanceTask, single_instance


@dataclass
class Delivery:
    """What became of one message. ``result``: the stored one, or the exception; ``state``: the stored one."""

    task_id: str
    state: str
    result: Any
    acknowledged: bool
    requeued: bool
    rejected: bool


class InlineWorker:
    """Takes messages of an app's default queue and runs each as a worker's child would; a countdown is not waited."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def take(self) -> Message:
        """The next message; there must be one."""
        with self.app.connection() as connection:
            queue = self._queue(connection)
            try:
                message: Message = queue.get_nowait()
            finally:
                queue.close()
            return message

    def waiting(self) -> int:
        """How many messages are in the queue."""
        with self.app.connection() as connection:
            queue = self._queue(connection)
            try:
                return int(queue.qsize())
            finally:
                queue.close()

    def run(self, message: Message | None = None, *, redelivered: bool = False) -> Delivery:
        """Run ``message``, or the next one."""
        message = message or self.take()
        message.delivery_info["redelivered"] = redelivered
        settled: list[str] = []
        request = Request(
            message,
            app=self.app,
            hostname="worker@here",
            on_ack=lambda *_: settled.append("acknowledged"),
            on_reject=lambda _log, _errors, requeue: settled.append("requeued" if requeue else "rejected"),
        )
        before = _state._tls.current_app
        _state._tls.current_app = self.app
        pool = TaskPool(1)
        pool.start()
        try:
            request.execute_using_pool(pool)
        finally:
            _state._tls.current_app = before
        stored = self.app.AsyncResult(request.id)
        return Delivery(
            request.id,
            stored.state,
            stored.result,
            "acknowledged" in settled,
            "requeued" in settled,
            "rejected" in settled,
        )

    def _queue(self, connection: Connection) -> SimpleQueue:
        return SimpleQueue(connection, self.app.amqp.queues[self.app.conf.task_default_queue])


def charge_of(
    app: Celery, body: Any = "done", ran: list[Any] | None = None, celery: dict[str, Any] | None = None, **lock: Any
) -> Any:
    """A task, locked by its order. It notes its runs in ``ran`` and returns ``body``, or what that returns.

    ``celery``: Celery's own options; ``lock``: the decorator's.
    """

    @app.task(name="shop.charge", lazy=False, **(celery or {}))
    @single_instance(**{"key": "order:{order_id}", **lock})
    def charge(order_id: int) -> Any:
        if ran is not None:
            ran.append(order_id)
        return body() if callable(body) else body

    return charge


def make_charge(app: Celery, ran: list[Any], **options: Any) -> Any:
    """A task that notes its runs; ``options`` are Celery's, or a lock's with its prefix."""
    options = {"lock_key": "order:{order_id}", "base": SingleInstanceTask, **options}

    @app.task(name="shop.charge", lazy=False, **options)
    def charge(order_id: int, **details: Any) -> int:
        ran.append(order_id)
        return order_id

    return charge
