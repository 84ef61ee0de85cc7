"""A module's own server and workers of the app ``life``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..stage import Stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server and the app, without workers."""
    with Stage(tmp_path_factory.mktemp("life"), "life") as stage:
        yield stage
