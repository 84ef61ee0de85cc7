"""One text per value: `celery_singleton_lock.keys.encoding`."""

from __future__ import annotations

import decimal
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_singleton_lock.keys.encoding import encode

from ..support.programs import run_python
from . import values as v

quick = settings(deadline=None, max_examples=400)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('a"\u00e9', '"a\\"\\u00e9"'),
        (7, "7"),
        (-(10**30), "-1000000000000000000000000000000"),
        (True, '["bool",true]'),
        (None, '["none"]'),
        (0.1, '["float","0.1"]'),
        (-0.0, '["float","0.0"]'),
        (float("-inf"), '["float","-inf"]'),
        ([1, "1"], '["list",[1,"1"]]'),
        ((), '["list",[]]'),
        (v.Point(1, 2), '["list",[1,2]]'),
        ({"b": 1, "a": [None]}, '["dict",[["a",["list",[["none"]]]],["b",1]]]'),
        ({2: 1, None: 2, True: 3, 0.5: 4}, '["dict",[["0.5",4],["2",1],["null",2],["true",3]]]'),
        ({(1, 2): 3}, '["dict",[[["list",[1,2]],3]]]'),
        ({"b", "a"}, '["set",["a","b"]]'),
        (b"\x00\xff", '["bytes","00ff"]'),
        (bytearray(b"a"), '["bytes","61"]'),
        (memoryview(b"a"), '["bytes","61"]'),
        (Decimal("-10.50"), '["decimal","-105e-1"]'),
        (Decimal("Infinity"), '["decimal","Infinity"]'),
        (datetime(2024, 1, 2, 3, 4), '["datetime","2024-01-02T03:04:00"]'),
        (datetime(2024, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=2))), '["datetime","2024-01-02T01:04:00+00:00"]'),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=2))), '["datetime",-62135604000000000]'),
        (date(2024, 1, 2), '["date","2024-01-02"]'),
        (time(3, 4), '["time","03:04:00"]'),
        (time(3, tzinfo=timezone(timedelta(hours=4))), '["time",-3600000000]'),
        (timedelta(days=-1, microseconds=1), '["timedelta",-86399999999]'),
        (UUID(int=1), '["uuid","00000000-0000-0000-0000-000000000001"]'),
        (v.Colour.RED, '"red"'),
        (v.Level.HIGH, "3"),
        (v.Share.HALF, '["float","0.5"]'),
        (v.Tag.A, '["bytes","61"]'),
        (v.Plain.ALIAS, '["enum","Plain","RED"]'),
        (v.Rights.READ | v.Rights.WRITE, '["enum","Rights",3]'),
        (v.Text("t"), '"t"'),
        (v.Number(5), "5"),
        (v.Money(Decimal(2)), '["dataclass","Money",[["amount",["decimal","2e0"]],["currency","EUR"]]]'),
        (v.Order(id=1), '["dict",[["address",["none"]],["id",1],["placed","2024-01-02"]]]'),
        (v.Hooked(4), '["dict",[["number",4]]]'),
    ],
)
def test_texts(value: object, text: str) -> None:
    """The text of each type is what it was in the last release: locks of old and new workers must meet."""
    assert encode(value, "x") == text


@quick
@given(v.nested(v.collisions), v.nested(v.collisions))
def test_same_text_exactly_for_the_same_value(left: Any, right: Any) -> None:
    """Two values share a text if they are the same, and only then; 1, 1.0, True and "1" are four."""
    assert (encode(left, "x") == encode(right, "x")) == (v.normal(left) == v.normal(right))


@quick
@given(v.json_values)
def test_json_keeps_the_text(value: Any) -> None:
    """B23: whatever kombu's JSON can carry has one text before it is sent and after it is received."""
    assert encode(v.by_message(value), "x") == encode(value, "x")


@quick
@given(v.pickle_values)
def test_pickle_keeps_the_text(value: Any) -> None:
    """B23: the same for pickle and every supported type."""
    assert encode(v.by_message(value, "pickle"), "x") == encode(value, "x")


@quick
@given(st.dictionaries(v.other_keys, st.integers(0, 1), max_size=3))
def test_json_turns_keys_into_text(value: Any) -> None:
    """B23: a dict's keys of other types are what JSON makes of them."""
    assert encode(v.by_message(value), "x") == encode(value, "x")


@quick
@given(v.decimals, v.decimals)
def test_decimals(left: Decimal, right: Decimal) -> None:
    """Decimals share a text exactly when they are equal, however narrow the context."""
    with decimal.localcontext(decimal.Context(prec=2)):
        texts = encode(left, "x"), encode(right, "x")
    assert (texts[0] == texts[1]) == (left == right)


@quick
@given(v.aware, v.zones)
def test_aware_datetimes(value: datetime, zone: timezone) -> None:
    """An instant has one text in every time zone, and another than the naive datetime that reads the same."""
    assert encode(value.astimezone(zone), "x") == encode(value, "x")
    assert encode(value.replace(tzinfo=None), "x") != encode(value, "x")


def test_the_second_hour_of_a_clock_set_back() -> None:
    """Of an hour that comes twice, each is its own instant, also by message."""
    first = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    second = first.replace(fold=1)
    assert encode(first, "x") != encode(second, "x")
    assert encode(v.by_message(second), "x") == encode(second, "x")


def test_hidden_differences_do_not_count() -> None:
    """What dataclasses leave out of a comparison is left out of the text."""
    assert encode(v.Money(Decimal(1), note="a"), "x") == encode(v.Money(Decimal("1.0"), note="b"), "x")


def test_a_model_and_the_dict_of_its_json_form() -> None:
    """B23: a pydantic model has the text of the dict that a message brings."""
    order = v.Order(id=1, address=v.Address(city="K\u00f6ln"))
    assert encode(v.by_message(order.model_dump(mode="json")), "x") == encode(order, "x")


def test_lone_surrogates_have_a_text() -> None:
    """A text that UTF-8 cannot hold, which JSON can bring, spoils nothing."""
    value = v.by_message("\ud800")
    assert encode(value, "x").encode() == b'"\\ud800"'


def test_hash_seed_does_not_matter() -> None:
    """B23: processes with other hash seeds agree on sets and dicts."""
    code = (
        "from celery_singleton_lock.keys.encoding import encode;"
        "print(encode([{'a', 'b', 'c', 1, 2.5, None}, frozenset('xyz'), {'b': 1, 'a': {'z', 'y'}}], 'x'))"
    )
    outputs = {run_python("-c", code, PYTHONHASHSEED=seed) for seed in ("1", "2", "3")}
    assert len(outputs) == 1
    assert outputs != {""}
