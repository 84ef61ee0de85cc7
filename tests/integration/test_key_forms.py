"""The lock's name on the server, for every shape of task and every way of calling it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from celery import chain

from celery_singleton_lock import LockKeyError
from celery_singleton_lock.keys.binding import bind
from celery_singleton_lock.keys.spec import compile_key

from ..support.worker import ROOT
from .stage import Stage, lock_name

#: Which shapes there are: the app is loaded later, by the stage.
SHAPES = (
    *("plain", "bound", "autoretried", "bound_autoretried", "untyped", "wrapped_above", "wrapped_below"),
    *("validated", "shared", "by_base", "by_class", "decorated_class"),
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker, whose hash seed is another one than ours."""
    with Stage(tmp_path_factory.mktemp("key_forms"), "shapes") as stage:
        stage.start_worker(pool="solo", env={"PYTHONHASHSEED": "17"})
        yield stage
        stage.app_module.server.close()


def calls(stage: Stage, task: Any) -> dict[str, Any]:
    """Every way to call a task with order 7 in region "eu"."""
    return {
        "delay": lambda: task.delay(7),
        "by name": lambda: task.delay(order_id=7),
        "default given": lambda: task.delay(7, region="eu"),
        "apply_async": lambda: task.apply_async([7]),
        "apply_async kwargs": lambda: task.apply_async(kwargs={"order_id": 7, "region": "eu"}),
        "s": lambda: task.s(7).delay(),
        "si": lambda: task.si(7, region="eu").delay(),
        "partial": lambda: task.s(region="eu").delay(7),
        "injected by a chain": lambda: chain(stage.tasks.echo.s(7), task.s())(),
        "injected beside a partial": lambda: chain(stage.tasks.echo.s(7), task.s(region="eu"))(),
        "send_task": lambda: stage.app.send_task(task.name, [7]),
    }


def _names(stage: Stage, task: Any) -> dict[str, list[str]]:
    return {how: call().get(timeout=15) for how, call in calls(stage, task).items()}


class TestCalls:
    """Equal bindings, one key."""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_one_key_for_every_shape_and_call(self, stage: Stage, shape: str) -> None:
        """B18, B19: the server has exactly the lock res:7 while the body runs, whatever the task and the call."""
        names = _names(stage, getattr(stage.tasks, shape))
        assert names == {how: [lock_name("res:7")] for how in names}

    def test_no_shape_is_forgotten(self, stage: Stage) -> None:
        """The list above is the app's."""
        assert stage.app_module.SHAPES == SHAPES

    @pytest.mark.parametrize("shape", ["whole", "whole_bound", "named", "extra"])
    def test_one_key_for_every_call_by_arguments(self, stage: Stage, shape: str) -> None:
        """B19: so it is where the key is made of the arguments themselves; other arguments have another key."""
        task = getattr(stage.tasks, shape)
        names = _names(stage, task)
        assert len(names["delay"]) == 1
        assert names["delay"][0].split(":lock:")[1].startswith(f"{task.name}:")
        assert names == dict.fromkeys(names, names["delay"])
        others = [task.delay(8), task.delay("7"), task.delay(7, region="us"), task.delay(7.5)]
        different = {tuple(other.get(timeout=15)) for other in others}
        assert len(different) == 4
        assert tuple(names["delay"]) not in different

    def test_positional_default(self, stage: Stage) -> None:
        """B19: a default that is given by position is the same, too."""
        assert stage.tasks.whole.delay(7, "eu").get(timeout=15) == stage.tasks.whole.delay(7).get(timeout=5)

    def test_extra_keywords_belong_to_the_key(self, stage: Stage) -> None:
        """B19: what comes in ** is an argument as well, whatever its order."""
        task = stage.tasks.extra
        one = task.delay(7, a=1, b=2).get(timeout=15)
        assert task.delay(b=2, order_id=7, a=1).get(timeout=15) == one
        assert task.delay(7, a=2, b=1).get(timeout=15) != one

    def test_bad_arguments_fail_as_celery_says(self, stage: Stage) -> None:
        """Arguments that do not bind are Celery's own TypeError, and nothing is locked for them."""
        with pytest.raises(TypeError, match=r"plain\(\)"):
            stage.app.send_task(stage.tasks.plain.name, [7, "eu", "too many"]).get(timeout=15)
        assert stage.locks.keys("*:lock:*") == []


#: Values, and whether kombu's JSON can carry them.
VALUES: dict[str, tuple[Any, bool]] = {
    "uuid": (uuid.UUID(int=7), True),
    "datetime": (datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc), True),
    "naive datetime": (datetime(2026, 1, 2, 3, 4, 5), True),
    "date": (date(2026, 1, 2), True),
    "time": (time(3, 4, 5), True),
    "decimal": (Decimal("1.10"), True),
    "bytes": (b"bytes", True),
    "binary": (b"\xff\x00", True),
    "nested": ({"a": [1, {"b": (2, 3)}], "c": None}, True),
    "text": ("Grüße \U0001f600", True),
    "float": (0.1, True),
    "big": (10**30, True),
    "timedelta": (timedelta(seconds=1.5), False),
    "set": ({"a", "b", "c", "d"}, False),
    "frozenset": (frozenset({"x", "y", "z"}), False),
}


class TestValues:
    """What a producer sends and what a worker gets give one key."""

    def _key(self, task: Any, **arguments: Any) -> list[str]:
        bound = bind(inspect.signature(type(task).run), (), arguments)
        return [lock_name(compile_key(None, task.name).build(bound))]

    @pytest.mark.parametrize(
        ("kind", "serializer"),
        [(kind, how) for kind, (_, json) in VALUES.items() for how in ("json", "pickle") if json or how == "pickle"],
    )
    def test_producer_and_worker_agree(self, stage: Stage, kind: str, serializer: str) -> None:
        """B23: the worker's lock is named as the key that the producer would build, another hash seed or not."""
        value = VALUES[kind][0]
        result = stage.tasks.anything.apply_async([value], serializer=serializer)
        assert result.get(timeout=15) == self._key(stage.tasks.anything, value=value)

    @pytest.mark.parametrize("kind", ["Colour", "Size", "Point", "Order"])
    def test_types_of_ones_own(self, stage: Stage, kind: str) -> None:
        """B23: enums, dataclasses and models agree as well, by pickle."""
        types = stage.app_module
        value = {
            "Colour": types.Colour.RED,
            "Size": types.Size.BIG,
            "Point": types.Point(1, 2.5),
            "Order": types.Order(id=7, tags=["b", "a"]),
        }[kind]
        result = stage.tasks.anything.apply_async([value], serializer="pickle")
        assert result.get(timeout=15) == self._key(stage.tasks.anything, value=value)

    def test_different_values_have_different_keys(self, stage: Stage) -> None:
        """B23: values that look alike as text are not one resource."""
        alike: list[Any] = [1, "1", 1.5, "1.5", Decimal("1.5"), True, "True", b"1", [1], {"1": 1}, None, "None"]
        names = [tuple(stage.tasks.anything.delay(value).get(timeout=15)) for value in alike]
        assert len(set(names)) == len(alike)

    @pytest.mark.parametrize("shape", ["modelled", "modelled_whole"])
    def test_a_model_and_its_json_are_one(self, stage: Stage, shape: str) -> None:
        """B23: with pydantic=True a model, its dict, and a dict that leaves the default out have one key."""
        task = getattr(stage.tasks, shape)
        forms = [stage.app_module.Order(id=7), {"id": 7, "tags": []}, {"id": 7}, {"id": "7"}]
        names = [task.apply_async([form], serializer="pickle").get(timeout=15) for form in forms]
        names += [task.delay(form).get(timeout=15) for form in forms[1:]]
        assert names == [names[0]] * 7
        assert len(names[0]) == 1

    def test_a_value_without_a_stable_form_is_refused(self, stage: Stage) -> None:
        """B23: an object whose only form is its address fails with an error that names the argument."""
        result = stage.tasks.anything.apply_async([object()], serializer="pickle")
        with pytest.raises(LockKeyError) as caught:
            result.get(timeout=15)
        assert caught.value.field == "value"
        assert "0x" not in str(caught.value)
        assert stage.locks.keys("*:lock:*") == []


def test_two_processes_agree(tmp_path_factory: pytest.TempPathFactory) -> None:
    """B24: bind=True and no key: a program whose __main__ is the app's module has the worker's key; self is not in."""
    with Stage(tmp_path_factory.mktemp("entry"), "entry") as stage:
        stage.start_worker(pool="prefork", concurrency=1, env={"PYTHONHASHSEED": "1"})
        by_worker = stage.tasks.charge.delay(7).get(timeout=15)
        program = subprocess.run(
            [sys.executable, "-m", "tests.integration.apps.entry"],
            cwd=ROOT,
            env={**stage.workers[0].env, "PYTHONHASHSEED": "2"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert program.stdout.strip() == by_worker
    assert by_worker.startswith("entry.charge:")
    signature = inspect.Signature([inspect.Parameter("order_id", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    assert compile_key(None, "entry.charge").build(bind(signature, [7], {})) != by_worker  # tags belong to it
