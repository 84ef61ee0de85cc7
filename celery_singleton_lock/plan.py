"""What one task's options come to on its app: checked when the task is bound, used by each run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, Task
from celery.app.annotations import resolve_all
from celery.app.base import pydantic_wrapper

from . import keys, records
from .errors import LockConfigError
from .message import Message
from .options import FOREIGN, NAMES, LockOptions, check_contradictions, check_options, combine
from .protocol import Recorded, Store, Write
from .settings import LockSettings, settings_of

ATTRIBUTE = "lock_"
#: An attribute of the classes on which every name that begins with ``lock_`` is an option.
RESERVES = "_singleton_lock_reserves_prefix"
#: The attributes that ask for a lock.
ASKS = {ATTRIBUTE + name for name in NAMES}
#: celery-singleton's own attribute.
_MISNAMED = {ATTRIBUTE + "expiry"}
_DAY = 24 * 3600.0
_LEAST_DELIVERY_TTL = 2 * 3600.0
#: Above every attempt: the rank of a record that answers all of them.
ALL_ATTEMPTS = 2**31


def attribute_options(namespace: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The checked ``lock_*`` options of a class body or of annotations. Raises `LockConfigError`."""
    given = {name[len(ATTRIBUTE) :]: value for name, value in namespace.items() if name.startswith(ATTRIBUTE)}
    for name in _MISNAMED & namespace.keys():
        short = name[len(ATTRIBUTE) :]
        warnings.warn(f"{where}: {name} has no effect; set {ATTRIBUTE}{FOREIGN[short]}", stacklevel=4)
        del given[short]
    try:
        return check_options(given, spelt=lambda name: ATTRIBUTE + name)
    except LockConfigError as error:
        raise LockConfigError(f"{where}: {error}") from None


@dataclass(frozen=True, slots=True)
class Work:
    """What one call is about. ``key``: the resource. ``record_id``: what its record is kept under, or None.

    ``rank``: the attempt that a record must not be older than; None where no record is kept. ``fingerprint``: of the
    payload, where another payload under the same record is a mistake.
    """

    key: str
    record_id: str | None = None
    rank: int | None = None
    fingerprint: str | None = None


class Plan:
    """One task on one app. Raises `LockConfigError` when its options are wrong."""

    def __init__(
        self, task: type[Task], app: Celery, decorator: Mapping[str, Any], settings: LockSettings | None = None
    ) -> None:
        self.name: str = task.name
        self.settings = settings or settings_of(app)
        attributes: dict[str, Any] = {}
        reserved = getattr(task, RESERVES, False)
        for base in reversed(task.__mro__):
            namespace: Mapping[str, Any] = vars(base)
            if not reserved:  # a stranger's class may have an attribute of its own that begins with lock_
                namespace = {name: namespace[name] for name in (ASKS | _MISNAMED) & namespace.keys()}
            attributes.update(attribute_options(namespace, f"task {self.name}"))
        annotated: dict[str, Any] = {}
        for layer in resolve_all(app.annotations, task):
            annotated.update(attribute_options(layer, f"task_annotations of {self.name}"))
        # An annotation was set as an attribute of the class, too: there it is the same value again.
        try:
            self.options: LockOptions = combine(annotated, decorator, attributes, self.settings.options)
            check_contradictions({**attributes, **decorator, **annotated}, self.options)
            check_is_plain(inspect.getattr_static(task, "run"))
            self.signature = _signature(task)
            self.key = keys.compile_key(self.options.key)
            if self.options.key is not None or self.options.idempotency_key in (None, False):
                self.key.check(self.signature)  # else the resource comes from the idempotency key
            idempotency = self.options.idempotency_key
            self.idempotency = None
            if idempotency is not None and idempotency is not False:
                self.idempotency = keys.compile_key(idempotency, option="idempotency_key")
                self.idempotency.check(self.signature)
        except LockConfigError as error:
            text = str(error)
            raise LockConfigError(text if text.startswith("task") else f"task {self.name}: {text}") from None
        self._validation = _validation(task)
        self.defaults = keys.defaults(self.signature)
        self._bind = keys.binder(self.signature)
        visibility = self.settings.visibility_timeout
        self.redelivers = bool(task.acks_late) or visibility is not None
        #: The longest delay, in seconds, of a message that is sent again: while it waits in a worker it is not
        #: acknowledged, and at the visibility timeout the broker would deliver it twice.
        self.longest = float("inf") if visibility is None else visibility / 2
        self.delivery_ttl = max(2 * (visibility or 0.0), _LEAST_DELIVERY_TTL)

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
        return keys.validated(bound, models, **options)

    def work(self, arguments: Mapping[str, Any], message: Message) -> Work:
        """The resource and the record that a call is about. Raises `LockKeyError`."""
        text = message.idempotency_key
        if self.idempotency is not None and (text is None or self.options.key is None):
            own = self.idempotency.build(self.name, arguments)
            text = own if text is None else text
            if self.options.key is None:
                key = keys.scoped(self.name, own)
            else:
                key = self.key.build(self.name, arguments)
        else:
            key = self.key.build(self.name, arguments)
        if text is not None:
            fingerprint = records.fingerprint(arguments, self.defaults)
            return Work(key, keys.record_id(self.name, f"key:{text}"), message.retries, fingerprint)
        if self.options.idempotency_key is False or not message.in_worker or message.task_id is None:
            return Work(key)
        record_id = keys.record_id(self.name, f"delivery:{message.task_id}")
        return Work(key, record_id, message.retries if self.redelivers else None)

    def write(self, work: Work, record: records.Record) -> Write | None:
        """What to ask the store to keep; None where no record is kept.

        A delivery's record answers its own attempt and earlier ones, as does the mark that a retry was sent; an
        idempotency key's answers every attempt of every message.
        """
        if work.record_id is None or work.rank is None:
            return None
        if record.state == "retried":
            return Write(work.record_id, work.rank, records.encode(record), self.delivery_ttl)
        rank = work.rank if work.fingerprint is None else ALL_ATTEMPTS
        return Write(work.record_id, rank, records.encode(record), self._record_ttl(work))

    def age(self, work: Work, answer: Recorded) -> float:
        """How long ago, in seconds, the record was written that the store has answered with."""
        age = self._record_ttl(work) - answer.ttl
        return age if age >= 0 else float("inf")  # written when the option was longer: it is of an older deployment

    def _record_ttl(self, work: Work) -> float:
        if self.options.idempotency_ttl is not None:
            return self.options.idempotency_ttl
        return self.delivery_ttl if work.fingerprint is None else _DAY


def check_is_plain(fun: Any) -> None:
    """Refuse an async function, which Celery does not run. Raises `LockConfigError`."""
    if inspect.iscoroutinefunction(getattr(fun, "__func__", fun)):
        raise LockConfigError(
            f"{fun.__qualname__} is async, which Celery does not run: its lock would be freed before its body begins; "
            "make it a plain function"
        )


def _signature(task: type[Task]) -> inspect.Signature:
    """The signature of a task's body without its ``self``: the original one, below whatever wraps it."""
    run = inspect.getattr_static(task, "run")
    if isinstance(run, (staticmethod, classmethod)):
        return inspect.signature(run.__func__)
    signature = inspect.signature(run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _validation(task: type[Task]) -> tuple[dict[str, type], dict[str, Any]] | None:
    """The models that Celery validates a ``pydantic=True`` task's arguments with, and how; None for other tasks.

    Celery keeps this in the closure of its wrapper around ``run``, and nowhere else in 5.6.
    """
    run: Any = inspect.getattr_static(task, "run")
    while run is not None:
        code = getattr(run, "__code__", None)
        if code is not None and code in pydantic_wrapper.__code__.co_consts:
            closure = {**inspect.getclosurevars(run).nonlocals}
            for inner in list(closure.values()):  # since 5.7 a function of its own validates
                if inspect.isfunction(inner) and inner.__code__ in pydantic_wrapper.__code__.co_consts:
                    closure.update(inspect.getclosurevars(inner).nonlocals)
            options = {"strict": closure.get("strict", False), "context": closure.get("context")}
            return keys.models(closure["task_fun"]), options
        run = getattr(run, "__wrapped__", None) or getattr(run, "__func__", None)
    return None


def is_locked(task: type[Task]) -> bool:
    """Whether a task class asks for a lock. Celery's own tasks do not, even where an app's base class does."""
    return hasattr(task, "singleton_lock_plan") and task.__module__ != "celery.app.builtins"


_plans: WeakKeyDictionary[type[Task], Plan] = WeakKeyDictionary()


def plan_of(task: type[Task], decorator: Mapping[str, Any]) -> Plan:
    """The plan of a bound task class, made at its first run or a worker's start. Raises `LockConfigError`."""
    plan = _plans.get(task)
    if plan is None:
        plan = _plans[task] = Plan(task, task._get_app(), decorator)
    return plan


def forget_plan(task: type[Task]) -> None:
    """The class is bound anew: its next run makes a plan for the app that it has now."""
    _plans.pop(task, None)
