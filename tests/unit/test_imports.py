"""The package's rooms: imports point up the list, never down; servers and Celery are known only where they belong."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import celery_singleton_lock

PACKAGE = "celery_singleton_lock"
ROOT = Path(__file__).parents[2] / PACKAGE

#: From the top: a module may import those above it, and what is in its own room.
ROOMS = [
    "errors",
    "keys",
    "locks",
    "transport",
    "stores",
    "signals",
    "tasks",
    "worker",
    "metrics",
    "contrib",
]

#: Who may know what is not ours: all rooms from the one named on, or that room alone.
_CELERY = set(ROOMS[ROOMS.index("signals") :])
THIRD_PARTIES = {
    "redis": {"transport", "stores"},
    "celery": _CELERY,
    "kombu": _CELERY,
    "billiard": _CELERY,
    "sqlalchemy": {"contrib"},
}

#: What of redis-py a room besides `transport` may know: no connection.
REDIS = ("redis.exceptions.", "redis.crc.")

EXAMPLE = "example_project"
SHOP = f"{EXAMPLE}.shop"
#: What a user imports of the package.
PUBLIC = tuple(f"{PACKAGE}.{name}." for name in (*celery_singleton_lock.__all__, "contrib.sqlalchemy", "signals"))


def imports(source: str, package: str) -> Iterator[str]:
    """The absolute dotted names that ``source``, in ``package``, imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: 1 - node.level or None] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def violations(room: str, source: str, package: str = PACKAGE) -> list[str]:
    """What a module of ``room`` imports and should not."""
    bad = []
    for name in imports(source, package):
        top, *rest = name.split(".")
        if top == PACKAGE:
            if rest[:1] != [room] and not (rest and rest[0] in ROOMS[: ROOMS.index(room)]):
                bad.append(name)
        elif top in sys.stdlib_module_names:
            continue
        elif room not in THIRD_PARTIES.get(top, ()) or (
            top == "redis" and room != "transport" and not name.startswith(REDIS)
        ):
            bad.append(name)
    return bad


MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_up(path: Path) -> None:
    """No module imports what is below it, nor a server or Celery where it should know none."""
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in ROOMS, f"{room} has no place in the order of rooms"
    package = ".".join([PACKAGE, *path.relative_to(ROOT).parts[:-1]])
    assert violations(room, path.read_text(), package) == []


def circles(modules: Mapping[str, set[str]]) -> list[str]:
    """The modules that import themselves, by way of others. ``modules``: what each imports, by dotted names."""
    found = []
    for start in modules:
        seen: set[str] = set()
        todo = set(modules[start])
        while todo:
            seen |= todo
            todo = set().union(*[modules.get(name, set()) for name in todo]) - seen
        if start in seen:
            found.append(start)
    return found


def test_every_room_exists() -> None:
    """The order names no room that is not there."""
    assert [room for room in ROOMS if not (ROOT / room).is_dir() and not (ROOT / f"{room}.py").is_file()] == []


def test_no_circle() -> None:
    """No module imports itself by way of others, not in a function and not for types either."""
    names = {
        ".".join([PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__") for path in MODULES
    }
    modules: dict[str, set[str]] = {}
    for path in MODULES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        own = ".".join([PACKAGE, *parts]).removesuffix(".__init__")
        found = imports(path.read_text(), ".".join([PACKAGE, *parts[:-1]]))
        # ``from x import y``: the module y where there is one, else x.
        modules[own] = {name if name in names else name.rpartition(".")[0] for name in found} & names - {own}
    assert circles(modules) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


SHOP_MODULES = sorted((ROOT.parent / EXAMPLE / "shop").glob("*.py"))


def strangers(source: str) -> list[str]:
    """What a module of the example's shop imports and a user's application would not."""
    return [
        name
        for name in imports(source, SHOP)
        if name.split(".")[0] in (PACKAGE, EXAMPLE) and not f"{name}.".startswith((f"{SHOP}.", *PUBLIC))
    ]


@pytest.mark.parametrize("path", SHOP_MODULES, ids=lambda path: path.name)
def test_the_shop_is_what_a_user_would_write(path: Path) -> None:
    """The example's shop knows the package by its public names, and nothing of the demo around it."""
    assert strangers(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from ..demo import witness",
        f"from {EXAMPLE}.demo.records import Run",
        f"import {EXAMPLE}.demo.witness",
        f"from {PACKAGE} import tasks",
        f"from {PACKAGE}.locks.lease import current_lease",
    ],
)
def test_a_stranger_in_the_shop_is_seen(source: str) -> None:
    """The check above sees the demo and the package's inside."""
    assert len(strangers(source)) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("keys", "from ..locks.guard import Guard"),
        ("keys", "from .. import locks"),
        ("keys", f"import {PACKAGE}.tasks.options"),
        ("keys", f"from {PACKAGE} import single_instance"),
        ("locks", "def f():\n    from ..stores.redis import RedisStore"),
        ("locks", "import redis"),
        ("stores", "from redis.connection import Connection"),
        ("stores", "from kombu import serialization"),
        ("tasks", "from redis.exceptions import RedisError"),
        ("tasks", "from ..worker.startup import StartupChecks"),
        ("locks", "from celery import current_task"),
        ("errors", "from celery.exceptions import Retry"),
        ("tasks", "import somebody_elses"),
    ],
)
def test_a_wrong_import_is_seen(room: str, source: str) -> None:
    """The check above sees an import that is relative, absolute, of a name, in a function, or of an unknown package."""
    assert len(violations(room, source, f"{PACKAGE}.{room}")) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("locks", "import os, threading\nfrom ..keys import names\nfrom .lease import Lease"),
        ("transport", "from redis.connection import Connection\nfrom ..locks.clock import now"),
        ("stores", "from redis.exceptions import RedisError\nfrom ..transport.urls import read"),
        ("tasks", "from celery import Task\nfrom kombu import Connection\nfrom .settings import settings_of"),
        ("contrib", "import sqlalchemy.orm"),
    ],
)
def test_a_right_import_is_let_through(room: str, source: str) -> None:
    """What the order of the rooms allows is no violation."""
    assert violations(room, source, f"{PACKAGE}.{room}") == []


def test_relative_imports_of_a_folder_are_resolved() -> None:
    """Dots are counted from the module's own package."""
    source = "from . import scripts\nfrom ..keys.names import Names\nfrom .redis import RedisStore"
    package = f"{PACKAGE}.stores"
    assert list(imports(source, package)) == [
        f"{package}.scripts",
        f"{PACKAGE}.keys.names.Names",
        f"{package}.redis.RedisStore",
    ]
