"""Lengths of time, and the checks of what users give: a check returns the value as the package keeps it.

Each check takes the value's name, as its user knows it, and raises `LockConfigError`, which says what to change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..errors import LockConfigError

MIN_TTL = 0.05
MAX_TTL = 24 * 3600.0
#: What ``singleton_lock_timeout`` is by default: the bound of a call, in seconds.
DEFAULT_TIMEOUT = 1.0
#: How long a resource's last fencing token is remembered after its last use, in seconds.
FENCE_TTL = 7 * 24 * 3600.0

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


def count(name: str, value: Any, hint: str = "") -> int:
    """``value`` (an int of 0 or more). Raises `LockConfigError`, which ends with ``hint``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LockConfigError(f"{name}: give a whole number of 0 or more{hint}")
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


def ttl_seconds(name: str, value: object) -> float:
    """A lease's length (int, float or timedelta) as seconds. Raises `LockConfigError`."""
    return seconds(name, value, least=MIN_TTL, most=MAX_TTL)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """``ttl``, ``at_least``, ``max_hold``: float seconds; what each means stands in docs/options.md."""

    ttl: float = 30.0
    at_least: float = 0.0
    max_hold: float | None = None

    def check_ranges(self) -> None:
        """Raise `LockConfigError` where one length contradicts another."""
        if self.at_least > self.ttl:
            raise LockConfigError(
                f"at_least: {self.at_least:g} s is longer than ttl, {self.ttl:g} s; raise ttl or lower at_least"
            )
        if self.max_hold is not None and self.max_hold < self.ttl:
            raise LockConfigError(
                f"max_hold: {self.max_hold:g} s is shorter than ttl, {self.ttl:g} s; lower ttl or raise max_hold"
            )


#: The check of each length by its name.
TERM_CHECKS: dict[str, Check] = {"ttl": ttl_seconds, "at_least": seconds, "max_hold": optional(positive_seconds)}


def tombstone_ttl(ttl: float) -> float:
    """How long (seconds) the token of an unanswered request for a lease of ``ttl`` can take nothing."""
    return max(4 * ttl, 60.0)


def call_timeout(timeout: float, ttl: float) -> float:
    """The bound (seconds) of one call for a lease of ``ttl``: never more than a quarter of it."""
    return min(timeout, ttl / 4)
