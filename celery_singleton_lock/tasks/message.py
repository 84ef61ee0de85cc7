"""What a task's request says about its message, and how the whole message is sent again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from celery import Signature, Task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import EncodeError
from kombu.serialization import registry

from ..errors import LockKeyError, SingletonLockError
from . import chords, native_delay

#: The header in which a waiting message carries its own state.
HEADER = "singleton_lock"
#: The longest pause, in seconds, before a message that cannot be sent again goes back to the broker.
_PAUSE = 1.0
#: The request whose call has entered its task in this context: a call inside its body finds the same one.
_entered: ContextVar[Any] = ContextVar("singleton_lock_entered", default=None)


@contextmanager
def request_scope(message: Message) -> Iterator[None]:
    """For the block, ``message``'s request counts as entered."""
    mark = _entered.set(message.request)
    try:
        yield
    finally:
        _entered.reset(mark)


@dataclass(frozen=True, slots=True)
class Message:
    """One call of a task, as its request describes it.

    ``in_worker``: it came as a message, so it can be sent again; ``state``: the header of earlier waits.
    """

    request: Any
    in_worker: bool
    task_id: str | None
    retries: int
    parent_id: str | None
    redelivered: bool
    state: Mapping[str, Any]
    idempotency_key: str | None

    @classmethod
    def of(cls, task: Task) -> Message:
        """The call that is entering ``task`` now.

        A request is a worker's once: a call of the task inside its own body finds the same request, entered.
        """
        request = task.request_stack.top
        if request is None or request.called_directly or _is_entered(request):
            return cls(None, False, getattr(request, "id", None), 0, None, False, {}, None)
        return cls.read(request)

    @classmethod
    def read(cls, request: Any) -> Message:
        """What a request that came as a message says."""
        headers = request.headers or {}
        state = headers.get(HEADER) or request.__dict__.get(HEADER)
        return cls(
            request,
            not request.is_eager,
            request.id,
            request.retries or 0,
            request.parent_id,
            bool((request.delivery_info or {}).get("redelivered")),
            state if isinstance(state, Mapping) else {},
            _idempotency_key(headers.get("idempotency_key")),
        )

    @property
    def waits(self) -> int:
        """How often the message was sent again for a lock."""
        waits = self.state.get("waits")
        return waits if isinstance(waits, int) and waits > 0 else 0

    @property
    def waited(self) -> float:
        """Seconds since the first wait, by the wall clock: it passes from machine to machine."""
        since = self.state.get("since")
        now = time.time()
        return max(0.0, now - since) if isinstance(since, (int, float)) and 0 <= since <= now else 0.0

    @property
    def begun(self) -> bool:
        """Whether the message's work may have started before: then it is neither skipped nor failed."""
        return self.retries > 0 or self.redelivered or self.state.get("begun") is True

    def is_counted(self, task: Task) -> bool:
        """Whether a chord has counted this message already."""
        return self.in_chord and chords.is_counted(task, self.request)

    def drop_chord(self) -> None:
        """Keep the chord from counting this message again: the tracer looks here when it has stored the result."""
        self.request.chord = None

    @property
    def in_chord(self) -> bool:
        """Whether a chord is still to count this message."""
        return self.in_worker and bool(self.request.chord)

    def forget_waits(self) -> None:
        """The body begins: a retry of its own starts without waits."""
        if self.state:
            (self.request.headers or {}).pop(HEADER, None)

    def once_more(self, task: Task, countdown: float, *, begun: bool) -> Signature:
        """The same message, to be delivered in ``countdown`` seconds, with one wait more counted."""
        request = self.request
        since = self.state.get("since")
        state = {
            **self.state,
            "v": 1,
            "waits": self.waits + 1,
            "since": since if isinstance(since, (int, float)) else time.time(),
            "begun": begun,
        }
        fields = request.__dict__
        options: dict[str, Any] = {
            "retries": self.retries,
            "countdown": countdown,
            "ignore_result": fields.get("ignore_result", task.ignore_result),
            "add_to_parent": False,
        }
        for name in ("argsrepr", "kwargsrepr", "compression"):
            if fields.get(name) is not None:
                options[name] = fields[name]
        if request.correlation_id not in (None, request.id):
            options["correlation_id"] = request.correlation_id
        properties = fields.get("properties") or {}
        if properties.get("delivery_mode") is not None:
            options["delivery_mode"] = properties["delivery_mode"]
        serializer = registry.type_to_name.get(properties.get("content_type"))
        if serializer is not None:
            options["serializer"] = serializer
        signature = task.signature_from_request(request, **options)
        signature.options["headers"] = {**(signature.options.get("headers") or {}), HEADER: state}
        if native_delay.in_use(task.app):
            native_delay.adapt(task.app, signature.options, countdown)
        return signature

    def publish(self, signature: Signature, task: Task, reason: SingletonLockError, countdown: float) -> None:
        """Send what `once_more` made for a delay of ``countdown`` seconds, because of ``reason``.

        A publish that fails raises: Reject with requeue where the broker still owns the message (acks_late), else
        ``reason``, so that the task fails in sight.
        """
        # Celery would name the running task as the parent of what it sends, but the message is that task itself.
        self.request.called_directly = True
        try:
            signature.apply_async()
        except Exception as error:
            if task.acks_late and not isinstance(error, EncodeError):  # which would not mend itself
                if not isinstance(error, SoftTimeLimitExceeded):
                    # It comes back at once, and would only turn in the queue.
                    time.sleep(min(countdown, _PAUSE))
                raise Reject(f"the message could not be sent again: {error}", requeue=True) from error
            if isinstance(error, SoftTimeLimitExceeded):
                raise
            raise reason from error
        finally:
            self.request.called_directly = False


def _is_entered(request: Any) -> bool:
    """Whether this context is inside the call of ``request``. Celery gives a nested call a shallow copy of it."""
    entered = _entered.get()
    if entered is None:
        return False
    return entered is request or (request.delivery_info is not None and request.delivery_info is entered.delivery_info)


def _idempotency_key(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise LockKeyError("headers.idempotency_key", "give a text that is not empty")
