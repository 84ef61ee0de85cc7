"""The app's settings: read as Celery reads its own, checked once, and no secret in any message."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from celery_singleton_lock import LockConfigError
from celery_singleton_lock.stores.memory import MemoryStore
from celery_singleton_lock.stores.redis import RedisStore
from celery_singleton_lock.tasks.settings import LockSettings, settings_of


def settings(**conf: Any) -> LockSettings:
    """The lock settings of an app with this configuration."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    return LockSettings(app)


def refusal(**conf: Any) -> str:
    """The text with which a configuration is refused."""
    with pytest.raises(LockConfigError) as caught:
        settings(**conf).store  # noqa: B018
    return str(caught.value)


def test_defaults() -> None:
    """What is not set has the documented values, and no option of a task is set."""
    given = settings()
    assert (given.prefix, given.timeout, given.options) == ("singleton-lock", 1.0, {})


def test_lower_case_settings() -> None:
    """`singleton_lock_<option>` in `app.conf` is the app's default of the option, checked."""
    given = settings(
        singleton_lock_url="memory://x",
        singleton_lock_prefix="shop",
        singleton_lock_timeout=0.5,
        singleton_lock_ttl=5,
        singleton_lock_on_conflict="skip",
    )
    assert given.options == {"ttl": 5.0, "on_conflict": "skip"}
    assert (given.store.prefix, given.store.timeout) == ("shop", 0.5)
    assert isinstance(given.store, MemoryStore)


class DjangoLike:
    """A settings object as Django's, with other apps' names in it."""

    CELERY_BROKER_URL = "memory://"
    CELERY_SINGLETON_LOCK_URL = "memory://django"
    CELERY_SINGLETON_LOCK_TTL = 7
    CELERY_SINGLETON_LOCK_ON_CONFLICT = "skip"
    SECRET_KEY = "s3cret"
    DEBUG = True


def test_namespaced_django_settings() -> None:
    """`CELERY_SINGLETON_LOCK_*` is read under the namespace CELERY (B25)."""
    app = Celery("shop", set_as_current=False)
    app.config_from_object(DjangoLike, namespace="CELERY")
    given = LockSettings(app)
    assert given.options == {"ttl": 7.0, "on_conflict": "skip"}
    assert given.url == "memory://django"


@pytest.mark.parametrize("namespace", ["CELERY", "SHOP_CELERY"])
def test_misspelt_namespaced_setting(namespace: str) -> None:
    """A misspelt setting under a namespace is refused with the closest right one (B25)."""

    class Misspelt:
        pass

    setattr(Misspelt, f"{namespace.upper()}_SINGLETON_LOCK_TTLL", 7)
    app = Celery("shop", set_as_current=False)
    app.config_from_object(Misspelt, namespace=namespace)
    with pytest.raises(LockConfigError, match="singleton_lock_ttl") as caught:
        LockSettings(app)
    assert "did you mean" in str(caught.value)


@pytest.mark.parametrize("name", ["SINGLETON_LOCK_URL", "CELERY_SINGLETON_LOCK_URL", "Singleton_Lock_Url"])
def test_upper_case_without_a_namespace(name: str) -> None:
    """An upper-case setting that Celery itself would not find is refused and not ignored (B25)."""
    text = refusal(**{name: "memory://"})
    assert name in text
    assert "singleton_lock_url" in text


def test_setting_outside_of_the_namespace() -> None:
    """A lower-case or bare setting beside a namespace is not read by Celery: it is refused with the right name."""

    class Mixed:
        CELERY_BROKER_URL = "memory://"
        SINGLETON_LOCK_URL = "memory://"

    app = Celery("shop", set_as_current=False)
    app.config_from_object(Mixed, namespace="CELERY")
    with pytest.raises(LockConfigError) as caught:
        LockSettings(app)
    assert "SINGLETON_LOCK_URL" in str(caught.value)
    assert "CELERY_SINGLETON_LOCK_URL" in str(caught.value)


def test_configuration_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module named by config_from_object is looked through as well, for right settings and wrong ones (B25)."""
    module = ModuleType("lock_settings_for_a_test")
    vars(module).update(broker_url="memory://", singleton_lock_ttl=9)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    app = Celery("shop", set_as_current=False)
    app.config_from_object(module.__name__)
    assert LockSettings(app).options == {"ttl": 9.0}
    vars(module)["singleton_lock_ttll"] = 9
    app = Celery("shop", set_as_current=False)
    app.config_from_object(module.__name__)
    with pytest.raises(LockConfigError, match="did you mean 'singleton_lock_ttl'"):
        LockSettings(app)


def test_changes_argument_and_dict() -> None:
    """Settings given by `Celery(changes=)` or a dict are found as well."""
    app = Celery("shop", changes={"singleton_lock_ttl": 4}, set_as_current=False)
    assert LockSettings(app).options == {"ttl": 4.0}
    app = Celery("shop", set_as_current=False)
    app.config_from_object({"singleton_lock_ttl": 6})
    assert LockSettings(app).options == {"ttl": 6.0}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("singleton_lock_ttll", 5, "did you mean 'singleton_lock_ttl'?"),
        ("singleton_lock_ulr", "memory://", "did you mean 'singleton_lock_url'?"),
        ("singleton_lock_ttl", "30", "singleton_lock_ttl: give seconds"),
        ("singleton_lock_ttl", 0, "singleton_lock_ttl: 0 is out of range"),
        ("singleton_lock_on_conflict", "no", "singleton_lock_on_conflict: 'no' is not one of"),
        ("singleton_lock_on_lost", "ignore", "singleton_lock_on_lost: "),
        ("singleton_lock_free_killed", 1, "singleton_lock_free_killed: give True or False"),
        ("singleton_lock_timeout", 0, "singleton_lock_timeout: 0 is out of range"),
        ("singleton_lock_timeout", "1", "singleton_lock_timeout: give seconds"),
        ("singleton_lock_timeout", True, "singleton_lock_timeout: give seconds"),
        ("singleton_lock_key", "order:{order_id}", "singleton_lock_key cannot be set for a whole app"),
        ("singleton_lock_prefix", "", "singleton_lock_prefix"),
        ("singleton_lock_prefix", "a{b}", "singleton_lock_prefix"),
        ("singleton_lock_prefix", None, "singleton_lock_prefix"),
    ],
)
def test_bad_settings_are_named_in_full(name: str, value: Any, words: str) -> None:
    """A wrong setting is refused by its full name (B25, B41)."""
    assert words in refusal(**{"singleton_lock_url": "memory://", name: value})


@pytest.mark.parametrize("name", ["singleton_lock_expiry", "singleton_lock_timeout_"])
def test_celery_singletons_setting_is_a_warning(name: str) -> None:
    """celery-singleton's `singleton_lock_expiry` is a warning that points to ttl; anything else is an error."""
    if name == "singleton_lock_expiry":
        with pytest.warns(UserWarning, match="singleton_lock_expiry has no effect here; set singleton_lock_ttl"):
            assert settings(singleton_lock_expiry=60).options == {}
    else:
        assert "did you mean 'singleton_lock_timeout'?" in refusal(**{name: 1})


def test_broker_is_the_default_store(caplog: pytest.LogCaptureFixture) -> None:
    """Without a URL the locks are kept in the app's Redis broker, said once, without its password (B47)."""
    caplog.set_level(logging.INFO)
    given = settings(broker_url="redis://:s3cret@broker.example:6380/3")
    assert isinstance(given.store, RedisStore)
    assert given.store is given.store
    (record,) = caplog.records
    assert "broker_url" in record.getMessage()
    assert "broker.example:6380/3" in record.getMessage()
    assert "s3cret" not in caplog.text + repr(given.store)


def test_result_backend_is_the_next_default(caplog: pytest.LogCaptureFixture) -> None:
    """With another broker the locks are kept in the Redis result backend."""
    caplog.set_level(logging.INFO)
    given = settings(broker_url="amqp://guest@broker.example//", result_backend="redis://backend.example/1")
    assert "backend.example" in repr(given.store)
    assert "result_backend" in caplog.text


@pytest.mark.parametrize("variable", ["CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"])
def test_celerys_environment_variables_come_first(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Where Celery's variables (or `celery -b`) replace a URL of the code, locks follow the messages (B46)."""
    code = "redis://code.example/0"
    given = settings(
        **({"broker_url": code} if "BROKER" in variable else {"broker_url": "amqp://", "result_backend": code})
    )
    monkeypatch.setenv(variable, "redis://environment.example/0")
    assert "environment.example" in repr(given.store)


def test_url_that_is_set_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A URL that the user set goes without a line in the log."""
    caplog.set_level(logging.INFO)
    assert "lock.example" in repr(
        settings(singleton_lock_url="redis://:s3cret@lock.example", broker_url="redis://b").store
    )
    assert caplog.text == ""


@pytest.mark.parametrize(
    "conf", [{}, {"broker_url": "amqp://"}, {"broker_url": "amqp://", "result_backend": "rpc://"}], ids=str
)
def test_no_redis_anywhere(conf: dict[str, Any]) -> None:
    """Without any Redis server the error names the setting and shows a URL to set it to."""
    text = refusal(**conf)
    assert text.startswith("singleton_lock_url is not set")
    assert "redis://" in text


def test_broker_of_several_servers() -> None:
    """A broker with failover servers is not guessed from; the error names the setting and no password (B47)."""
    text = refusal(broker_url="redis://:s3cret@a.example/0;redis://:s3cret@b.example/0")
    assert "set singleton_lock_url" in text
    assert "s3cret" not in text


def test_config_error_is_celerys() -> None:
    """A wrong setting is Celery's ImproperlyConfigured, too."""
    with pytest.raises(ImproperlyConfigured):
        settings(singleton_lock_ttl=0)


@pytest.mark.parametrize(
    ("broker", "options", "seconds"),
    [
        ("redis://h", {}, 3600.0),
        ("rediss://h", {}, 3600.0),
        ("sentinel://h", {}, 3600.0),
        ("sqs://", {}, 1800.0),
        ("amqp://h", {}, None),
        ("memory://", {}, None),
        ("redis://h", {"visibility_timeout": 60}, 60.0),
        (["redis://h", "redis://g"], {}, 3600.0),
    ],
    ids=str,
)
def test_visibility_timeout(broker: Any, options: dict[str, Any], seconds: float | None) -> None:
    """It is known when the broker would deliver a message again: its option, else kombu's default (B32)."""
    given = settings(broker_url=broker, broker_transport_options=options)
    assert given.visibility_timeout == seconds


def test_settings_of_an_app_are_read_once(app: Celery) -> None:
    """One app has one set of settings, and so one store."""
    assert settings_of(app) is settings_of(app)
    assert settings_of(app).store is settings_of(app).store


def test_apps_are_kept_apart_by_prefix() -> None:
    """Two apps with one server and different prefixes have stores of their own (B48)."""
    first, second = (settings(singleton_lock_url="memory://x", singleton_lock_prefix=name).store for name in ("a", "b"))
    assert first is not second
    assert settings(singleton_lock_url="memory://x", singleton_lock_prefix="a").store is first
