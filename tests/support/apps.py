"""An app's module, loaded anew for each server that it is to work with, and its end."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Mapping
from types import ModuleType

import pytest
from celery import Celery
from celery.result import AsyncResult

#: Where the tests' apps are.
APPS = "tests.integration.apps"


def load_app(module: str, env: Mapping[str, str]) -> ModuleType:
    """The file ``module`` of `APPS`, its ``app`` new and configured from the variables of ``env``."""
    for stale in [known for known in sys.modules if known.startswith(f"{APPS}.")]:
        del sys.modules[stale]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        loaded = importlib.import_module(f"{APPS}.{module}")
        assert loaded.app.conf.broker_url == env["TEST_BROKER_URL"]  # read now, while the variables are set
    return loaded


def close_app(app: Celery) -> None:
    """Close the app; a result that is still referenced would talk to a server that is gone when it is collected."""
    gc.collect()
    for item in gc.get_objects():
        if type(item) is AsyncResult:
            item.backend = None
    app.close()
