"""What a task's options come to on its app: five layers, the strongest wins, each checked when the task is bound."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu.utils.imports import symbol_by_name

from celery_singleton_lock import LockConfigError, SingleInstanceTask, single_instance
from celery_singleton_lock.tasks.locked_task import LockedTask
from celery_singleton_lock.tasks.options import LockOptions
from celery_singleton_lock.worker.startup import StartupChecks, locked_tasks

from .conftest import MakeApp


def locked_task_of(task: Any) -> LockedTask:
    """The locked task of a bound task."""
    found: LockedTask = type(task).singleton_lock_task()
    return found


def options_of(task: Any) -> LockOptions:
    """What its options come to."""
    return locked_task_of(task).options


def charge(order_id: int = 0) -> None:
    """A body."""


def test_precedence(make_app: MakeApp) -> None:
    """Annotations beat the decorator, which beats attributes, which beat `app.conf`, which beats the built-in (B25)."""
    layers: dict[str, Any] = {"lock_ttl": 11, "base": SingleInstanceTask}
    conf = {"singleton_lock_ttl": 12}
    annotations = {"task_annotations": {"shop.charge": {"lock_ttl": 9}}}
    bare, decorated = charge, single_instance(ttl=10)(charge)
    ttls = [
        options_of(make_app(**app_conf).task(name="shop.charge", lazy=False, **task)(fun)).ttl
        for app_conf, task, fun in (
            (conf | annotations, layers, decorated),
            (conf, layers, single_instance(ttl=10)(charge)),
            (conf, layers, bare),
            (conf, {"base": SingleInstanceTask}, bare),
            ({}, {"base": SingleInstanceTask}, bare),
        )
    ]
    assert ttls == [9, 10, 11, 12, 30]


def test_layers_are_merged_option_by_option(make_app: MakeApp) -> None:
    """Each option comes from the strongest layer that has it."""
    app = make_app(singleton_lock_retry_limit=5, task_annotations={"*": {"lock_at_least": 2}})
    task = app.task(base=SingleInstanceTask, lock_key="order", lock_ttl=20, lazy=False)(single_instance(ttl=10)(charge))
    options = options_of(task)
    assert (options.key, options.ttl, options.at_least, options.retry_limit) == ("order", 10, 2, 5)


def test_inherited_attributes(app: Celery) -> None:
    """A subclass's attribute beats its base's, in the order that Python looks them up."""

    class Base(SingleInstanceTask):
        abstract = True
        lock_ttl = 10
        lock_at_least = 5

    class Sub(Base):
        abstract = True
        lock_ttl = 20

    options = options_of(app.task(base=Sub, lazy=False)(charge))
    assert (options.ttl, options.at_least) == (20, 5)


def test_class_of_two_bases(app: Celery) -> None:
    """Of two base classes the first has the say."""
    first = type("First", (SingleInstanceTask,), {"abstract": True, "lock_ttl": 10})
    second = type("Second", (SingleInstanceTask,), {"abstract": True, "lock_ttl": 20})
    both = type("Both", (first, second), {"abstract": True})
    assert options_of(app.task(base=both, lazy=False)(charge)).ttl == 10


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"shop.charge": {"lock_tttl": 5}}, "did you mean 'lock_ttl'"),
        ({"shop.charge": {"lock_ttl": "5"}}, "lock_ttl: give seconds"),
        ({"*": {"lock_ttl": 0}}, "lock_ttl: 0 is out of range"),
        ({"shop.charge": {"lock_at_least": 31}}, "at_least: 31 s is longer than ttl"),
        ({"shop.charge": {"lock_key": "order:{nonsense}"}}, "nonsense"),
    ],
    ids=str,
)
def test_annotations_are_checked_when_bound(make_app: MakeApp, annotations: dict[str, Any], words: str) -> None:
    """What comes from annotations is checked when the task is bound, with the task's name in front (B25)."""
    app = make_app(task_annotations=annotations)
    with pytest.raises(LockConfigError) as caught:
        app.task(name="shop.charge", lazy=False)(single_instance(charge))
    assert words in str(caught.value)
    assert "shop.charge" in str(caught.value)


@pytest.mark.parametrize(
    "conf", [{"singleton_lock_ttl": "5"}, {"singleton_lock_ttll": 5}, {"singleton_lock_at_least": 99}], ids=str
)
def test_settings_are_checked_when_bound(make_app: MakeApp, conf: dict[str, Any]) -> None:
    """A wrong setting refuses the first locked task that is bound, and so a worker's start (B25)."""
    with pytest.raises(LockConfigError):
        make_app(**conf).task(lazy=False)(single_instance(charge))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"key": "order:{orderid}"}, "did you mean 'order_id'"),
        ({"key": ("orderid",)}, "did you mean 'order_id'"),
        ({"key": "{order_id}"}, "nothing but values"),
        ({"key": ""}, "written ()"),
        ({"key": 5}, "key must be"),
        ({"idempotency_key": "{event}"}, "event"),
        ({"idempotency_key": True}, "idempotency_key must be"),
    ],
    ids=str,
)
def test_keys_are_checked_at_import(given: dict[str, Any], words: str) -> None:
    """A key that no call could build is refused where the decorator stands, before any app (B25)."""
    with pytest.raises(LockConfigError) as caught:
        single_instance(**given)(charge)
    assert words in str(caught.value)


def test_no_arguments_and_all_arguments(make_app: MakeApp) -> None:
    """`key=()` and `key=[]` are one lock for the task; None is every argument; the two are not confused (B25)."""

    def key_of(key: Any) -> str:
        task = make_app().task(name="t", lazy=False)(single_instance(key=key)(charge))
        return locked_task_of(task).key.build({"order_id": 7})

    keys = list(map(key_of, [(), [], None, ("order_id",), "constant"]))
    assert keys[0] == keys[1] == "t:"
    assert keys[2] == keys[3]
    assert keys[2] != "t:"
    assert keys[4] == "constant"


def test_contradiction_in_one_task(app: Celery) -> None:
    """Options of one task that cannot both be meant are refused when it is bound, wherever each is written (B25)."""
    with pytest.raises(LockConfigError, match="wait_timeout: has no effect with on_conflict='skip'"):
        app.task(base=SingleInstanceTask, lock_wait_timeout=5, lazy=False)(single_instance(on_conflict="skip")(charge))


def test_app_wide_default_is_no_contradiction(make_app: MakeApp) -> None:
    """A default for the whole app that one task has no use for is none of its business."""
    app = make_app(singleton_lock_wait_timeout=5, singleton_lock_retry_limit=3)
    assert options_of(app.task(lazy=False)(single_instance(on_conflict="skip")(charge))).wait_timeout == 5


@pytest.mark.parametrize(
    ("broker", "max_delay"),
    [("redis://h", 1800.0), ("sqs://", 900.0), ("amqp://h", float("inf")), ("memory://", float("inf"))],
)
def test_max_delay_follows_the_broker(make_app: MakeApp, broker: str, max_delay: float) -> None:
    """A wait stays well below the time after which the broker delivers again (B32)."""
    task = make_app(broker_url=broker).task(lazy=False)(single_instance(charge))
    assert locked_task_of(task).max_delay == max_delay


class Starting:
    """What Celery hands a start-up step: the worker, of which the step looks at the app and the pool."""

    def __init__(self, app: Celery, pool: str) -> None:
        self.app = app
        self.pool_cls = type("TaskPool", (), {"__module__": f"celery.concurrency.{pool}"})


def start(app: Celery, pool: str = "solo") -> None:
    """Make a worker's checks."""
    app.finalize()
    StartupChecks(None).create(Starting(app, pool))


def test_worker_makes_the_checks(app: Celery) -> None:
    """Every worker of an app with a locked task makes the checks before its first message."""
    app.task(lazy=False)(single_instance(charge))
    assert symbol_by_name(*app.steps["worker"]) is StartupChecks
    start(app)


def test_prefork_refuses_memory(app: Celery) -> None:
    """A prefork worker refuses locks in memory, which its processes would not share; a solo one takes them."""
    app.task(lazy=False)(single_instance(charge))
    with pytest.raises(LockConfigError, match=r"^singleton_lock_url: memory:// is not shared"):
        start(app, "prefork")
    start(app, "solo")


def test_switched_off_locks_are_said_loudly(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """A worker with switched-off locks names their tasks in one warning, and needs no server for them."""
    for name in ("shop.b", "shop.a"):
        app.task(name=name, lazy=False)(single_instance(enabled=False)(charge))
    start(app, "prefork")
    (record,) = caplog.records
    assert (record.levelname, "OFF" in record.getMessage()) == ("WARNING", True)
    assert "shop.a, shop.b" in record.getMessage()


def test_no_store_no_start(make_app: MakeApp) -> None:
    """A worker whose locks have no place to be refuses to start, and names the setting."""
    app = make_app(singleton_lock_url=None)
    app.task(lazy=False)(single_instance(charge))
    with pytest.raises(LockConfigError, match="singleton_lock_url is not set"):
        start(app)


def test_settings_that_changed_since_are_checked_again(app: Celery) -> None:
    """What was changed after a task was bound is checked at the worker's start, and counts."""
    task = app.task(lazy=False)(single_instance(charge))
    app.conf.singleton_lock_ttl = 5
    assert options_of(task).ttl == 5
    other = app.task(lazy=False, name="other")(single_instance(charge))
    assert [type(each).singleton_lock_task().options.ttl for each in locked_tasks(app)] == [5, 5]
    assert other is not task


@pytest.mark.parametrize("option", ["lock_key", "lock_ttl"])
def test_forgotten_base_class(app: Celery, option: str) -> None:
    """A task with options of a lock and neither base class nor decorator does not start unlocked in silence."""
    app.task(lazy=False)(single_instance(charge))
    app.task(lazy=False, name="shop.forgotten", **{option: "order" if option == "lock_key" else 5})(charge)
    with pytest.raises(LockConfigError, match=r"shop\.forgotten"):
        start(app)
