"""The checked options of one task."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from ..errors import LockConfigError
from ..locks import terms


class _DefaultResult:
    """The default of ``skip_result``: the marker dict, made per skip."""

    def __repr__(self) -> str:
        return "the skip marker"


DEFAULT_RESULT = _DefaultResult()


@dataclass(frozen=True, slots=True)
class LockOptions(terms.LeaseTerms):
    """What one task asks for. Durations are float seconds; the meaning of each stands in docs/options.md."""

    key: Any = None
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

ATTRIBUTE_PREFIX = "lock_"
#: An attribute of the classes on which every name that begins with ``lock_`` is an option.
RESERVES_PREFIX = "_singleton_lock_reserves_prefix"
#: The attributes that ask for a lock.
LOCK_ATTRIBUTES = {ATTRIBUTE_PREFIX + name for name in NAMES}
#: An attribute of celery-singleton that has no effect here.
_MISNAMED = ATTRIBUTE_PREFIX + "expiry"
READ_ATTRIBUTES = LOCK_ATTRIBUTES | {_MISNAMED}
#: What is to come, by option: the whole option where there are no values.
_LATER: dict[str, tuple[str, ...]] = {"limit": (), "on_conflict": ("queue",)}

#: Names of other plugins' options that users bring along, and what they are called here.
OTHER_PLUGINS_OPTIONS = {"expiry": "ttl", "lock_expiry": "ttl", "timeout": "ttl", "expire": "ttl"}


def _backoff(name: str, value: Any) -> float:
    return (
        1.0 if value is True else terms.positive_seconds(name, value)
    )  # True means one second, as in Celery's own option


_CHECKS: dict[str, terms.Check] = {
    **terms.TERM_CHECKS,
    "key": terms.as_it_is,
    "on_conflict": terms.one_of("retry", "skip", "wait", "raise"),
    "retry_backoff": _backoff,
    "retry_backoff_max": terms.positive_seconds,
    "retry_jitter": terms.flag,
    "retry_limit": terms.optional(partial(terms.count, hint=", or None for no limit")),
    "retry_timeout": terms.optional(terms.seconds),
    "wait_timeout": terms.seconds,
    "skip_result": terms.as_it_is,
    "idempotency_key": terms.as_it_is,
    "idempotency_ttl": terms.optional(terms.positive_seconds),
    "idempotency_max_bytes": terms.count,
    "on_unavailable": terms.one_of("retry", "raise", "run"),
    "on_lost": terms.one_of("warn", "abort"),
    "enabled": terms.flag,
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
            raise unknown(
                spelt(name),
                map(spelt, NAMES),
                spelt(OTHER_PLUGINS_OPTIONS[name]) if name in OTHER_PLUGINS_OPTIONS else None,
            )
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


def attribute_options(namespace: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The checked ``lock_*`` options of a class body or of annotations. Raises `LockConfigError`."""
    cut = len(ATTRIBUTE_PREFIX)
    given = {name[cut:]: value for name, value in namespace.items() if name.startswith(ATTRIBUTE_PREFIX)}
    if given.pop("expiry", terms) is not terms:  # given, whatever the value
        warnings.warn(f"{where}: {_MISNAMED} has no effect; set {ATTRIBUTE_PREFIX}ttl", stacklevel=4)
    try:
        return check_options(given, spelt=lambda name: ATTRIBUTE_PREFIX + name)
    except LockConfigError as error:
        raise LockConfigError(f"{where}: {error}") from None


def combine(*layers: Mapping[str, Any]) -> LockOptions:
    """One task's options from its layers of checked values, the strongest first, over the built-in defaults."""
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged.update(layer)
    options = replace(DEFAULTS, **merged)
    options.check_ranges()
    if options.retry_backoff > options.retry_backoff_max:
        raise LockConfigError(
            f"retry_backoff: {options.retry_backoff:g} s is longer than retry_backoff_max, "
            f"{options.retry_backoff_max:g} s; lower retry_backoff or raise retry_backoff_max"
        )
    return options


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
