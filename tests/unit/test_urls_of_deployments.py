"""URLs of every deployment, read without a network: who is asked, how, and what is refused with its secret hidden."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from celery_singleton_lock import LockConfigError, open_store
from celery_singleton_lock.stores.cluster import ClusterStore
from celery_singleton_lock.stores.redis import RedisStore
from celery_singleton_lock.tasks.broker_url import is_lock_server, lock_url
from celery_singleton_lock.transport.urls import Url, read, redact

from .test_settings import refusal

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", {"hosts": [("localhost", 6379)]}),
        ("redis://h", {"hosts": [("h", 6379)], "db": 0, "tls": False}),
        ("redis://h:1/15", {"hosts": [("h", 1)], "db": 15}),
        ("redis://h/?db=3", {"db": 3}),
        ("redis://h?virtual_host=3", {"db": 3}),
        ("REDIS://h/2", {"hosts": [("h", 6379)], "db": 2}),
        ("redis://[::1]:1/0", {"hosts": [("::1", 1)]}),
        ("redis://u:p@h", {"username": "u", "password": "p"}),
        ("redis://:p@h", {"username": None, "password": "p"}),
        ("redis://u@h", {"username": "u", "password": None}),
        ("redis://u%3A%40:p%2F%23%20%25@h", {"username": "u:@", "password": "p/# %"}),
        ("redis://:a+b@h", {"password": "a+b"}),
        ("redis://:a:b@h", {"password": "a:b"}),
        ("redis://:%C3%BC@h", {"password": "ü"}),
        ("redis://h?username=u&password=p%2Bq", {"username": "u", "password": "p+q"}),
        ("redis://h?socket_timeout=5&max_connections=3&retry_on_timeout=True&client_name=x", {"options": {}}),
        ("redis://h?socket_keepalive=yes", {"options": {"socket_keepalive": True}}),
        ("rediss://h/1", {"tls": True, "db": 1, "options": {}}),
        ("redis://h?ssl=true&ssl_cert_reqs=none", {"tls": True, "options": {"ssl_cert_reqs": "none"}}),
        ("rediss://h?ssl_cert_reqs=CERT_REQUIRED", {"options": {"ssl_cert_reqs": "required"}}),
        ("rediss://h?ssl_cert_reqs=ssl.CERT_OPTIONAL", {"options": {"ssl_cert_reqs": "optional"}}),
        ("rediss://h?ssl_cert_reqs=none", {"options": {"ssl_cert_reqs": "none"}}),
        ("rediss://h?ssl_check_hostname=False", {"options": {"ssl_check_hostname": False}}),
        ("rediss://h?ssl_min_version=TLSv1.3", {"options": {"ssl_min_version": ssl.TLSVersion.TLSv1_3}}),
        ("rediss://h?ssl_min_version=771", {"options": {"ssl_min_version": ssl.TLSVersion.TLSv1_2}}),
        ("unix:///run/r.sock", {"path": "/run/r.sock", "db": 0}),
        ("unix:///run/r.sock?db=2", {"path": "/run/r.sock", "db": 2}),
        ("unix://u:p@/run/r%20s.sock", {"path": "/run/r s.sock", "username": "u", "password": "p"}),
        ("redis+socket:///run/r.sock?virtual_host=2", {"path": "/run/r.sock", "db": 2}),
        ("redis+socket:///run/r.sock?virtual_host=/2", {"db": 2}),
        ("sentinel://a;b:2?master_name=m", {"hosts": [("a", 26379), ("b", 2)], "options": {"master_name": "m"}}),
        ("sentinel://a,b/3?master_name=m", {"hosts": [("a", 26379), ("b", 26379)], "db": 3}),
        ("sentinel://u:p%3B@a:1;b:2/3?master_name=m", {"username": "u", "password": "p;", "db": 3}),
        ("sentinel://:p@a:1/0;sentinel://:p@b:2/0?master_name=m", {"hosts": [("a", 1), ("b", 2)], "password": "p"}),
        ("sentinel://a:1;sentinel://[::2]:2/4?master_name=m", {"hosts": [("a", 1), ("::2", 2)], "db": 4}),
        ("sentinel://a?master_name=m&ssl_cert_reqs=none", {"tls": True}),
        ("sentinel://a?master_name=m&sentinel_ssl=1&ssl_cert_reqs=none&ssl=0", {"tls": False}),
        ("redis+cluster://u:p@a:1,b:2", {"hosts": [("a", 1), ("b", 2)], "username": "u", "password": "p"}),
        ("redis+cluster://a", {"hosts": [("a", 6379)], "tls": False}),
        ("rediss+cluster://a,b/0", {"tls": True, "db": 0}),
    ],
)
def test_read(url: str, expected: dict[str, Any]) -> None:
    """Every part arrives as it was meant (B46), and a store opens on it."""
    found = read(url)
    assert {name: getattr(found, name) for name in expected} == expected
    assert isinstance(open_store(url), RedisStore)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"sentinel://:{SECRET}@a:1;b:2/0", "add \\?master_name="),
        (f"sentinel://:{SECRET}@a:1;b:x/0?master_name=m", "malformed"),
        (f"sentinel://:{SECRET}@a:1;;b/0?master_name=m", "a host is missing"),
        (f"sentinel://:{SECRET}@a;b/name?master_name=m", "the database must be a number"),
        (f"sentinel://:{SECRET};x@a:1?master_name=m", "malformed|given"),
        (f"sentinel://a?master_name=m&sentinel_pasword={SECRET}", "did you mean 'sentinel_password'"),
        (f"redis+cluster://:{SECRET}@a,b/1", "a cluster has only database 0"),
        (f"redis+cluster://:{SECRET}@a,,b", "a host is missing"),
        (f"redis+cluster://:{SECRET}@", "a host is missing"),
        (f"redis+cluster://:{SECRET}@a:1,b:99999", "malformed"),
        (f"redis://:{SECRET}@h?master_name=m", "unknown option 'master_name'"),
        (f"redis://:{SECRET}@h?ssl_cert_reqs=none", "need TLS"),
        (f"rediss://:{SECRET}@h?ssl_cert_reqs=sometimes", "ssl_cert_reqs: the value cannot be used"),
        (f"rediss://:{SECRET}@h?ssl_check_hostname=maybe", "ssl_check_hostname: the value cannot be used"),
        (f"rediss://:{SECRET}@h?ssl_ca_certs=/nowhere/{SECRET}.pem", "does not exist"),
        (f"rediss://:{SECRET}@h?ssl_min_version=TLSv9", "ssl_min_version: the value cannot be used"),
        (f"rediss://:{SECRET}@h?ssl_ca_cert=x", "did you mean 'ssl_ca_certs'"),
        (f"redis://:{SECRET}@h?db=one", "db: the value cannot be used"),
        (f"redis://:{SECRET}@h?db=1&db=2", "db is given twice"),
        (f"redis://:{SECRET}@h/1?db=2", "the database is given twice"),
        (f"redis://:{SECRET}@h?credential_provider=x", "unknown option 'credential_provider'"),
        (f"unix://:{SECRET}@run/redis.sock", "a socket's path is absolute"),
        (f"unix://:{SECRET}@", "a socket's path is absolute"),
        (f"redis://:{SECRET}#x@h", "#"),
        (f"redis://h/0#{SECRET}", "#"),
        (f"memcached://:{SECRET}@h", "is no URL of a lock server"),
    ],
)
def test_refused(url: str, words: str) -> None:
    """A URL that cannot be meant is refused when it is opened, says what is wrong, and hides its secret (B46, B47)."""
    with pytest.raises(LockConfigError, match=words) as caught:
        open_store(url)
    text = str(caught.value)
    assert text.startswith("singleton_lock_url: ")
    assert SECRET not in text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        (f"redis://user:{SECRET}@localhost:6379/0", "redis://***@localhost:6379/0"),
        (f"redis://:{SECRET}@localhost/0?password={SECRET}", "redis://***@localhost/0"),
        (f"unix://:{SECRET}@/run/redis.sock?db=1", "unix://***@/run/redis.sock"),
        ("no url", "***"),
        (f"redis://:{SECRET}@localhost:port", "***"),
        (f"sentinel://u:{SECRET}@a:1;b:2/0?master_name=m&sentinel_password={SECRET}", "sentinel://***@a:1;b:2/0"),
        (f"sentinel://:{SECRET}@a:1;sentinel://:{SECRET}@b:2/0?master_name=m", "sentinel://***@a:1;***@b:2/0"),
        (f"sentinel://:{SECRET};x@a:1?master_name=m", "***"),
        (f"sentinel://:x,{SECRET}@a:1?master_name=m", "***"),
        (f"redis+cluster://:{SECRET}@a:1,b:2", "redis+cluster://***@a:1;b:2"),
        (f"redis://:12/{SECRET}@h/0", "***"),
        (f"redis://h/{SECRET}", "redis://h"),
        (f"unix://:{SECRET}@/run/r.sock?password={SECRET}", "unix://***@/run/r.sock"),
    ],
)
def test_redact(url: str, shown: str) -> None:
    """A URL is shown with its hosts and without user, password and options, and not at all where in doubt (B47)."""
    assert redact(url) == shown


def test_stores_hide_their_secrets() -> None:
    """The repr of a store shows hosts and no secret (B47)."""
    for url in (
        f"sentinel://:{SECRET}@a;b?master_name=m&sentinel_password={SECRET}",
        f"redis+cluster://u:{SECRET}@a,b",
    ):
        assert SECRET not in repr(open_store(url))
        assert "a;b" in repr(open_store(url))
    assert isinstance(open_store("redis+cluster://a"), ClusterStore)


@pytest.mark.parametrize(
    "urls",
    [
        ["redis://a", "redis://a:6379/1", "redis://b"],
        ["redis://a:1/0", "redis://b:1/0", "redis://a:1/5"],
        ["redis://127.0.0.1/0", "redis://127.0.0.1:6379/1", "redis://b/0"],
        ["redis://a", "redis://A/2", "redis://b"],
        ["redis://", "redis://localhost", "redis://b"],
        ["redis://a?db=1", "rediss://:pw@a?db=2", "redis://b"],
        ["unix:///r.sock", "unix:///r.sock?db=1", "redis://b"],
    ],
    ids=str,
)
def test_one_server_twice(urls: list[str]) -> None:
    """Two databases of one server are one server, which has one vote (B43 e)."""
    with pytest.raises(LockConfigError, match=r"^singleton_lock_url: .* stands in the list twice"):
        open_store(urls)


@pytest.mark.parametrize("odd", ["sentinel://a?master_name=m", "redis+cluster://a", "memory://"])
def test_no_deployments_in_a_quorum(odd: str) -> None:
    """A quorum is made of single servers."""
    with pytest.raises(LockConfigError, match="independent servers"):
        open_store([odd, "redis://b", "redis://c"])


THEIRS = {"sentinel_password": "p&q", "sentinel_username": "u"}
NONE, REQUIRED = ssl.CERT_NONE, ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("url", "transport", "use_ssl", "expected"),
    [
        ("redis://h/1", {}, None, {"db": 1, "tls": False, "options": {}}),
        ("redis://h", {"global_keyprefix": "x", "visibility_timeout": 5, "socket_timeout": 3}, None, {"options": {}}),
        ("redis://h", {}, {"ssl_cert_reqs": NONE}, {"tls": True, "options": {"ssl_cert_reqs": "none"}}),
        ("redis://h", {}, {"ssl_cert_reqs": REQUIRED}, {"tls": True, "options": {"ssl_cert_reqs": "required"}}),
        ("redis://h", {}, {"ssl_cert_reqs": "CERT_OPTIONAL"}, {"options": {"ssl_cert_reqs": "optional"}}),
        ("redis://h", {}, {"ssl_keyfile": None, "ssl_cert_reqs": NONE}, {"options": {"ssl_cert_reqs": "none"}}),
        ("rediss://h?ssl_cert_reqs=required", {}, {"ssl_cert_reqs": NONE}, {"options": {"ssl_cert_reqs": "required"}}),
        ("rediss://h", {}, None, {"tls": True, "options": {"ssl_cert_reqs": "none"}}),
        ("rediss://:ssl_pw@h", {}, None, {"tls": True, "options": {"ssl_cert_reqs": "none"}}),
        ("redis://h", {}, False, {"tls": False}),
        ("redis+socket:///r.sock?virtual_host=3", {}, None, {"path": "/r.sock", "db": 3}),
        ("sentinel://a:1", {"master_name": "m"}, None, {"hosts": [("a", 1)], "tls": False}),
        ("sentinel://:p@a;sentinel://:p@b", {"master_name": "m"}, None, {"hosts": [("a", 26379), ("b", 26379)]}),
        (
            ["sentinel://a", "sentinel://b/2"],
            {"master_name": "m"},
            None,
            {"hosts": [("a", 26379), ("b", 26379)], "db": 2},
        ),
        (
            "sentinel://a",
            {"master_name": "m", "sentinel_kwargs": {"password": "p&q", "username": "u"}},
            None,
            {
                "options": {
                    "master_name": "m",
                    "sentinel_password": "p&q",
                    "sentinel_username": "u",
                    "sentinel_ssl": False,
                }
            },
        ),
        ("sentinel://a?master_name=m", {}, {"ssl_cert_reqs": NONE}, {"tls": True}),
        ("sentinel://a", {"master_name": "m", "sentinel_kwargs": {"ssl": True}}, True, {"tls": True}),
        ("sentinel://a?master_name=m&sentinel_ssl=true", {}, True, {"tls": True}),
    ],
    ids=str,
)
def test_from_celerys_settings(url: Any, transport: dict[str, Any], use_ssl: Any, expected: dict[str, Any]) -> None:
    """What Celery keeps beside a URL becomes a part of the store's; what is about queues and pools does not (B46)."""
    found: Url = read(lock_url("broker_url", url, transport, use_ssl))
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("redis://h", True),
        ("rediss://h", True),
        ("redis+socket:///s", True),
        ("sentinel://h", True),
        (["sentinel://a", "sentinel://b"], True),
        ("amqp://h", False),
        ("memory://", False),
        ("sqs://", False),
        (None, False),
        ([], False),
        (frozenset(), False),
    ],
    ids=str,
)
def test_where_locks_can_be_kept(url: Any, is_one: bool) -> None:
    """Redis in any of Celery's forms can keep locks."""
    assert is_lock_server(url) is is_one


def test_sentinel_broker_without_a_master() -> None:
    """A Sentinel broker that does not say which master names the setting that is missing (B46)."""
    text = refusal(broker_url=f"sentinel://:{SECRET}@a;sentinel://:{SECRET}@b")
    assert "broker_transport_options has no master_name" in text
    assert SECRET not in text


def test_a_broker_of_several_servers_is_not_guessed_from() -> None:
    """Failover brokers as a list are refused like those in one text, not passed over."""
    text = refusal(broker_url=[f"redis://:{SECRET}@a", f"redis://:{SECRET}@b"])
    assert "broker_url names several servers" in text
    assert SECRET not in text


def test_a_broker_that_a_store_cannot_use() -> None:
    """What is wrong with a URL that the app gave is said of that setting."""
    text = refusal(broker_url=f"redis://:{SECRET}@h/0?credential_provider=x")
    assert text.startswith("singleton_lock_url is not set, and broker_url: ")
    assert "credential_provider" in text
    assert SECRET not in text


@pytest.mark.parametrize(("name", "value"), [("min_replicas", "1"), ("min_replicas", -1), ("strict_checks", 1)])
def test_settings_of_a_wrong_type(name: str, value: Any) -> None:
    """A bad value is refused by the setting's full name."""
    text = refusal(singleton_lock_url="redis://h", **{f"singleton_lock_{name}": value})
    assert text.startswith(f"singleton_lock_{name}: ")
