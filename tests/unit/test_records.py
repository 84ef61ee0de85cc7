"""Idempotency records and result markers: `celery_singleton_lock.locks.records`."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_singleton_lock.errors import LockKeyError
from celery_singleton_lock.keys.binding import bind, defaults, fingerprint
from celery_singleton_lock.locks.records import (
    Encoded,
    Record,
    decode,
    encode,
    is_replayed,
    is_skipped,
    not_kept,
    skipped,
)

from . import values as v

quick = settings(deadline=None)
texts = st.text(max_size=8) | st.text('\ud800a"', max_size=3)
encoded = st.builds(Encoded, texts, texts, texts | st.binary(max_size=20))
records = st.builds(Record, st.sampled_from(["done", "retried"]), texts, st.none() | texts, st.none() | encoded)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@quick
@given(records)
def test_round_trip(record: Record) -> None:
    """A record comes back equal, its result's body as text or as bytes, as it was."""
    assert decode(encode(record)) == record


def test_form() -> None:
    """The form is that of the last release: a worker may meet the records of an older one."""
    record = Record("done", "id-1", "f" * 4, Encoded("application/json", "utf-8", '"\u00fc"'))
    assert (
        encode(record)
        == (
            '{"v":1,"state":"done","task_id":"id-1","fingerprint":"ffff",'
            '"result":["application/json","utf-8","text","\\"\u00fc\\""]}'
        ).encode()
    )
    pickled = Record("done", "id-1", None, Encoded("application/x-python-serialize", "binary", b"\x80"))
    assert encode(pickled) == (
        b'{"v":1,"state":"done","task_id":"id-1","result":["application/x-python-serialize","binary","base64","gA=="]}'
    )
    assert encode(Record("retried", "id-1")) == b'{"v":1,"state":"retried","task_id":"id-1"}'


def test_unknown_fields_are_left_alone() -> None:
    """A field that a later release adds to this version does no harm."""
    assert decode(b'{"v":1,"state":"retried","task_id":"x","more":[1]}') == Record("retried", "x")


GOOD: dict[str, Any] = {"v": 1, "state": "done", "task_id": "x"}
BAD: dict[str, list[Any]] = {
    "v": [2, 0, True, 1.0, "1", None],
    "state": ["lost", [], None],
    "task_id": [None, 7],
    "fingerprint": [7, []],
    "result": [{}, "abcd", ["a", "b", "text"], ["a", "b", "text", None], ["a", "b", "zip", "c"]]
    + [["a", "b", "base64", body] for body in ("?", "\u00fc")],
}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff", b"{", b"null", b"[]", b"1", b"[" * 100_000),
        *(json.dumps({**GOOD, name: value}).encode() for name, values in BAD.items() for value in values),
    ],
)
def test_what_is_no_record(data: bytes) -> None:
    """Garbage and unknown versions are a ValueError, never half a record."""
    with pytest.raises(ValueError, match=r"^the record"):
        decode(data)


@quick
@given(st.binary(max_size=20) | st.dictionaries(st.sampled_from(["result", "state", "task_id"]), json_values))
def test_garbage(data: Any) -> None:
    """Whatever stands there, it is a record or a ValueError."""
    raw = data if isinstance(data, bytes) else json.dumps({**GOOD, **data}).encode()
    try:
        record = decode(raw)
    except ValueError:
        return
    assert decode(encode(record)) == record


def charge(order_id: Any, amount: Any = 1, *rest: Any, note: Any = None, **extra: Any) -> None: ...


SIGNATURE = inspect.signature(charge)


def print_of(*args: Any, **kwargs: Any) -> str:
    """The fingerprint of a call of ``charge``."""
    return fingerprint(bind(SIGNATURE, args, kwargs), defaults(SIGNATURE))


def test_fingerprints_leave_defaults_out() -> None:
    """B19: a default given or not is one payload, and a parameter added later with a default changes nothing."""
    assert print_of(7) == print_of(order_id=7, amount=1, note=None) == fingerprint({"order_id": 7}, {})
    assert fingerprint({"order_id": 7, "new": ()}, {"new": []}) == fingerprint({"order_id": 7}, {})
    assert print_of(7) != print_of(8)
    assert print_of(7, 2) != print_of(7)
    assert print_of(7, True) != print_of(7)
    assert print_of(7, 1, 2) != print_of(7)
    assert print_of(7, more=None) != print_of(7)


def test_fingerprints_are_of_names_in_any_order() -> None:
    """The same arguments in another order are one payload; the same values under other names are not."""
    assert fingerprint({"a": 1, "b": 2}, {}) == fingerprint({"b": 2, "a": 1}, {})
    assert fingerprint({"a": 1}, {}) != fingerprint({"b": 1}, {})
    assert print_of(1, 2) != print_of(1, note=2)


@settings(deadline=None, max_examples=300)
@given(st.tuples(v.collisions, v.collisions, v.collisions), st.tuples(v.collisions, v.collisions, v.collisions))
def test_fingerprints_are_of_the_values(left: Any, right: Any) -> None:
    """Two calls have one fingerprint exactly when they bind the same values."""
    prints = [print_of(x[0], x[1], note=x[2]) for x in (left, right)]
    assert (prints[0] == prints[1]) == (v.normal(left) == v.normal(right))


def test_fingerprints_survive_a_message() -> None:
    """B23: the payload has one fingerprint before and after JSON."""
    payload = {"a": (1, b"x"), "b": {2: None}}
    assert print_of(v.by_message(payload)) == print_of(payload)


def test_values_without_a_stable_form() -> None:
    """B24: an argument without a stable form is refused by name; a default without one is just a default."""
    sentinel = object()
    assert fingerprint({"a": 1, "b": sentinel}, {"b": sentinel}) == fingerprint({"a": 1}, {})
    assert fingerprint({"b": 1}, {"b": sentinel}) == fingerprint({"b": 1}, {})
    with pytest.raises(LockKeyError) as caught:
        fingerprint({"a": [object()]}, {})
    assert caught.value.field == "a[0]"


def test_markers() -> None:
    """The two markers are small JSON dicts that name the other run and the key id, and are told apart."""
    skip, replay = skipped("id-1", "ab" * 8), not_kept(None, "ab" * 8)
    assert skip == {"singleton_lock": "skipped", "task_id": "id-1", "key": "ab" * 8}
    assert replay == {"singleton_lock": "result not kept", "task_id": None, "key": "ab" * 8}
    assert is_skipped(v.by_message(skip))
    assert not is_replayed(skip)
    assert is_replayed(v.by_message(replay))
    assert not is_skipped(replay)


class _Strange(dict[str, Any]):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None


@pytest.mark.parametrize(
    "result",
    [
        None,
        "skipped",
        {},
        {"singleton_lock": "skipped"},
        {"singleton_lock": ["skipped"], "task_id": "x", "key": "y"},
        {"singleton_lock": _Strange(), "task_id": "x", "key": "y"},
        [skipped("x", "y")],
        object(),
    ],
)
def test_other_results(result: object) -> None:
    """A result that only looks a little like a marker is none."""
    assert is_skipped(result) is False
    assert is_replayed(result) is False


@quick
@given(json_values)
def test_any_result(result: Any) -> None:
    """Asking never fails."""
    assert not is_skipped(result)
    assert not is_replayed(result)
