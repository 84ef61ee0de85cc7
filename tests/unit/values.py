"""Values for the tests of keys: strategies, a second opinion on which of them are the same, and trips by message."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, auto
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from kombu.serialization import dumps, loads
from pydantic import BaseModel


class Colour(str, Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Share(float, Enum):
    HALF = 0.5


class Tag(bytes, Enum):
    A = b"a"


class Plain(Enum):
    RED = "red"
    ALIAS = "red"  # noqa: PIE796
    BLUE = "blue"


class Rights(Flag):
    READ = auto()
    WRITE = auto()


class Point(NamedTuple):
    x: int
    y: int


class Text(str):
    pass


class Number(int):
    pass


@dataclasses.dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str = "EUR"
    note: str = dataclasses.field(default="", compare=False)


class Address(BaseModel):
    city: str
    zip_code: str = "0000"


class Order(BaseModel):
    id: int
    placed: date = date(2024, 1, 2)
    address: Address | None = None


class Hooked:
    def __init__(self, number: int) -> None:
        self.number = number

    def __json__(self) -> dict[str, int]:
        return {"number": self.number}


def by_message(value: object, serializer: str = "json") -> Any:
    """The value as a worker gets it."""
    content_type, encoding, body = dumps(value, serializer=serializer)
    return loads(body, content_type, encoding, accept=["application/json", "application/x-python-serialize"])


zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
aware = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)
decimals = st.decimals(allow_nan=False) | st.sampled_from([Decimal(text) for text in ("1", "1.0", "10", "1e1", "-0")])

# Few distinct values, so that equal ones and near misses come up often.
collisions: st.SearchStrategy[Any] = (
    st.sampled_from([0, 1, -1, True, False, None, 0.0, -0.0, 1.0, b"", b"1"])
    | st.sampled_from(
        ["", "0", "1", "-1", "true", "none", "[", '"', '["none"]', Decimal("1"), Decimal("1.0"), date(2024, 1, 1)]
    )
    | st.sampled_from([datetime(2024, 1, 1), UUID(int=1), timedelta(0), time(0), "2024-01-01"])
)
json_scalars: st.SearchStrategy[Any] = (
    collisions.filter(lambda value: type(value) is not timedelta)
    | st.text(max_size=5)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.binary(max_size=5)
    | decimals
    | aware
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.uuids()
    | st.sampled_from([Colour.RED, Level.HIGH, Share.HALF, Tag.A, Point(1, 2), Text("t"), Number(5)])
)
dict_keys = st.text(max_size=3) | st.sampled_from(["1", "true", "a", 'a"', "\u00e9"])
other_keys = st.integers(-2, 2) | st.booleans() | st.none() | st.sampled_from([0.5, Colour.RED, Level.HIGH])


def nested(scalars: st.SearchStrategy[Any], keys: st.SearchStrategy[Any] = dict_keys) -> st.SearchStrategy[Any]:
    """Scalars in lists, tuples and dicts."""
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=6,
    )


json_values = nested(json_scalars)
pickle_values = nested(
    json_scalars
    | st.timedeltas()
    | st.sets(collisions, max_size=3)
    | st.frozensets(collisions, max_size=3)
    | st.sampled_from([Plain.RED, Plain.BLUE, Rights.READ | Rights.WRITE, Money(Decimal("1.50")), Order(id=1)]),
)


def normal(value: Any) -> Any:
    """What two values share exactly when they are the same: written for plainness, not for speed."""
    if isinstance(value, (list, tuple)):
        return "list", tuple(map(normal, value))
    if isinstance(value, (set, frozenset)):
        return "set", frozenset(map(normal, value))
    if isinstance(value, dict):
        return "dict", frozenset((key, normal(item)) for key, item in value.items())
    if isinstance(value, datetime):
        return "datetime", value.tzinfo is not None, value.astimezone(timezone.utc) if value.tzinfo else value
    if dataclasses.is_dataclass(value):
        return type(value), value
    plain: type[Any]
    for plain in (bool, str, int, float, bytes):
        if isinstance(value, plain):
            return plain, plain(value.value if isinstance(value, Enum) else value)
    return type(value), value
