"""Binding and the forms of ``key=``: `celery_singleton_lock.keys`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_singleton_lock.errors import LockConfigError, LockKeyError
from celery_singleton_lock.keys.binding import bind, binder, defaults
from celery_singleton_lock.keys.names import scoped
from celery_singleton_lock.keys.spec import compile_key

from ..support.programs import run_python
from . import values as v

quick = settings(deadline=None)


def charge(order_id: Any, region: Any = "eu", *, amount: Any = None, **extra: Any) -> None: ...
def plain(order_id: Any, region: Any = "eu", *, amount: Any = None) -> None: ...
def positional(order_id: Any, /, region: Any = "eu", *rest: Any) -> None: ...
def nothing() -> None: ...


SIGNATURE = inspect.signature(charge)


def build(spec: object, *args: Any, **kwargs: Any) -> str:
    """The resource of ``charge`` called so."""
    key = compile_key(spec, "shop.charge")
    key.check(SIGNATURE)
    return key.build(bind(SIGNATURE, args, kwargs))


SPECS = [
    None,
    "order:{order_id}:{region}",
    ("order_id", "region", "amount", "extra"),
    lambda order_id, region: f"{order_id!r}-{region}",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((7,), {}),
        ((7, "eu"), {}),
        ((), {"order_id": 7}),
        ((), {"region": "eu", "order_id": 7}),
        ([7], {"amount": None, "region": "eu"}),
    ],
)
def test_spellings_of_one_call(spec: object, args: Any, kwargs: dict[str, Any]) -> None:
    """B19: positional, keyword and defaulted calls that bind the same values give the same key."""
    assert build(spec, *args, **kwargs) == build(spec, 7, region="eu")
    assert build(spec, *args, **kwargs) != build(spec, "7")


calls = st.tuples(
    st.lists(v.collisions, max_size=3),
    st.dictionaries(st.sampled_from(["order_id", "region", "amount", "more"]), v.collisions),
)


@quick
@given(st.sampled_from([charge, plain, positional, nothing]), calls)
def test_binder_binds_as_inspect_does(function: Callable[..., Any], call: Any) -> None:
    """B19: the prepared binder gives what inspect gives, or refuses in the same words."""
    args, kwargs = call
    signature = inspect.signature(function)
    try:
        expected = bind(signature, args, kwargs)
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            binder(signature)(args, kwargs)
    else:
        assert binder(signature)(args, kwargs) == expected


@settings(deadline=None, max_examples=400)
@given(st.sampled_from([None, ("order_id", "amount")]), v.nested(v.collisions), v.nested(v.collisions), v.collisions)
def test_equal_bindings_and_no_others_share_a_key(spec: object, left: Any, right: Any, amount: Any) -> None:
    """B19: two calls have one key exactly when the values that they bind are the same."""
    same = v.normal(left) == v.normal(right)
    assert (build(spec, left, amount=amount) == build(spec, order_id=right, amount=amount)) == same
    assert (build(spec, amount, amount=left) == build(spec, amount, amount=right)) == same


def test_defaults() -> None:
    """What a call may leave out, a signature's ``*`` and ``**`` among it."""
    assert defaults(SIGNATURE) == {"region": "eu", "amount": None, "extra": {}}
    assert defaults(inspect.signature(positional)) == {"region": "eu", "rest": ()}
    assert bind(SIGNATURE, (1,), {}) == {"order_id": 1, **defaults(SIGNATURE)}


def test_text_of_the_default_key() -> None:
    """The default key is the task's name and a digest; B47: no value and no name of an argument is in it."""
    text = build(None, "tok_abc")
    assert re.fullmatch("shop[.]charge:[0-9a-f]{64}", text)
    assert text == scoped(
        "shop.charge", '["amount",["none"]],["extra",["dict",[]]],["order_id","tok_abc"],["region","eu"]'
    )
    assert re.fullmatch("shop[.]charge:[0-9a-f]{64}", build(("order_id",), "tok_abc"))


def test_a_sequence_is_scoped_by_the_task_and_has_no_order() -> None:
    """A sequence of names means those arguments of this task, in whatever order they are named."""
    assert build(["region", "order_id"], 7) == build(("order_id", "region"), 7)
    assert build(("order_id",), 7, "us") == build(("order_id",), 7)
    assert build(("order_id",), 7) != build(("region",), 7, 7)
    arguments = bind(SIGNATURE, (7,), {})
    for spec in (None, ("order_id",), ()):
        charge_key, ship_key = (compile_key(spec, name) for name in ("shop.charge", "shop.ship"))
        assert charge_key.build(arguments) != ship_key.build(arguments)


@pytest.mark.parametrize("spec", [(), []])
def test_task_wide(spec: object) -> None:
    """B25: an empty sequence is one lock for the task, which is not the same as no key."""
    assert build(spec, 1) == build(spec, 2) == "shop.charge:"
    assert build(None, 1) != build(None, 2)


def test_constants() -> None:
    """B25: a text without fields is a resource that any task may name."""
    assert build("the printer", 1) == "the printer"
    assert build("a {{b}}", 1) == "a {b}"
    assert build(v.Colour.RED, 1) == "red"


def test_callables_get_what_they_ask_for() -> None:
    """A callable receives the arguments it has parameters for; with ``**`` all of them; its text is the resource."""
    assert build(lambda order_id: f"order:{order_id}", 7) == "order:7"
    assert build(lambda **given: "+".join(sorted(given)), 7) == "amount+extra+order_id+region"
    assert build(lambda order_id, sep=":": f"order{sep}{order_id}", 7) == "order:7"
    assert build(lambda *args, region: f"{args}{region}", 7) == "()eu"
    assert build(functools.partial(lambda kind, order_id: f"{kind}:{order_id}", "order"), 7) == "order:7"
    assert type(build(lambda: v.Colour.RED, 7)) is str
    assert build(lambda: v.Colour.RED, 7) == "red"


def _fails(order_id: object) -> str:
    raise RuntimeError(order_id)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (lambda order_id: None, "returned None"),
        (lambda order_id: "", "empty text"),
        (lambda order_id: 7, "returned a value of type int"),
        (lambda order_id: (order_id,), "returned a value of type tuple"),
        (_fails, r"failed \(RuntimeError\)"),
    ],
)
def test_callables_that_give_no_text(spec: object, problem: str) -> None:
    """A callable without an answer is an error, never a shared lock; B47: its message shows no value."""
    with pytest.raises(LockKeyError, match=problem) as caught:
        build(spec, "tok_abc")
    assert caught.value.field == "key"
    assert "tok_abc" not in str(caught.value)


@pytest.mark.parametrize("spec", [None, ("order_id",)])
def test_arguments_without_a_stable_form(spec: object) -> None:
    """B24: an object with its address for a name never gets into a key."""
    with pytest.raises(LockKeyError, match="object has no stable form") as caught:
        build(spec, {"deep": [object()]})
    assert caught.value.field == "order_id.deep[0]"


def test_missing_arguments() -> None:
    """Arguments that were not bound are an error that names the first."""
    with pytest.raises(LockKeyError, match="no such argument"):
        compile_key(("order_id",)).build({})


def test_idempotency_keys_may_be_values_only() -> None:
    """An idempotency key is used beneath the task's name, so that its template needs no text of its own."""
    key = compile_key("{order_id}", option="idempotency_key")
    assert key.build({"order_id": "evt-1"}) == "evt-1"
    with pytest.raises(LockConfigError, match="idempotency_key is empty"):
        compile_key("", option="idempotency_key")


def test_two_processes_agree() -> None:
    """B24: the key is the same where the script itself is ``__main__``, whatever the hash seed."""
    code = (
        "import enum, inspect\n"
        "from celery_singleton_lock.keys.binding import bind\n"
        "from celery_singleton_lock.keys.spec import compile_key\n"
        "class Plain(enum.Enum):\n    RED = 'red'\n"
        "def charge(order_id, region='eu', *, amount=None, **extra): ...\n"
        "arguments = bind(inspect.signature(charge), ({'b', 'a', 'c'},), {'amount': Plain.RED})\n"
        "print(compile_key(None, 'shop.charge').build(arguments))"
    )
    expected = build(None, {"c", "b", "a"}, amount=v.Plain.RED)
    for seed in ("1", "2"):
        assert run_python("-c", code, PYTHONHASHSEED=seed).strip() == expected
