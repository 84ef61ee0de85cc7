"""The harness itself: what the other integration tests lean on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import psutil
import pytest
import redis
from pytest_celery import CeleryTestSetup

from ..support.rabbitmq import RabbitMQ
from ..support.servers import Server, StartServer, require
from ..support.waiting import eventually
from ..support.worker import ROOT, LoadApp, StartWorker
from .apps import shared


class TestCelerySetup:
    """pytest-celery's own fixture, on local processes."""

    @pytest.fixture
    def default_worker_tasks(self, default_worker_tasks: set[ModuleType]) -> set[ModuleType]:
        """The worker knows these tasks beside pytest-celery's."""
        return {*default_worker_tasks, shared}

    def test_a_task_runs_in_a_real_prefork_child(self, celery_setup: CeleryTestSetup) -> None:
        """celery_setup gives a worker with children, which runs the test's own tasks."""
        assert celery_setup.ready(ping=True, control=True, docker=True)
        child, parent = shared.pids.delay().get(timeout=15)
        assert parent == celery_setup.worker.container.attrs["State"]["Pid"]
        assert child != parent

    def test_a_killed_worker_can_be_restarted(self, celery_setup: CeleryTestSetup) -> None:
        """The node's kill and restart work as they do on Docker."""
        celery_setup.worker.kill()
        assert celery_setup.worker.container.status == "exited"
        celery_setup.worker.restart()
        celery_setup.worker.assert_log_exists("ready.")
        assert celery_setup.ping.delay().get(timeout=15) == "pong"


class TestStartWorker:
    """The lighter fixture."""

    def test_several_workers_run_tasks_of_one_app(self, load_app: LoadApp, start_worker: StartWorker) -> None:
        """Two workers share the tasks of an app, each in children of its own."""
        workers = [start_worker("plain", concurrency=1, wait=False) for _ in range(2)]
        for worker in workers:
            worker.wait_until_ready()
        plain = load_app("plain")

        seen: set[tuple[int, int]] = set()

        def both_seen() -> bool:
            seen.add(tuple(plain.pids.delay().get(timeout=15)))
            return len(seen) == 2

        eventually(both_seen)
        assert seen == {(child, worker.pid) for worker in workers for child in worker.children()}

    @pytest.mark.parametrize("pool", ["solo", "threads", "gevent"])
    def test_other_pools_start(self, pool: str, load_app: LoadApp, start_worker: StartWorker) -> None:
        """A worker of every pool that needs no children runs a task in its own process."""
        worker = start_worker("plain", pool=pool)
        assert load_app("plain").pids.delay().get(timeout=15)[0] == worker.pid

    def test_a_killed_worker_leaves_nothing_behind(self, load_app: LoadApp, start_worker: StartWorker) -> None:
        """SIGKILL in the middle of a task ends the worker and its children."""
        worker = start_worker("plain")
        load_app("plain").slow.delay(60)
        worker.wait_for_log("slow has begun")
        children = worker.children()
        assert len(children) == 2
        worker.kill()
        assert worker.exit_code == -signal.SIGKILL
        eventually(lambda: not any(psutil.pid_exists(pid) for pid in children), message="the children's end")

    def test_a_worker_that_cannot_start_says_why(self, start_worker: StartWorker) -> None:
        """The worker's own output is in the error."""
        with pytest.raises(AssertionError, match="no_such_app"):
            start_worker("no_such_app")


class TestServers:
    """Servers on free ports."""

    def test_valkey_is_ours_and_empty(self, valkey: Server) -> None:
        """The server on the port is the process that was started."""
        with valkey.client() as client:
            assert client.info("server")["process_id"] == valkey.process.pid
            assert client.dbsize() == 0

    def test_redis_is_ours_and_empty(self, redis_server: Server) -> None:
        """So is the system's Redis."""
        with redis_server.client() as client:
            assert client.info("server")["process_id"] == redis_server.process.pid
            assert client.dbsize() == 0

    @pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
    def test_a_missing_server_skips_on_a_laptop_only(
        self, ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program that is not installed is a skip, and a failure where CI is set."""
        monkeypatch.setenv("CI", ci)
        with pytest.raises(outcome, match="no-such-server is not installed"):
            require("no-such-server")

    def test_a_server_can_be_paused_killed_and_restarted(self, start_server: StartServer) -> None:
        """Its port stays; paused it is silent, killed it refuses, restarted it is empty."""
        server = start_server()
        with server.client(timeout=0.2) as client:
            client.set("key", "value")
            server.pause()
            with pytest.raises(redis.TimeoutError):
                client.get("key")
            server.resume()
            assert client.get("key") == "value"
            server.kill()
            with pytest.raises(redis.ConnectionError):
                client.get("key")
            server.restart()
            assert client.get("key") is None

    @pytest.mark.slow
    def test_rabbitmq_carries_tasks(
        self, rabbitmq: RabbitMQ, urls: dict[str, str], load_app: LoadApp, start_worker: StartWorker
    ) -> None:
        """A private RabbitMQ is a broker like any other."""
        urls["TEST_BROKER_URL"] = rabbitmq.url
        worker = start_worker("plain", args=["--queues", "harness"])  # the server is the run's: a queue of our own
        assert load_app("plain").pids.apply_async(queue="harness").get(timeout=15)[1] == worker.pid


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_process_ends_with_a_killed_run(tmp_path: Path) -> None:
    """Where the test run itself is killed, the kernel ends what it started."""
    program = (
        "import sys, pathlib; from tests.support.process import Process\n"
        "print(Process(['sleep', '60'], log=pathlib.Path(sys.argv[1])).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        assert psutil.pid_exists(pid)
        run.kill()
    eventually(lambda: not psutil.pid_exists(pid), message="the end of the process")
