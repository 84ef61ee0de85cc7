"""The canonical text of each plain type: what has nothing inside it that could be another value."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from math import isnan
from typing import Any
from uuid import UUID

# ASCII only: a lone surrogate, which JSON can carry, cannot then spoil the text's UTF-8.
json_text = json.JSONEncoder().encode
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)
_NAN = "it is not a number (NaN), which equals nothing, not even itself"


class NoStableForm(Exception):
    """Why a value has no text; ``path`` collects where it is, innermost step first."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []


def int_text(value: int) -> str:
    """The JSON number of an int."""
    try:
        return int.__repr__(value)
    except ValueError:  # Python's own limit on the digits of an int
        raise NoStableForm("the number has too many digits; pass it as text") from None


def _float(value: float) -> str:
    if isnan(value):
        raise NoStableForm(_NAN)
    return f'["float","{float.__repr__(value) if value else "0.0"}"]'


def _decimal(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, str):
        if value.is_nan():
            raise NoStableForm(_NAN)
        return f'["decimal","{"-" if sign else ""}Infinity"]'
    # By hand: normalize() would round to the context's precision.
    text = "".join(map(str, digits))
    short = text.rstrip("0")
    if not short:
        return '["decimal","0"]'
    return f'["decimal","{"-" if sign else ""}{short}e{exponent + len(text) - len(short)}"]'


def _datetime(value: datetime) -> str:
    offset = value.utcoffset()
    if offset is None:
        return f'["datetime","{datetime.isoformat(value)}"]'
    try:
        return f'["datetime","{datetime.isoformat(datetime.astimezone(value, timezone.utc))}"]'
    except OverflowError:  # outside the years 1 to 9999 once in UTC; no astimezone result reads like this
        return f'["datetime",{(datetime.replace(value, tzinfo=None) - _EPOCH - offset) // _MICROSECOND}]'


def _time(value: time) -> str:
    offset = value.utcoffset()
    if offset is None:
        return f'["time","{time.isoformat(value)}"]'
    since = timedelta(0, value.second, value.microsecond, 0, value.minute, value.hour) - offset
    return f'["time",{since // _MICROSECOND}]'  # microseconds since midnight UTC, as Python compares them


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return f'["bytes","{value.hex()}"]'


#: The text of a value by its type. The order counts for a subclass's value: every datetime is a date.
SCALARS: dict[type, Callable[[Any], str]] = {
    str: lambda value: json_text(str.__str__(value)),
    int: int_text,
    bool: lambda value: '["bool",true]' if value else '["bool",false]',
    type(None): lambda _: '["none"]',
    float: _float,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    datetime: _datetime,
    date: lambda value: f'["date","{date.isoformat(value)}"]',
    time: _time,
    timedelta: lambda value: f'["timedelta",{value // _MICROSECOND}]',
    Decimal: _decimal,
    UUID: lambda value: f'["uuid","{UUID.__str__(value)}"]',
}
