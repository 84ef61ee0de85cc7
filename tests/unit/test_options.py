"""Options: values are checked where they are written, and each refusal names the option and what to change."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from celery_singleton_lock import LockConfigError, single_instance
from celery_singleton_lock.tasks.options import (
    DEFAULTS,
    NAMES,
    LockOptions,
    check_contradictions,
    check_options,
    combine,
)

INF, NAN = math.inf, math.nan


def options(**given: Any) -> LockOptions:
    """What a task's own options come to, checked as `LockedTask` checks them."""
    merged = combine(check_options(given))
    check_contradictions(given, merged)
    return merged


def refusal(**given: Any) -> str:
    """The text with which options are refused."""
    with pytest.raises(LockConfigError) as caught:
        options(**given)
    return str(caught.value)


def test_defaults_are_documented_values() -> None:
    """What a task gets that says nothing is what README's table says."""
    assert (DEFAULTS.key, DEFAULTS.ttl, DEFAULTS.at_least, DEFAULTS.max_hold) == (None, 30.0, 0.0, None)
    assert (DEFAULTS.on_conflict, DEFAULTS.on_unavailable, DEFAULTS.on_lost) == ("retry", "retry", "warn")
    assert (DEFAULTS.retry_backoff, DEFAULTS.retry_backoff_max, DEFAULTS.retry_jitter) == (1.0, 60.0, True)
    assert (DEFAULTS.retry_limit, DEFAULTS.retry_timeout, DEFAULTS.wait_timeout) == (None, None, 10.0)
    assert (DEFAULTS.idempotency_key, DEFAULTS.idempotency_ttl) == (None, None)
    assert (DEFAULTS.idempotency_max_bytes, DEFAULTS.enabled) == (65536, True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1, 1.0), (0.4, 0.4), (1.5, 1.5), (0.05, 0.05), (86400, 86400.0), (timedelta(minutes=2), 120.0)],
)
def test_ttl_takes_numbers_and_timedeltas(value: Any, seconds: float) -> None:
    """A ttl is a number of seconds or a timedelta, from 50 ms to a day, and is kept exactly (B41)."""
    assert options(ttl=value).ttl == seconds
    assert type(options(ttl=value).ttl) is float


@pytest.mark.parametrize(
    "value",
    [0, -1, NAN, INF, -INF, 1e9, 0.01, 86400.1, 10**400, timedelta(0), timedelta(days=2)],
    ids=lambda value: repr(value)[:12],
)
def test_ttl_out_of_range(value: Any) -> None:
    """A ttl that is no time, or no sensible one, is refused with the range (B41)."""
    assert refusal(ttl=value).startswith("ttl: ")
    assert "at least 0.05 s and at most 86400 s" in refusal(ttl=value)


@pytest.mark.parametrize("value", ["30", True, None, b"30", [30], object()])
def test_ttl_of_the_wrong_type(value: Any) -> None:
    """A ttl of another type is refused; True is not one second and "30" is not parsed (B41)."""
    assert refusal(ttl=value) == f"ttl: give seconds as a number or a timedelta, not {type(value).__name__}"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"at_least": -1}, "at_least"),
        ({"at_least": NAN}, "at_least"),
        ({"at_least": "5"}, "at_least"),
        ({"max_hold": 0}, "max_hold"),
        ({"max_hold": True}, "max_hold"),
        ({"on_conflict": "ignore"}, "on_conflict"),
        ({"on_conflict": None}, "on_conflict"),
        ({"on_conflict": ["retry"]}, "on_conflict"),
        ({"on_unavailable": "skip"}, "on_unavailable"),
        ({"on_lost": "ignore"}, "on_lost"),
        ({"retry_backoff": 0}, "retry_backoff"),
        ({"retry_backoff": False}, "retry_backoff"),
        ({"retry_backoff": "2"}, "retry_backoff"),
        ({"retry_backoff_max": 0}, "retry_backoff_max"),
        ({"retry_backoff_max": True}, "retry_backoff_max"),
        ({"retry_jitter": 1}, "retry_jitter"),
        ({"retry_jitter": "yes"}, "retry_jitter"),
        ({"retry_limit": -1}, "retry_limit"),
        ({"retry_limit": 1.5}, "retry_limit"),
        ({"retry_limit": True}, "retry_limit"),
        ({"retry_timeout": -1}, "retry_timeout"),
        ({"retry_timeout": INF}, "retry_timeout"),
        ({"wait_timeout": None, "on_conflict": "wait"}, "wait_timeout"),
        ({"wait_timeout": -0.1, "on_conflict": "wait"}, "wait_timeout"),
        ({"idempotency_ttl": 0}, "idempotency_ttl"),
        ({"idempotency_max_bytes": -1}, "idempotency_max_bytes"),
        ({"idempotency_max_bytes": 1.5}, "idempotency_max_bytes"),
        ({"enabled": 0}, "enabled"),
        ({"enabled": "no"}, "enabled"),
    ],
    ids=str,
)
def test_bad_values_name_their_option(given: dict[str, Any], named: str) -> None:
    """Every bad value is refused with the name of its option in front (B25, B41)."""
    assert refusal(**given).startswith(f"{named}: ")


def test_choices_are_listed() -> None:
    """A word that is none of the choices is answered with the choices."""
    assert refusal(on_conflict="ignore") == "on_conflict: 'ignore' is not one of 'retry', 'skip', 'wait', 'raise'"


def test_options_that_are_to_come() -> None:
    """What is known and not there yet is not taken for a slip."""
    assert refusal(limit=3) == "limit is not supported yet"
    assert refusal(on_conflict="queue") == "on_conflict='queue' is not supported yet"


def test_values_of_strange_types_are_not_shown() -> None:
    """An error shows the type of what is no plain word, not its repr, which may hold secrets (B47)."""
    assert "hunter2" not in refusal(on_conflict=["hunter2"])


@pytest.mark.parametrize(
    ("given", "closest"),
    [("keyy", "key"), ("on_conflicts", "on_conflict"), ("tll", "ttl"), ("retry_backof", "retry_backoff")],
)
def test_unknown_option_offers_the_closest(given: str, closest: str) -> None:
    """A misspelt option is refused with the closest right one (B25)."""
    assert refusal(**{given: 1}) == f"unknown option {given!r}; did you mean {closest!r}?"


@pytest.mark.parametrize("given", ["expiry", "lock_expiry", "timeout", "expire"])
def test_foreign_words_for_ttl(given: str) -> None:
    """The words that other plugins have for it are answered with ttl (B25)."""
    assert refusal(**{given: 30}) == f"unknown option {given!r}; did you mean 'ttl'?"


def test_unknown_option_like_nothing_lists_all() -> None:
    """An option like none of ours is answered with the whole list."""
    assert refusal(zzz=1) == f"unknown option 'zzz'; there are {', '.join(NAMES)}"


def test_decorator_refuses_at_import() -> None:
    """What is wrong by itself is refused where the decorator stands, before any task is made (B25)."""
    with pytest.raises(LockConfigError, match=r"^unknown option 'keyy'; did you mean 'key'\?"):
        single_instance(keyy="order:{order_id}")
    with pytest.raises(LockConfigError, match=r"^ttl: give seconds"):
        single_instance(ttl="30")


def test_retry_backoff_true_is_one_second() -> None:
    """`retry_backoff=True` means a second, as in Celery's own option."""
    assert options(retry_backoff=True).retry_backoff == 1.0


def test_no_limit_is_none_and_zero_is_zero() -> None:
    """`retry_limit=None` means no limit; 0 means that nothing is sent again (B05)."""
    assert options(retry_limit=None).retry_limit is None
    assert options(retry_limit=0).retry_limit == 0


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"at_least": 31}, ("at_least", "ttl")),
        ({"at_least": 5, "ttl": 2}, ("at_least", "ttl")),
        ({"max_hold": 29}, ("max_hold", "ttl")),
        ({"retry_backoff": 61}, ("retry_backoff", "retry_backoff_max")),
        ({"wait_timeout": 3}, ("wait_timeout", "on_conflict")),
        ({"wait_timeout": 3, "on_conflict": "skip"}, ("wait_timeout", "on_conflict")),
        ({"skip_result": 0}, ("skip_result", "on_conflict")),
        ({"skip_result": None, "on_conflict": "raise"}, ("skip_result", "on_conflict")),
        ({"idempotency_key": False, "idempotency_ttl": 60}, ("idempotency_ttl", "idempotency_key")),
        ({"idempotency_key": False, "idempotency_max_bytes": 60}, ("idempotency_max_bytes", "idempotency_key")),
    ],
    ids=str,
)
def test_contradictions_name_both(given: dict[str, Any], names: tuple[str, str]) -> None:
    """Two options that cannot both be meant are refused, and both are named (B25)."""
    text = refusal(**given)
    assert text.startswith(f"{names[0]}: ")
    assert names[1] in text


@pytest.mark.parametrize(
    "given",
    [
        {"at_least": 30},
        {"at_least": 60, "ttl": 60},
        {"max_hold": 30},
        {"retry_backoff": 60},
        {"wait_timeout": 3, "on_conflict": "wait"},
        {"skip_result": None, "on_conflict": "skip"},
        {"retry_limit": 3, "retry_timeout": 60},
        {"idempotency_key": "{event_id}", "idempotency_ttl": 60, "idempotency_max_bytes": 0},
        {"on_unavailable": "run", "on_conflict": "skip"},
        {"on_lost": "abort"},
    ],
    ids=str,
)
def test_what_goes_together(given: dict[str, Any]) -> None:
    """The edges of a range, and options that help each other, are taken."""
    assert options(**given) == LockOptions(**{**given, **check_options(given)})


def test_limits_bound_waits_for_a_store_that_is_out_of_reach() -> None:
    """`retry_limit` beside "skip" is no contradiction: waits for the lock servers count as lock waits."""
    assert options(on_conflict="skip", retry_limit=3, retry_timeout=60).retry_limit == 3


def test_the_strongest_layer_wins() -> None:
    """Layers are combined option by option, the first one wins."""
    merged = combine({"ttl": 1.0}, {"ttl": 2.0, "at_least": 0.5}, {"on_conflict": "skip", "ttl": 3.0})
    assert (merged.ttl, merged.at_least, merged.on_conflict, merged.retry_limit) == (1.0, 0.5, "skip", None)


def test_layers_may_contradict_each_other() -> None:
    """A range is checked on what the layers come to, not on each alone."""
    with pytest.raises(LockConfigError, match=r"^at_least: 5 s is longer than ttl, 2 s"):
        combine({"ttl": 2.0}, {"at_least": 5.0, "ttl": 10.0})


def test_app_wide_defaults_contradict_nothing() -> None:
    """A default for the whole app may be of no use to one task; only what the task itself names is looked at."""
    check_contradictions({"on_conflict": "skip"}, combine({"on_conflict": "skip"}, {"wait_timeout": 3.0}))


def test_attribute_spelling() -> None:
    """The attribute's spelling in the decorator gets the option's."""
    with pytest.raises(LockConfigError, match="did you mean 'ttl'"):
        single_instance(lock_ttl=5)
