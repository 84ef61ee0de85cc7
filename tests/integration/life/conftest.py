"""A key for each test, and a module's own server and workers."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from .life import Life


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return uuid4().hex


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """A server and the app, without workers."""
    life = Life(tmp_path_factory.mktemp("life"))
    yield life
    life.close()
