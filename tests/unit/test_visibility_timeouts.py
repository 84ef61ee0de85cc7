"""The package's table of the brokers that deliver again after a time, against kombu's own defaults."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from kombu.transport.redis import Channel

from celery_singleton_lock.tasks.settings import VISIBILITY_TIMEOUTS


@pytest.mark.parametrize("scheme", ["redis", "rediss", "sentinel", "redis+socket"])
def test_redis(scheme: str) -> None:
    """A Redis broker's default is what kombu's transport has."""
    assert VISIBILITY_TIMEOUTS[scheme] == Channel.visibility_timeout


def test_sqs() -> None:
    """So is that of SQS, read from its source: the transport cannot be imported without boto3."""
    source = getattr(importlib.util.find_spec("kombu.transport.SQS"), "origin", None)
    tree = ast.parse(Path(source or "there is no such module").read_text())
    found = [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and [target.id for target in node.targets if isinstance(target, ast.Name)] == ["default_visibility_timeout"]
    ]
    assert found == [VISIBILITY_TIMEOUTS["sqs"]]
