"""Arguments of ``pydantic=True`` tasks before their key is built: `celery_singleton_lock.keys.binding`."""

from __future__ import annotations

import inspect
from typing import Any, Optional

import pytest
from pydantic import BaseModel, ValidationInfo, field_validator

from celery_singleton_lock.errors import LockKeyError
from celery_singleton_lock.keys.binding import bind, models, validated
from celery_singleton_lock.keys.spec import compile_key

from ..support.programs import run_python
from . import values as v


def charge(
    order: v.Order,
    maybe: v.Order | None = None,
    other: Optional[v.Order] = None,  # noqa: UP045
    many: list[v.Order] | None = None,
    either: v.Order | v.Address | None = None,
    number: int = 0,
) -> v.Order:
    """Its result is no argument."""
    return order


def test_models() -> None:
    """The parameters that Celery validates: a model, or a model or None; annotations that are text, too."""
    assert models(charge) == {"order": v.Order, "maybe": v.Order, "other": v.Order}


def test_unresolvable_annotations() -> None:
    """An annotation that cannot be read is no model, as for Celery; those that are classes already still count."""

    def task(order: Any, gone: NotThere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # on purpose

    task.__annotations__["order"] = v.Order
    assert models(task) == {"order": v.Order}


def test_without_pydantic() -> None:
    """A process that never imported pydantic has no models, and the package does not import it."""
    code = (
        "import sys\nfrom celery_singleton_lock.keys import binding\n"
        "def charge(order: int): ...\n"
        "assert binding.models(charge) == {}\nassert 'pydantic' not in sys.modules"
    )
    run_python("-c", code)


@pytest.mark.parametrize("spec", [None, "order:{order.id}", ("order",), lambda order: f"order:{order.id}"])
def test_the_dict_of_a_message(spec: object) -> None:
    """B18, B23: a model and the dict of a message, its defaults left out or not, give one key."""
    signature = inspect.signature(charge)
    key = compile_key(spec)
    key.check(signature)
    forms: list[Any] = [
        v.Order(id=7),
        {"id": 7},
        v.by_message(v.Order(id=7).model_dump()),
        {"id": "7", "address": None},
    ]
    texts = {key.build(validated(bind(signature, (form,), {}), models(charge))) for form in forms}
    assert len(texts) == 1
    assert texts != {key.build(validated(bind(signature, ({"id": 8},), {}), models(charge)))}


class _Upper(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _name(cls, value: str, info: ValidationInfo) -> str:
        return f"{(info.context or {})['start']}{value}"


def test_values_that_do_not_validate_stay() -> None:
    """What the body would refuse is left to the body; strictness and context are the task's."""
    order = {"order": v.Order}
    assert validated({"order": {"id": "x"}, "b": 1}, order) == {"order": {"id": "x"}, "b": 1}
    assert validated({"order": None}, order) == {"order": None}
    assert validated({}, order) == {}
    assert validated({"order": {"id": "7"}}, order, strict=True) == {"order": {"id": "7"}}
    found = validated({"order": {"name": "b"}}, {"order": _Upper}, context={"start": "a"})
    assert found["order"].name == "ab"
    assert validated({"order": {"name": "b"}}, {"order": _Upper}) == {"order": {"name": "b"}}


def test_a_field_of_a_dict_that_is_no_model() -> None:
    """Without pydantic=True the error says how a field of the dict is written."""
    with pytest.raises(LockKeyError, match=r"write \[id\] instead of .id, or give the task pydantic=True"):
        compile_key("order:{order.id}").build({"order": {"id": 7}})
