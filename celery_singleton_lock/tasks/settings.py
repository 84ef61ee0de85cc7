"""The app's ``singleton_lock_*`` settings: the only reader of ``app.conf``."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.local import Proxy
from kombu.serialization import dumps, loads, prepare_accept_content

from ..errors import LockConfigError
from ..keys.names import DEFAULT_PREFIX
from ..locks.protocol import Store
from ..locks.records import Encoded
from ..locks.terms import DEFAULT_TIMEOUT, flag, seconds
from ..stores import open_store
from .broker_url import is_lock_server, lock_url
from .options import NAMES, OTHER_PLUGINS_OPTIONS, check_options, unknown

logger = logging.getLogger(__name__)

PREFIX = "singleton_lock_"
_CONNECTION = ("url", "timeout", "prefix", "min_replicas", "free_killed", "strict_checks")

#: Transports of which a message comes again when it is not acknowledged in time, with kombu's own default (seconds).
VISIBILITY_TIMEOUTS = {"redis": 3600.0, "rediss": 3600.0, "sentinel": 3600.0, "redis+socket": 3600.0, "sqs": 1800.0}


class LockSettings:
    """What one app's configuration says about locks, checked once. Raises `LockConfigError`."""

    def __init__(self, app: Celery) -> None:
        app.conf.get("broker_url")  # a configuration that is still pending knows no namespace
        self._conf = app.conf
        given = dict(_given(self._conf))
        if "key" in given:
            raise LockConfigError(f"{PREFIX}key cannot be set for a whole app; set it per task")
        for name in set(given) - {*NAMES, *_CONNECTION}:
            if name in OTHER_PLUGINS_OPTIONS:
                better = PREFIX + OTHER_PLUGINS_OPTIONS[name]
                warnings.warn(f"{PREFIX}{name} has no effect here; set {better}", stacklevel=2)
                del given[name]
        self.url: str | Sequence[str] | None = given.pop("url", None)
        self.prefix: str = given.pop("prefix", DEFAULT_PREFIX)
        self.timeout = seconds(f"{PREFIX}timeout", given.pop("timeout", DEFAULT_TIMEOUT), least=0.01, most=60.0)
        self.min_replicas: int = given.pop("min_replicas", 0)
        #: Whether what a worker's start-up checks find keeps it from starting.
        self.strict_checks = flag(f"{PREFIX}strict_checks", given.pop("strict_checks", False))
        #: Whether a worker's parent process frees the lock of a child that was killed.
        self.free_killed = flag(f"{PREFIX}free_killed", given.pop("free_killed", True))
        known = [PREFIX + name for name in (*NAMES, *_CONNECTION)]
        for name in given:
            if name not in NAMES:
                raise unknown(PREFIX + name, known)
        #: The app's own defaults of task options, checked.
        self.options = check_options(given, spelt=lambda name: PREFIX + name)
        self._opening = threading.Lock()

    @cached_property
    def store(self) -> Store:
        """The app's store, opened on first use."""
        with self._opening:
            url, source = self._locate()
            try:
                store = open_store(url, prefix=self.prefix, timeout=self.timeout, min_replicas=self.min_replicas)
            except LockConfigError as error:
                if source is None or not error.problem.startswith("singleton_lock_url: "):
                    raise
                problem = error.problem.partition(": ")[2]
                raise LockConfigError(f"singleton_lock_url is not set, and {source}: {problem}") from None
            if source:
                logger.info("singleton_lock_url is not set: locks are kept where %s points, %r", source, store)
            return store

    def _locate(self) -> tuple[str | Sequence[str], str | None]:
        if self.url:
            return self.url, None
        conf = self._conf
        for setting, options, tls in (
            ("broker_url", "broker_transport_options", "broker_use_ssl"),
            ("result_backend", "result_backend_transport_options", "redis_backend_use_ssl"),
        ):
            url = getattr(conf, setting)  # Celery's own reading: its environment variables and `celery -b` come first
            if is_lock_server(url):
                return lock_url(setting, url, conf.get(options) or {}, conf.get(tls)), setting
        raise LockConfigError(
            "singleton_lock_url is not set, and neither the broker nor the result backend is a Redis server; "
            'set singleton_lock_url, for example to "redis://localhost:6379/0"'
        )

    @property
    def visibility_timeout(self) -> float | None:
        """Seconds after which the broker delivers an unacknowledged message again; None where it never does."""
        broker = self._conf.broker_url
        scheme = str(broker[0] if isinstance(broker, (list, tuple)) and broker else broker).partition("://")[0]
        default = VISIBILITY_TIMEOUTS.get(scheme)
        if default is None:
            return None
        return float((self._conf.broker_transport_options or {}).get("visibility_timeout", default))

    def dump_result(self, prepared: Any) -> Encoded:
        """A result as the result backend would store it. Raises what the serialiser raises."""
        content_type, encoding, body = dumps(prepared, serializer=self._conf.result_serializer)
        return Encoded(content_type, encoding, body)

    def load_result(self, encoded: Encoded) -> Any:
        """A result as ``.get()`` would give it. Raises what the serialiser raises."""
        accept = prepare_accept_content(self._conf.result_accept_content or self._conf.accept_content)
        return loads(encoded.body, encoded.content_type, encoded.content_encoding, accept=accept)


def _given(conf: Any) -> Iterator[tuple[str, Any]]:
    """Every ``singleton_lock_*`` setting that the user gave, by its name without the prefix."""
    namespace = str(getattr(conf, "prefix", None) or "")
    before = {"", "celery_", namespace.lower()}
    for name in {str(name): None for layer in conf.maps for name in layer}:
        front, mark, short = name.lower().partition(PREFIX)
        if mark and front in before:
            value = conf.get(PREFIX + short, _MISSING)
            if value is _MISSING:
                right = f"{namespace}{PREFIX}{short}".upper() if namespace else PREFIX + short
                raise LockConfigError(f"{name} is not read by Celery here; write {right}")
            yield short, value


_MISSING = object()
_settings: WeakKeyDictionary[Celery, LockSettings] = WeakKeyDictionary()


def settings_of(app: Celery) -> LockSettings:
    """The lock settings of ``app``, read once."""
    if isinstance(app, Proxy):
        app = app._get_current_object()  # Celery's own way to look behind a proxy
    found = _settings.get(app)
    if found is None:
        found = _settings[app] = LockSettings(app)
    return found
