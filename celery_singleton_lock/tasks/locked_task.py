"""What one task's options come to on its app: checked when the task is bound, used by each call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, Task
from celery.app.annotations import resolve_all
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.dispatch import Signal

from ..errors import LockConfigError, LockKeyError
from ..keys import names
from ..keys.binding import binder, defaults, fingerprint, validated
from ..keys.spec import compile_key
from ..locks.protocol import Store
from ..locks.records import CallIdentity, RecordPolicy
from .function import check_is_plain, signature_of, validation_of
from .message import Message
from .options import READ_ATTRIBUTES, RESERVES_PREFIX, LockOptions, attribute_options, check_contradictions, combine
from .settings import LockSettings, settings_of

_LEAST_DELIVERY_TTL = 2 * 3600.0


class LockedTask:
    """One task on one app. Raises `LockConfigError` when its options are wrong."""

    def __init__(
        self, task: type[Task], app: Celery, decorator: Mapping[str, Any], settings: LockSettings | None = None
    ) -> None:
        self.name: str = task.name
        self.settings = settings or settings_of(app)
        namespaces: list[Mapping[str, Any]] = [vars(base) for base in reversed(task.__mro__)]
        if not getattr(task, RESERVES_PREFIX, False):
            # A stranger's class may have an attribute of its own that begins with lock_.
            namespaces = [{name: each[name] for name in READ_ATTRIBUTES & each.keys()} for each in namespaces]
        attributes: dict[str, Any] = {}
        for namespace in namespaces:
            attributes.update(attribute_options(namespace, f"task {self.name}"))
        annotated: dict[str, Any] = {}
        for layer in resolve_all(app.annotations, task):
            annotated.update(attribute_options(layer, f"task_annotations of {self.name}"))
        # An annotation was set as an attribute of the class, too: there it is the same value again.
        try:
            self.options: LockOptions = combine(annotated, decorator, attributes, self.settings.options)
            check_contradictions({**attributes, **decorator, **annotated}, self.options)
            check_is_plain(inspect.getattr_static(task, "run"))
            self.signature = signature_of(task)
            self.key = compile_key(self.options.key, self.name)
            if self.options.key is not None or self.options.idempotency_key in (None, False):
                self.key.check(self.signature)  # else the resource comes from the idempotency key
            idempotency = self.options.idempotency_key
            self.idempotency = None
            if idempotency is not None and idempotency is not False:
                self.idempotency = compile_key(idempotency, self.name, option="idempotency_key")
                self.idempotency.check(self.signature)
        except LockConfigError as error:
            text = str(error)
            raise LockConfigError(text if text.startswith("task") else f"task {self.name}: {text}") from None
        self._validation = validation_of(task)
        self._defaults = defaults(self.signature)
        self._bind = binder(self.signature)
        visibility = self.settings.visibility_timeout
        self._redelivers = bool(task.acks_late) or visibility is not None
        #: The longest delay, in seconds, of a message that is sent again: while it waits in a worker it is not
        #: acknowledged, and at the visibility timeout the broker would deliver it twice.
        self.max_delay = float("inf") if visibility is None else visibility / 2
        self.records = RecordPolicy(
            ttl=self.options.idempotency_ttl,
            delivery_ttl=max(2 * (visibility or 0.0), _LEAST_DELIVERY_TTL),
            max_bytes=self.options.idempotency_max_bytes,
            dumps=self.settings.dump_result,
            loads=self.settings.load_result,
        )

    @cached_property
    def store(self) -> Store:
        """The app's lock store. Raises `LockConfigError`."""
        return self.settings.store

    def arguments(self, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's arguments by name, defaults applied, models made where the task asks for them."""
        try:
            bound = self._bind(args, kwargs)
        except TypeError:
            header = getattr(task, "__header__", None)
            if header is not None:
                header(*args, **kwargs)  # raises Celery's own TypeError, with its wording
            raise
        if self._validation is None:
            return bound
        models, options = self._validation
        return validated(bound, models, **options)

    def identify(self, arguments: Mapping[str, Any], message: Message) -> CallIdentity:
        """The resource and the record that a call is about. Raises `LockKeyError`."""
        text = message.idempotency_key
        key: str | None = None
        if self.idempotency is not None and (text is None or self.options.key is None):
            own = self.idempotency.build(arguments)
            text = own if text is None else text
            if self.options.key is None:
                key = names.scoped(self.name, own)
        if key is None:
            key = self.key.build(arguments)
        if text is not None:
            payload = fingerprint(arguments, self._defaults)
            return CallIdentity(key, names.record_id(self.name, f"key:{text}"), message.retries, payload)
        if self.options.idempotency_key is False or not message.in_worker or message.task_id is None:
            return CallIdentity(key)
        record_id = names.record_id(self.name, f"delivery:{message.task_id}")
        return CallIdentity(key, record_id, message.retries if self._redelivers else None)


class Call:
    """One call of a locked task. It lives in the call: a task object is shared by threads and greenlets.

    ``locked``: the task's side of it; ``message``: how it came; ``identity``: what it is about; ``body``: what the lock
    is for, without arguments.
    """

    __slots__ = ("body", "identity", "locked", "message", "options", "task")

    def __init__(
        self, task: Task, locked: LockedTask, message: Message, identity: CallIdentity, body: Callable[[], Any]
    ) -> None:
        self.task = task
        self.locked = locked
        self.options = locked.options
        self.message = message
        self.identity = identity
        self.body = body

    @classmethod
    def of(cls, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any], body: Callable[..., Any]) -> Call:
        """The call of ``body`` with these arguments that is entering ``task`` now. Raises `LockKeyError`."""
        locked: LockedTask = type(task).singleton_lock_task()
        message = Message.of(task)
        try:
            identity = locked.identify(locked.arguments(task, args, kwargs), message)
        except LockKeyError as error:
            # A time limit that struck in a user's key function is no key's fault.
            if isinstance(error.__context__, SoftTimeLimitExceeded):
                raise error.__context__ from None
            raise
        return cls(task, locked, message, identity, functools.partial(body, *args, **kwargs))

    @property
    def key_id(self) -> str:
        """16 hex digits that name the resource in logs, signals and errors."""
        return names.key_id(self.identity.key)

    def send(self, signal: Signal, **fields: Any) -> None:
        """Send ``signal`` of this call, if anybody listens."""
        if signal.receivers:
            signal.send(sender=self.task, task_id=self.message.task_id, key_id=self.key_id, **fields)

    def __str__(self) -> str:
        return f"task {self.task.name}[{self.message.task_id or 'called directly'}]"


def is_locked(task: type[Task]) -> bool:
    """Whether a task class asks for a lock. Celery's own tasks do not, even where an app's base class does."""
    return hasattr(task, "singleton_lock_task") and task.__module__ != "celery.app.builtins"


def decorator_options(task: type[Task]) -> Mapping[str, Any]:
    """What the decorators of a task class and of its bases say."""
    options: Mapping[str, Any] = getattr(task, "_singleton_lock_decorator", {})
    return options


_locked_tasks: WeakKeyDictionary[type[Task], LockedTask] = WeakKeyDictionary()


def locked_task_of(task: type[Task]) -> LockedTask:
    """The locked task of a bound task class, made at its first run or a worker's start. Raises `LockConfigError`."""
    found = _locked_tasks.get(task)
    if found is None:
        found = _locked_tasks[task] = LockedTask(task, task.app, decorator_options(task))
    return found


def forget_locked_task(task: type[Task]) -> None:
    """The class is bound anew: its next run makes one for the app that it has now."""
    _locked_tasks.pop(task, None)
