"""The checked options of one task."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from .errors import LockConfigError

MIN_TTL = 0.05
MAX_TTL = 24 * 3600.0


class _DefaultResult:
    """The default of ``skip_result``: the marker dict, made per skip."""

    def __repr__(self) -> str:
        return "the skip marker"


DEFAULT_RESULT = _DefaultResult()


@dataclass(frozen=True, slots=True)
class LockOptions:
    """What one task asks for. Durations are float seconds; the meaning of each stands in docs/options.md."""

    key: Any = None
    ttl: float = 30.0
    at_least: float = 0.0
    max_hold: float | None = None
    on_conflict: str = "retry"
    retry_backoff: float = 1.0
    retry_backoff_max: float = 60.0
    retry_jitter: bool = True
    retry_limit: int | None = None
    retry_timeout: float | None = None
    wait_timeout: float = 10.0
    skip_result: Any = DEFAULT_RESULT
    idempotency_key: Any = None
    idempotency_ttl: float | None = None
    idempotency_max_bytes: int = 64 * 1024
    on_unavailable: str = "retry"
    on_lost: str = "warn"
    enabled: bool = True


DEFAULTS = LockOptions()
NAMES = tuple(field.name for field in fields(LockOptions))

#: What is to come, by option: the whole option where there are no values.
_LATER: dict[str, tuple[str, ...]] = {"limit": (), "on_conflict": ("queue",)}

#: Names of other plugins' options that users bring along, and what they are called here.
FOREIGN = {"expiry": "ttl", "lock_expiry": "ttl", "timeout": "ttl", "expire": "ttl"}


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


def _optional(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _above_zero(name: str, value: Any) -> float:
    return seconds(name, value, least=0.001)


def _backoff(name: str, value: Any) -> float:
    return 1.0 if value is True else _above_zero(name, value)  # True means one second, as in Celery's own option


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LockConfigError(f"{name}: give a whole number of 0 or more, or None for no limit")
    return value


def flag(name: str, value: Any) -> bool:
    """``value`` (a bool). Raises `LockConfigError`."""
    if not isinstance(value, bool):
        raise LockConfigError(f"{name}: give True or False, not {type(value).__name__}")
    return value


def _one_of(*choices: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise LockConfigError(f"{name}: {_shown(value)} is not one of {', '.join(map(repr, choices))}")
        return value

    return check


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, (str, int, float)) else f"a {type(value).__name__}"


def _as_it_is(name: str, value: Any) -> Any:
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "key": _as_it_is,
    "ttl": lambda name, value: seconds(name, value, least=MIN_TTL, most=MAX_TTL),
    "at_least": seconds,
    "max_hold": _optional(_above_zero),
    "on_conflict": _one_of("retry", "skip", "wait", "raise"),
    "retry_backoff": _backoff,
    "retry_backoff_max": _above_zero,
    "retry_jitter": flag,
    "retry_limit": _optional(_count),
    "retry_timeout": _optional(seconds),
    "wait_timeout": seconds,
    "skip_result": _as_it_is,
    "idempotency_key": _as_it_is,
    "idempotency_ttl": _optional(_above_zero),
    "idempotency_max_bytes": _count,
    "on_unavailable": _one_of("retry", "raise", "run"),
    "on_lost": _one_of("warn", "abort"),
    "enabled": flag,
}


def check_options(given: Mapping[str, Any], *, spelt: Callable[[str], str] = str) -> dict[str, Any]:
    """The checked values of one layer of options.

    ``spelt`` gives an option's name as this layer's user wrote it. Raises `LockConfigError` for an unknown name (it
    offers the closest right one) or a bad value.
    """
    checked = {}
    for name, value in given.items():
        check = _CHECKS.get(name)
        later = _LATER.get(name)
        if later is not None and (not later or value in later):
            raise LockConfigError(f"{spelt(name)}{f'={value!r}' if later else ''} is not supported yet")
        if check is None:
            raise unknown(spelt(name), map(spelt, NAMES), spelt(FOREIGN[name]) if name in FOREIGN else None)
        checked[name] = check(spelt(name), value)
    return checked


def unknown(name: str, known: Iterable[str], better: str | None = None) -> LockConfigError:
    """The error for a name that is none of ``known``."""
    known = list(known)
    bare = name.removeprefix("lock_")
    better = better or (bare if bare in known else None)
    close = [better] if better else difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    return LockConfigError(f"unknown option {name!r}; {hint}")


def combine(*layers: Mapping[str, Any]) -> LockOptions:
    """One task's options from its layers of checked values, the strongest first, over the built-in defaults."""
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged.update(layer)
    options = replace(DEFAULTS, **merged)
    _check_ranges(options)
    return options


def _check_ranges(options: LockOptions) -> None:
    if options.at_least > options.ttl:
        raise LockConfigError(
            f"at_least: {options.at_least:g} s is longer than ttl, {options.ttl:g} s; raise ttl or lower at_least"
        )
    if options.max_hold is not None and options.max_hold < options.ttl:
        raise LockConfigError(
            f"max_hold: {options.max_hold:g} s is shorter than ttl, {options.ttl:g} s; lower ttl or raise max_hold"
        )
    if options.retry_backoff > options.retry_backoff_max:
        raise LockConfigError(
            f"retry_backoff: {options.retry_backoff:g} s is longer than retry_backoff_max, "
            f"{options.retry_backoff_max:g} s; lower retry_backoff or raise retry_backoff_max"
        )


#: An option that a task names has no effect unless another one has one of these values.
_ONLY_WITH: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("wait_timeout", "on_conflict", ("wait",)),
    ("skip_result", "on_conflict", ("skip",)),
)


def check_contradictions(named: Mapping[str, Any], options: LockOptions) -> None:
    """Refuse what a task itself names and what can have no effect beside its other options.

    ``named``: the options that the task names, without app-wide defaults. Raises `LockConfigError`.
    """
    for name, other, values in _ONLY_WITH:
        if name in named and getattr(options, other) not in values:
            raise LockConfigError(
                f"{name}: has no effect with {other}={getattr(options, other)!r}; "
                f"remove it, or set {other}={values[0]!r}"
            )
    if options.idempotency_key is False:
        for name in ("idempotency_ttl", "idempotency_max_bytes"):
            if name in named:
                raise LockConfigError(f"{name}: has no effect with idempotency_key=False; remove one of the two")
