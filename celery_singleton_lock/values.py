"""Checks of single values that users give: each returns the value as the package keeps it, or says what to change."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from .errors import LockConfigError

Check = Callable[[str, Any], Any]


def seconds(name: str, value: Any, *, least: float = 0.0, most: float = math.inf) -> float:
    """``value`` (int, float or timedelta) as seconds. Raises `LockConfigError` that names the option and its range."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LockConfigError(f"{name}: give seconds as a number or a timedelta, not {type(value).__name__}")
    try:
        length = float(value)
    except OverflowError:
        length = math.inf
    if not math.isfinite(length) or not least <= length <= most:
        upper = "" if math.isinf(most) else f" and at most {most:g} s"
        raise LockConfigError(f"{name}: {value!r} is out of range; give at least {least:g} s{upper}")
    return length


def positive_seconds(name: str, value: Any) -> float:
    """``value`` (int, float or timedelta) as seconds, a millisecond at least. Raises `LockConfigError`."""
    return seconds(name, value, least=0.001)


def optional(check: Check) -> Check:
    """``check``, which lets None through."""
    return lambda name, value: None if value is None else check(name, value)


def count(name: str, value: Any) -> int:
    """``value`` (an int of 0 or more). Raises `LockConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LockConfigError(f"{name}: give a whole number of 0 or more")
    return value


def flag(name: str, value: Any) -> bool:
    """``value`` (a bool). Raises `LockConfigError`."""
    if not isinstance(value, bool):
        raise LockConfigError(f"{name}: give True or False, not {type(value).__name__}")
    return value


def one_of(*choices: str) -> Check:
    """A check for one of ``choices``."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            found = repr(value) if isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
            raise LockConfigError(f"{name}: {found} is not one of {', '.join(map(repr, choices))}")
        return value

    return check


def as_it_is(_name: str, value: Any) -> Any:
    """``value``, whatever it is."""
    return value
