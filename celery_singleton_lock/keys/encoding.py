"""One text for one value: the canonical form that keys and fingerprints are made of.

A string is its JSON string and an int its JSON number; everything else is a tagged array. Equal values of one type
have one text and different values have different ones, in every process, whatever the hash seed. Where a message
changes a value, both sides of it share a text:

- a tuple or named tuple is a list; an enum that is also a str, an int or another type below is that plain value;
- a dict's keys are the texts that JSON makes of them, so ``{1: x}`` is ``{"1": x}``, and one dict with both is refused;
- bytes, bytearray and memoryview are one; so are a pydantic model and the dict of its JSON form;
- an aware datetime is its instant; ``fold`` on a naive one is left out, as isoformat leaves it out;
- an object with kombu's ``__json__`` hook is what the hook returns.

JSON cannot carry sets, timedeltas, plain enums and dataclasses at all; pickle brings them back as they were.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag
from math import isnan
from typing import Any

from ..errors import LockKeyError
from .scalars import SCALARS, NoStableForm, int_text, json_text

#: Levels of nesting that a value may have; a container that holds itself ends here.
MAX_DEPTH = 100

_FIELD_NAME = re.compile(r"[A-Za-z][A-Za-z_]{0,29}")


def encode(value: Any, field: str) -> str:
    """The canonical text of ``value``, in ASCII.

    ``field`` names it in the :class:`LockKeyError` that is raised where it, or something inside it, has no stable form.
    """
    kind: type = type(value)
    try:
        if kind is str:  # most arguments are one of these two: three calls less for each
            return json_text(value)
        if kind is int and abs(value) < 2**63:
            return repr(value)
        return _text(value, 0)
    except NoStableForm as error:
        raise LockKeyError(field + "".join(reversed(error.path)), error.problem) from None
    except RecursionError:
        raise LockKeyError(field, _TOO_DEEP) from None


def encode_arguments(arguments: Mapping[str, Any], names: Iterable[str]) -> str:
    """The canonical text of the named arguments, whatever the order of ``names``."""
    return ",".join([f"[{json_text(name)},{encode(arguments[name], name)}]" for name in sorted(names)])


_TOO_DEEP = f"it holds itself, or more than {MAX_DEPTH} levels; name the part that identifies the work"


def _list(value: Iterable[Any], depth: int) -> str:
    return '["list",[' + ",".join(_items(value, depth)) + "]]"


def _set(value: Iterable[Any], depth: int) -> str:
    return '["set",[' + ",".join(sorted(_items(value, depth, "{...}"))) + "]]"


def _items(value: Iterable[Any], depth: int, step: str = "[{}]") -> list[str]:
    texts: list[str] = []
    try:
        for item in value:
            texts.append(_text(item, depth + 1))
    except NoStableForm as error:
        error.path.append(step.replace("{}", str(len(texts))))
        raise
    return texts


def _dict(value: Mapping[Any, Any], depth: int) -> str:
    return '["dict",' + _pairs(value, depth) + "]"


def _pairs(value: Mapping[Any, Any], depth: int) -> str:
    texts: dict[str, str] = {}
    key: Any = None
    try:
        for key, item in value.items():
            texts[_key(key, depth)] = _text(item, depth + 1)
    except NoStableForm as error:
        error.path.append(_step(key, len(texts)))
        raise
    if len(texts) != len(value):
        raise NoStableForm("it has two keys, such as 1 and '1', that are one in a JSON message; use one type of key")
    return "[" + ",".join([f"[{key},{texts[key]}]" for key in sorted(texts)]) + "]"


def _key(key: Any, depth: int) -> str:
    """A dict's key as JSON would write it; one that JSON cannot write as its own text, which is no string."""
    if isinstance(key, str):
        return json_text(str.__str__(key))
    if isinstance(key, int) and not isinstance(key, bool):
        return f'"{int_text(key)}"'
    if isinstance(key, float) and isnan(key):
        raise NoStableForm("it has a key that is not a number (NaN)")
    if key is None or isinstance(key, (bool, float)):
        return f'"{json_text(key)}"'
    return _text(key, depth + 1)


def _step(key: Any, position: int) -> str:
    """Where in a dict: a key that reads like a field's name as it is, any other (a value, maybe a secret) counted."""
    if isinstance(key, str) and _FIELD_NAME.fullmatch(key):
        return f".{key}"
    return f"[key {position + 1}]"


def _model(value: Any, depth: int) -> str:
    try:
        dumped = value.model_dump(mode="json")
        hidden = _hides(dumped, value.model_dump())
    except Exception as error:  # noqa: BLE001  # whatever a user's method raises
        raise NoStableForm(f"{_type(value)} cannot be dumped to JSON ({type(error).__name__})") from None
    if hidden:
        raise NoStableForm(f"{_type(value)} hides a secret in its JSON form, so different values look alike")
    return _text(dumped, depth + 1)


def _hides(dumped: Any, real: Any) -> bool:
    """Whether the JSON form shows only a mask where the model has a pydantic SecretStr, SecretBytes or Secret."""
    if hasattr(type(real), "get_secret_value"):
        return bool(dumped == str(real))
    if isinstance(real, dict) and isinstance(dumped, dict):
        return any(map(_hides, dumped.values(), real.values()))
    if isinstance(real, (list, tuple, set, frozenset)) and isinstance(dumped, list):
        return any(map(_hides, dumped, real))
    return False


def _hook(value: Any, depth: int) -> str:
    try:
        plain = value.__json__()
    except Exception as error:  # noqa: BLE001  # whatever a user's method raises
        raise NoStableForm(f"{_type(value)}.__json__ failed ({type(error).__name__})") from None
    return _text(plain, depth + 1)


def _enum(value: Enum, depth: int) -> str:
    # A flag's composite has a name on some versions of Python only.
    member = _text(value.value, depth + 1) if isinstance(value, Flag) else json_text(value.name)
    return f'["enum",{json_text(_type(value))},{member}]'


def _dataclass(value: Any, depth: int) -> str:
    compared = {}
    for field in dataclasses.fields(value):
        if field.compare:
            if not hasattr(value, field.name):
                raise NoStableForm(f"{_type(value)} has no value for its field {field.name}")
            compared[field.name] = getattr(value, field.name)
    return f'["dataclass",{json_text(_type(value))},{_pairs(compared, depth)}]'


def _type(value: object) -> str:
    # Without the module, which is __main__ in one process and not in another.
    return type(value).__qualname__


_CONTAINERS: dict[type, Callable[[Any, int], str]] = {
    list: _list,
    tuple: _list,
    dict: _dict,
    set: _set,
    frozenset: _set,
}
# What JSON takes by itself, before it asks for a hook.
_NATIVE: tuple[type, ...] = (str, int, float, list, tuple, dict)


def _text(value: Any, depth: int) -> str:
    scalar = SCALARS.get(type(value))
    if scalar is not None:
        return scalar(value)
    if depth >= MAX_DEPTH:
        raise NoStableForm(_TOO_DEEP)
    container = _CONTAINERS.get(type(value))
    return _other(value, depth) if container is None else container(value, depth)


def _other(value: Any, depth: int) -> str:
    """The text of a subclass, asked for in the order of kombu's JSON; of a hook, a model, an enum or a dataclass."""
    if isinstance(value, _NATIVE):
        return _base(value, depth)
    if hasattr(type(value), "__json__"):
        return _hook(value, depth)
    if hasattr(type(value), "model_dump"):
        return _model(value, depth)
    if isinstance(value, (*SCALARS, *_CONTAINERS)):
        return _base(value, depth)
    if isinstance(value, Enum):
        return _enum(value, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, depth)
    raise NoStableForm(
        f"a value of type {_type(value)} has no stable form; pass something that is the same in every process, "
        "such as its id, or leave it out of the key"
    )


def _base(value: Any, depth: int) -> str:
    """The text of a subclass's value as that of the plain type beneath it."""
    for base, scalar in SCALARS.items():
        if isinstance(value, base):
            return scalar(value)
    return next(container(value, depth) for base, container in _CONTAINERS.items() if isinstance(value, base))
