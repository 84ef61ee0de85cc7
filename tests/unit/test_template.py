"""Templates name one resource per set of values: `celery_singleton_lock.keys.template`, through ``compile_key``."""

from __future__ import annotations

from collections import OrderedDict
from datetime import date
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_singleton_lock.errors import LockConfigError, LockKeyError
from celery_singleton_lock.keys.spec import compile_key

from . import values as v

quick = settings(deadline=None, max_examples=400)


def fill(template: str, **arguments: Any) -> str:
    """The resource that the template names."""
    return compile_key(template).build(arguments)


@pytest.mark.parametrize(
    ("template", "arguments", "text"),
    [
        ("order:{a}", {"a": 7}, "order:7"),
        ("order:{a}", {"a": -7}, "order:-7"),
        ("order:{a}", {"a": "7"}, 'order:"7"'),
        ("order:{a}", {"a": "-7"}, 'order:"-7"'),
        ("order:{a}", {"a": "+7"}, "order:+7"),
        ("order:{a}", {"a": "ab-12_x.y@z/+"}, "order:ab-12_x.y@z/+"),
        ("order:{a}", {"a": ""}, 'order:""'),
        ("order:{a}", {"a": "a:b"}, 'order:"a:b"'),
        ("order:{a}", {"a": "a\n"}, 'order:"a\\n"'),
        ("order:{a}", {"a": "\u00fc"}, 'order:"\\u00fc"'),
        ("order:{a}", {"a": "\u0667"}, 'order:"\\u0667"'),
        ("order:{a}", {"a": True}, 'order:["bool",true]'),
        ("order:{a}", {"a": 1.0}, 'order:["float","1.0"]'),
        ("order:{a}", {"a": v.Colour.RED}, "order:red"),
        ("order:{a}", {"a": v.Level.HIGH}, "order:3"),
        ("order:{a}", {"a": v.Text("x y")}, 'order:"x y"'),
        ("order:{a}", {"a": v.Number(-1)}, "order:-1"),
        ("order:{a}", {"a": UUID(int=0)}, 'order:["uuid","00000000-0000-0000-0000-000000000000"]'),
        ("{{{a}}}x", {"a": 1}, "{1}x"),
        ("{a}-{b}:x", {"a": "x-y", "b": "z"}, '"x-y"-z:x'),
        ("{a}-{b}:x", {"a": 1, "b": -2}, '1-["int",-2]:x'),
        ("{a}1{b}", {"a": 2, "b": "ab"}, '["int",2]1ab'),
        ("{a}1{b}", {"a": True, "b": "x"}, '["bool",true]1x'),
        ("{a}:{a}", {"a": 2}, "2:2"),
        ("o:{a[id]}", {"a": {"id": 7}}, "o:7"),
        ("o:{a[id]}", {"a": OrderedDict(id=7)}, "o:7"),
        ("o:{a[0]}", {"a": ["x", "y"]}, "o:x"),
        ("o:{a[1]}", {"a": ("x", "y")}, "o:y"),
        ("o:{a[1]}", {"a": {"1": "text"}}, "o:text"),
        ("o:{a[1]}", {"a": {1: "int"}}, "o:int"),
        ("o:{a[\u00b2]}", {"a": {"\u00b2": 1}}, "o:1"),
        ("o:{a[_id]}", {"a": {"_id": 7}}, "o:7"),
        ("o:{a[the id]}", {"a": {"the id": 7}}, "o:7"),
        ("o:{a.id}", {"a": SimpleNamespace(id=7)}, "o:7"),
        ("o:{a.id}", {"a": v.Order(id=7)}, "o:7"),
        ("o:{a.placed.year}", {"a": v.Order(id=7, placed=date(2020, 1, 1))}, "o:2020"),
        ("o:{a[lines][1].id}", {"a": {"lines": [None, v.Order(id=8)]}}, "o:8"),
        ("caf\u00e9:{gr\u00f6\u00dfe}", {"gr\u00f6\u00dfe": 7}, "caf\u00e9:7"),
    ],
)
def test_rendered(template: str, arguments: dict[str, Any], text: str) -> None:
    """What each kind of value looks like: plain ones as they are, all others in a form that nothing else has."""
    assert fill(template, **arguments) == text


ALPHABET = '01-ax:|"[],\\{}_./@+\n\u00fc '
TEMPLATES = [
    "o:{a}:{b}",
    "{a}-{b}x",
    "{a}--{b}",
    "{a}x{b}-{c}",
    "{a}1{b}",
    '{a}"{b}',
    "{a}[{b}]{c}",
    "{a},{b},{c}0",
    "-{a}-0-{b}-{c}-",
    "{{{a}}}{{{b}}}",
    "a{a}ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.@/+{b}",
]
tricky = st.text(ALPHABET, max_size=6) | st.integers(-20, 20) | st.integers() | v.collisions | v.nested(v.collisions)
triples = st.tuples(tricky, tricky, tricky)


def _has_none(template: str, values: tuple[Any, ...]) -> bool:
    return any(value is None and f"{{{name}}}" in template for name, value in zip("abc", values, strict=True))


@quick
@given(st.sampled_from(TEMPLATES), triples, triples, st.integers(0, 7))
def test_one_template_is_injective(template: str, left: Any, right: Any, shared: int) -> None:
    """Different values never share a resource, however they are spelt; equal values always do."""
    right = tuple(old if shared >> i & 1 else new for i, (old, new) in enumerate(zip(left, right, strict=True)))
    used = [i for i, name in enumerate("abc") if f"{{{name}}}" in template]
    if _has_none(template, left) or _has_none(template, right):
        return
    texts = [fill(template, a=x[0], b=x[1], c=x[2]) for x in (left, right)]
    same = all(v.normal(left[i]) == v.normal(right[i]) for i in used)
    assert (texts[0] == texts[1]) == same


@pytest.mark.parametrize("template", TEMPLATES)
def test_moving_a_separator_into_a_value(template: str) -> None:
    """No short strings and ints, tried in all combinations, collide by containing the separator."""
    pieces = ["", "0", "1", "-", "x", "-0", "1x", "x-", "0-x", '"', "[", "-1", ":", ":0", 0, 1, -1, 10, -10]
    names = [name for name in "abc" if f"{{{name}}}" in template][:2]
    seen: dict[str, tuple[Any, Any]] = {}
    for left in pieces:
        for right in pieces:
            text = fill(template, **{"c": 5, names[0]: left, names[-1]: right})
            assert seen.setdefault(text, (left, right)) == (left, right)
            assert tuple(map(type, seen[text])) == (type(left), type(right))


@quick
@given(v.json_values.filter(lambda value: value is not None))
def test_producer_and_worker_agree(value: Any) -> None:
    """B23: a field's value has one text before it is sent and after."""
    assert fill("o:{a}", a=v.by_message(value)) == fill("o:{a}", a=value)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{a}", "nothing but values.*'order:{a}'"),
        (" {a[id]} ", "nothing but values.*'order:{a\\[id\\]}'"),
        ("o:{a}{b}", "nothing stands between {a} and {b}.*':'"),
        ("o:{}", "positional"),
        ("o:{0}", "positional"),
        ("o:{0[a]}", "positional"),
        ("o:{a:>5}", "no format"),
        ("o:{a:{b}}", "no format"),
        ("o:{a!r}", "no conversion"),
        ("o:{a.__class__}", "private"),
        ("o:{a[b]._c}", "private"),
        ("o:{a[]}", "cannot be read"),
        ("o:{ a }", "cannot be read"),
        ("o:{a.}", "cannot be read"),
        ("o:{a.b()}", "cannot be read"),
        ("o:{a-b}", "cannot be read"),
        ("o:{a", "cannot be read"),
        ("o:a}", "cannot be read"),
        ("o:\ud800{a}", "not valid Unicode"),
    ],
)
def test_bad_templates(template: str, problem: str) -> None:
    """A template that could mix up resources, or that cannot be read, is refused with what to write instead."""
    with pytest.raises(LockConfigError, match=problem) as caught:
        compile_key(template)
    assert str(caught.value).startswith("key: ")


@pytest.mark.parametrize(
    ("template", "arguments", "field", "problem"),
    [
        ("o:{a}", {"a": None}, "a", "it is None"),
        ("o:{a}", {}, "a", "no such argument"),
        ("o:{a}", {"a": object()}, "a", "no stable form"),
        ("o:{a.id}", {"a": None}, "a.id", "it is None"),
        ("o:{a[id]}", {"a": None}, "a[id]", "it is None"),
        ("o:{a[id]}", {"a": {"id": None}}, "a[id]", "it is None"),
        ("o:{a[id]}", {"a": {"tok_abc": 1}}, "a[id]", "no item"),
        ("o:{a[3]}", {"a": ["tok_abc"]}, "a[3]", "no item"),
        ("o:{a[-1]}", {"a": ["tok_abc"]}, "a[-1]", "number for a list"),
        ("o:{a[0]}", {"a": "tok_abc"}, "a[0]", "type str"),
        ("o:{a[id]}", {"a": v.Order(id=1)}, "a[id]", "written .id"),
        ("o:{a.id}", {"a": {"id": 1}}, "a.id", r"write \[id\]"),
        ("o:{a.items}", {"a": {"items": 1}}, "a.items", r"write \[items\]"),
        ("o:{a.upper}", {"a": "tok_abc"}, "a.upper", "no stable form"),
        ("o:{a.none}", {"a": v.Order(id=1)}, "a.none", "Order has no attribute none"),
        ("o:{a.address.city}", {"a": v.Order(id=1)}, "a.address.city", "it is None"),
        ("o:{a}", {"a": {"x": [object()]}}, "a.x[0]", "no stable form"),
    ],
)
def test_values_that_are_not_there(template: str, arguments: dict[str, Any], field: str, problem: str) -> None:
    """A missing, None or unstable field is an error that names it, never a shared lock; B47: no value is shown."""
    with pytest.raises(LockKeyError, match=problem) as caught:
        fill(template, **arguments)
    assert caught.value.field == field
    assert "tok_abc" not in str(caught.value)
