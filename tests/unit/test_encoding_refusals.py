"""Values that have no text: `celery_singleton_lock.keys.encoding`."""

from __future__ import annotations

import pickle
import sys
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from celery_singleton_lock.errors import LockKeyError
from celery_singleton_lock.keys.encoding import MAX_DEPTH, encode

from . import values as v


def _generator() -> Any:
    yield 1


class _WithSlots:
    __slots__ = ("x",)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        _WithSlots(),
        SimpleNamespace(),
        len,
        lambda: 1,
        _generator(),
        v.Money,
        v.Plain,
        range(3),
        1j,
        SecretStr("x"),
    ],
)
def test_no_stable_form(value: object) -> None:
    """B23, B24: any other type is refused, with its name, what to do, and no default repr."""
    with pytest.raises(LockKeyError, match="has no stable form; pass something that is the same") as caught:
        encode(value, "order")
    assert caught.value.field == "order"
    assert "0x" not in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"items": [1, 2, 3, object()]}, "order.items[3]"),
        ([[{"a": (object(),)}]], "order[0][0].a[0]"),
        ({1: {"secret-token 1": object()}}, "order[key 1][key 1]"),
        ({"sk_live_4eC39Hq": float("nan")}, "order[key 1]"),
        ({object()}, "order{...}"),
        (v.Money(object()), "order.amount"),  # type: ignore[arg-type]  # on purpose
        ({"total": Decimal("sNaN")}, "order.total"),
    ],
)
def test_nested_fields_are_named(value: object, field: str) -> None:
    """The error says where the value is; B47: a dict's key that does not read like a field's name is counted."""
    with pytest.raises(LockKeyError) as caught:
        encode(value, "order")
    assert caught.value.field == field
    assert "secret" not in str(caught.value)


def _inside_itself() -> list[Any]:
    value: list[Any] = []
    value.extend([value, value])
    return value


def _deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_deep_values() -> None:
    """Nesting has a limit of its own, far from Python's; what holds itself ends there."""
    assert encode(_deep(MAX_DEPTH), "x").count("list") == MAX_DEPTH
    for value in (_deep(MAX_DEPTH + 1), _deep(50_000), _inside_itself()):
        with pytest.raises(LockKeyError, match="it holds itself, or more than"):
            encode(value, "x")


def _called_deep(levels: int) -> str:
    return encode(_deep(MAX_DEPTH), "x") if levels == 0 else _called_deep(levels - 1)


def _first_too_deep() -> None:
    for levels in range(sys.getrecursionlimit() - 400, sys.getrecursionlimit()):  # 400: of the test run, and to spare
        _called_deep(levels)


def test_called_from_deep_down() -> None:
    """Where the caller has left no room on the stack, the error is still one of a key."""
    with pytest.raises(LockKeyError, match="it holds itself, or more than"):
        _first_too_deep()


class _Secretive(BaseModel):
    name: str = "n"
    tokens: list[SecretStr]


class _Opaque(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    thing: object


class _BadHook:
    def __json__(self) -> None:
        raise RuntimeError("tok_abc")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "not a number"),
        (Decimal("NaN"), "not a number"),
        ({float("nan"): 1}, "not a number"),
        ({1: "a", "1": "b"}, "one in a JSON message"),
        ({None: 1, "null": 2}, "one in a JSON message"),
        (_Secretive(tokens=[SecretStr("tok_abc")]), "hides a secret"),
        (_Opaque(thing=object()), "cannot be dumped to JSON"),
        (_BadHook(), "__json__ failed"),
    ],
)
def test_other_refusals(value: object, problem: str) -> None:
    """A value that equals nothing, or that could not be told from another, is refused without being shown."""
    with pytest.raises(LockKeyError, match=problem) as caught:
        encode(value, "x")
    assert "tok_abc" not in str(caught.value)


@pytest.mark.skipif(not hasattr(sys, "get_int_max_str_digits"), reason="this Python has no limit on an int's digits")
def test_endless_ints() -> None:
    """An int with more digits than Python writes is refused, as a value and as a dict's key."""
    for value in (10**5000, {10**5000: 1}):
        with pytest.raises(LockKeyError, match="too many digits"):
            encode(value, "x")
