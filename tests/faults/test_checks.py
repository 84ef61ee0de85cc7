"""A worker's start-up checks, on real servers: one line for each finding, an error under strict checks."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import LockConfigError, single_instance
from celery_singleton_lock.tasks.settings import settings_of
from celery_singleton_lock.worker.checks import Limits, check
from celery_singleton_lock.worker.startup import locked_tasks

from ..support.servers import Server, StartServer
from ..support.waiting import eventually
from ..support.worker import Worker


def app_with(options: dict[str, Any] | None = None, task: dict[str, Any] | None = None, **conf: Any) -> Celery:
    """An app with one locked task."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(conf)

    @app.task(name="shop.charge", shared=False, **(task or {}))
    @single_instance(**(options or {}))
    def charge(order_id: int) -> None:
        """Nothing."""

    app.finalize()
    return app


def findings(app: Celery, caplog: pytest.LogCaptureFixture, limits: Limits = Limits()) -> list[str]:  # noqa: B008
    """What the checks say of an app."""
    caplog.clear()
    own = [task for task in locked_tasks(app) if task.name == "shop.charge"]  # Celery adds every shared_task there is
    with caplog.at_level(logging.WARNING, "celery_singleton_lock.checks"):
        check(settings_of(app), [(task, type(task).singleton_lock_task()) for task in own], limits)
    return [record.getMessage() for record in caplog.records]


@pytest.fixture
def quiet(valkey: Server) -> dict[str, Any]:
    """Settings with which nothing is found."""
    return {"singleton_lock_url": valkey.url()}


def test_nothing_to_say(quiet: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """A sound configuration starts without a word, strictly too; a short ttl beside a long limit is sound."""
    assert findings(app_with(**quiet), caplog) == []
    app = app_with({"ttl": 5}, {"time_limit": 600}, singleton_lock_strict_checks=True, **quiet)
    assert findings(app, caplog) == []


@pytest.mark.parametrize(
    ("options", "task", "conf", "words"),
    [
        ({"ttl": 600}, {"time_limit": 60}, {}, "ttl: 600 s is longer than the task may run (time_limit 60 s)"),
        ({"ttl": 600}, {}, {"task_time_limit": 60}, "ttl: 600 s is longer"),
        ({"max_hold": 60}, {"time_limit": 300}, {}, "max_hold: the lock ends after 60 s"),
        ({"max_hold": 60}, {"soft_time_limit": 300, "time_limit": 400}, {}, "time limit, 300 s"),
        ({"on_conflict": "wait", "wait_timeout": 30}, {"soft_time_limit": 30}, {}, "wait_timeout: 30 s of waiting"),
        (
            {"retry_backoff_max": 4000},
            {},
            {"broker_url": "redis://localhost"},
            "retry_backoff_max: 4000 s is cut to 1800 s",
        ),
        ({}, {"reject_on_worker_lost": True}, {}, "reject_on_worker_lost has no effect without acks_late"),
        ({}, {}, {"task_reject_on_worker_lost": True}, "reject_on_worker_lost has no effect without acks_late"),
    ],
    ids=str,
)
def test_options_beside_other_settings(
    quiet: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    task: dict[str, Any],
    conf: dict[str, Any],
    words: str,
) -> None:
    """What one task's options cannot do beside its limits and the broker is one line that names both."""
    limits = Limits(hard=conf.get("task_time_limit"))
    (line,) = findings(app_with(options, task, **quiet, **conf), caplog, limits)
    assert line.startswith("task shop.charge: ")
    assert words in line
    with pytest.raises(LockConfigError, match="singleton_lock_strict_checks: task shop"):
        findings(app_with(options, task, **quiet, **conf, singleton_lock_strict_checks=True), caplog, limits)


@pytest.mark.parametrize(
    ("options", "task"),
    [
        ({"max_hold": 60, "on_lost": "abort"}, {"time_limit": 300}),
        ({"max_hold": 300}, {"time_limit": 60}),
        ({}, {"time_limit": 10}),  # the default ttl
        ({"ttl": 600, "enabled": False}, {"time_limit": 60}),
        ({}, {"reject_on_worker_lost": True, "acks_late": True}),
    ],
    ids=str,
)
def test_what_is_sound(
    quiet: dict[str, Any], caplog: pytest.LogCaptureFixture, options: dict[str, Any], task: dict[str, Any]
) -> None:
    """Nothing is said where nothing goes wrong."""
    assert findings(app_with(options, task, **quiet), caplog) == []


@pytest.mark.parametrize(("policy", "warns"), [("volatile-lru", True), ("allkeys-lfu", True), ("noeviction", False)])
def test_eviction(start_server: StartServer, caplog: pytest.LogCaptureFixture, policy: str, warns: bool) -> None:
    """A server that would evict locks is named (B48); one without a limit evicts nothing, whatever its policy."""
    server = start_server()
    app = app_with(singleton_lock_url=server.url())
    server.run("CONFIG", "SET", "maxmemory-policy", policy)
    assert findings(app, caplog) == []
    server.run("CONFIG", "SET", "maxmemory", 100 << 20)
    lines = findings(app, caplog)
    assert [f"maxmemory-policy {policy}" in line for line in lines] == ([True] if warns else [])


def test_eviction_that_cannot_be_read(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    """Under an ACL without INFO nothing is said of it, and nothing else goes wrong."""
    server = start_server("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    server.run("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-info")
    app = app_with(singleton_lock_url=server.url().replace("//", "//app:pw@"), singleton_lock_strict_checks=True)
    assert findings(app, caplog) == []


def test_a_server_out_of_reach(caplog: pytest.LogCaptureFixture) -> None:
    """One line, without the password, and the worker starts; strictly it does not."""
    conf: dict[str, Any] = {"singleton_lock_url": "redis://:s3cret@127.0.0.1:1/0"}
    (line,) = findings(app_with(**conf), caplog)
    assert "cannot be used now" in line
    assert "Connection refused" in line
    assert "s3cret" not in line
    with pytest.raises(LockConfigError, match="Connection refused"):
        findings(app_with(**conf, singleton_lock_strict_checks=True), caplog)


@pytest.mark.parametrize(
    "url", ["sentinel://127.0.0.1:1;127.0.0.1:2?master_name=m", "redis+cluster://127.0.0.1:1,127.0.0.1:2"]
)
def test_a_deployment_out_of_reach(caplog: pytest.LogCaptureFixture, url: str) -> None:
    """A deployment of many servers that cannot be reached is one line, too."""
    (line,) = findings(app_with(singleton_lock_url=url), caplog)
    assert "Connection refused" in line


def test_credentials_and_permissions(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong password and a missing permission are told apart from a server that is away."""
    server = start_server()
    server.run("ACL", "SETUSER", "app", "on", ">pw", "~*", "+info")
    for login, word in (("app:wrong", "WRONGPASS"), ("app:pw", "NOPERM")):
        (line,) = findings(app_with(singleton_lock_url=server.url().replace("//", f"//{login}@")), caplog)
        assert "rejects the credentials" in line
        assert word in line


class TestQuorum:
    """Three URLs."""

    def test_three_servers(self, start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
        """Independent servers are fine, and a dead one is named."""
        servers = [start_server() for _ in range(3)]
        app = app_with(singleton_lock_url=[server.url() for server in servers])
        assert findings(app, caplog) == []
        servers[1].kill()
        (line,) = findings(app, caplog)
        assert line.startswith(f"{servers[1].url()}: ")

    @pytest.mark.parametrize("rules", ["+@all", "+@all -info"], ids=["by its name", "by a mark"])
    def test_one_server_by_two_names(
        self, start_server: StartServer, caplog: pytest.LogCaptureFixture, rules: str
    ) -> None:
        """Two names of one server would give it two votes: the worker never starts, strictly or not."""
        servers = [start_server() for _ in range(2)]
        for server in servers:
            server.run("ACL", "SETUSER", "app", "on", ">pw", "~singleton-lock:*", *rules.split())
        urls = [server.url().replace("//", "//app:pw@") for server in servers]
        app = app_with(singleton_lock_url=[*urls, urls[0].replace("127.0.0.1", "localhost")])
        if socket.getaddrinfo("localhost", servers[0].port)[0][4][0] not in ("127.0.0.1", "::1"):
            pytest.skip("localhost is elsewhere")
        with pytest.raises(LockConfigError, match="are the same server") as caught:
            findings(app, caplog)
        assert "pw" not in str(caught.value)

    def test_a_server_and_its_replica(self, start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
        """A replica that takes writes has its master's marks, and is not independent."""
        first, second = start_server("--repl-diskless-sync-delay", "0"), start_server()
        third = start_server("--replicaof", "127.0.0.1", str(first.port), "--replica-read-only", "no")
        eventually(lambda: third.run("INFO", "replication")["master_link_status"] == "up", message="the replica's link")
        app = app_with(singleton_lock_url=[server.url() for server in (first, second, third)])
        with pytest.raises(LockConfigError, match="the other's replica"):
            findings(app, caplog)

    def test_an_even_number(self, start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
        """Four servers are a warning when they are opened, and an error under strict checks."""
        servers = [start_server() for _ in range(4)]
        urls = [server.url() for server in servers]
        (line,) = findings(app_with(singleton_lock_url=urls), caplog)
        assert "an odd number is better" in line
        with pytest.raises(LockConfigError, match="4 servers"):
            findings(app_with(singleton_lock_url=urls, singleton_lock_strict_checks=True), caplog)


APP = """
from celery import Celery
from celery_singleton_lock import single_instance

app = Celery("shop", broker={broker!r})
app.conf.update(singleton_lock_url={url!r}, singleton_lock_strict_checks={strict})

@app.task(reject_on_worker_lost=True)
@single_instance
def charge(order_id):
    pass
"""


def start(directory: Path, **values: Any) -> Worker:
    """A worker of the app with ``values``; it may end by itself."""
    (directory / "checked_app.py").write_text(APP.format(**values))
    path = f"{Path(__file__).parents[2]}:{directory}"
    return Worker("checked_app", name="w", directory=directory, env={"PYTHONPATH": path}, wait=False)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_a_real_worker(valkey: Server, tmp_path: Path, strict: bool) -> None:
    """The worker says each finding once and is ready; strictly it ends with all of them in the error that ends it."""
    worker = start(tmp_path, broker=valkey.url(), url="redis://:s3cret@127.0.0.1:1/0", strict=strict)
    try:
        if strict:
            eventually(lambda: not worker.running, 30, "the worker's end")
            assert worker.exit_code != 0
            assert "singleton_lock_strict_checks: " in worker.log()
            assert " ready." not in worker.log()
        else:
            worker.wait_until_ready()
            assert "WARNING" in worker.log()
        assert worker.log().count("Connection refused") == 1
        assert worker.log().count("has no effect without acks_late") == 1
        assert "s3cret" not in worker.log()
    finally:
        worker.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "url",
    ["redis://:s3cret@localhost:port/0", "redis//:s3cret@localhost/0", "rediss://s3cret@localhost/0?ssl_cert_reqs=no"],
)
def test_a_real_worker_with_a_malformed_url(valkey: Server, tmp_path: Path, url: str) -> None:
    """B46: the worker ends before it is ready, names the setting, and shows the secret nowhere in its output."""
    worker = start(tmp_path, broker=valkey.url(), url=url, strict=False)
    try:
        eventually(lambda: not worker.running, 30, "the worker's end")
        assert worker.exit_code not in (0, None)
        assert "LockConfigError" in worker.log()
        assert "singleton_lock_url: " in worker.log()
        assert " ready." not in worker.log()
        assert "s3cret" not in worker.log()
    finally:
        worker.kill()
