"""Fixtures for tests with real workers: `load_app` and `start_worker`, or `celery_setup` for pytest-celery's ways."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from pytest_celery import RedisTestBackend, RedisTestBroker

from ..support import apps
from ..support.local_engine import LocalRedis, LocalWorker
from ..support.rabbitmq import RabbitMQ
from ..support.servers import Server
from ..support.worker import ROOT, LoadApp, StartWorker, Worker


@pytest.fixture
def name() -> str:
    """A name that no other test uses: of a resource, a queue, a note."""
    return uuid4().hex


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """The run's RabbitMQ server, started at its first use. Its queues outlive a test: choose names of your own."""
    server = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    yield server
    server.stop()


@pytest.fixture
def urls(valkey: Server) -> dict[str, str]:
    """The environment of the test's apps, here and in workers: broker, results and locks on an empty Valkey server.

    A test may change it before it loads an app.
    """
    return {"TEST_BROKER_URL": valkey.url(0), "TEST_BACKEND_URL": valkey.url(1), "TEST_LOCK_URL": valkey.url(2)}


@pytest.fixture
def load_app(urls: dict[str, str]) -> Iterator[LoadApp]:
    """``load_app("plain")``: the module ``apps/plain.py``, its ``app`` new and configured from `urls`."""
    loaded: list[ModuleType] = []

    def load(name: str) -> ModuleType:
        loaded.append(apps.load_app(name, urls))
        return loaded[-1]

    yield load
    for module in loaded:
        apps.close_app(module.app)


@pytest.fixture
def start_worker(urls: dict[str, str], tmp_path: Path) -> Iterator[StartWorker]:
    """``start_worker("plain")``: a real worker of ``apps/plain.py``, taking tasks when the call returns.

    ``pool``, ``concurrency``, ``args`` (more of the command line), ``env`` (on top of `urls`), ``wait=False`` (for
    workers that start side by side; then call ``wait_until_ready()``). It is killed when the test ends, and what it
    printed is shown if the test failed.
    """
    workers: list[Worker] = []

    def start(name: str, *, env: dict[str, str] | None = None, **options: Any) -> Worker:
        node = f"w{len(workers)}"
        worker = Worker(f"{apps.APPS}.{name}", name=node, directory=tmp_path, env={**urls, **(env or {})}, **options)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        print(f"--- worker {worker.log_file.stem}\n{worker.log()[-10_000:]}")


# pytest-celery's celery_setup, on local processes instead of Docker containers. A test adds its tasks (shared_task, in
# a module of apps/) by overriding default_worker_tasks, and settings by default_worker_app.conf.


@pytest.fixture
def default_redis_broker(valkey: Server) -> LocalRedis:
    """pytest-celery's broker container."""
    return LocalRedis(valkey, 0)


@pytest.fixture
def default_redis_backend(valkey: Server) -> LocalRedis:
    """pytest-celery's result backend container."""
    return LocalRedis(valkey, 1)


@pytest.fixture
def celery_broker(default_redis_broker: LocalRedis) -> RedisTestBroker:
    """One broker, where pytest-celery would run the test once for each that Docker offers."""
    return RedisTestBroker(default_redis_broker)


@pytest.fixture
def celery_backend(default_redis_backend: LocalRedis) -> Iterator[RedisTestBackend]:
    """One result backend, as above."""
    backend = RedisTestBackend(default_redis_backend)
    yield backend
    backend.teardown()


@pytest.fixture
def default_worker_app(celery_setup_app: Celery, urls: dict[str, str]) -> Iterator[Celery]:
    """The app of the test, whose settings the worker gets, too."""
    celery_setup_app.conf.update(
        singleton_lock_url=urls["TEST_LOCK_URL"], worker_concurrency=2, worker_prefetch_multiplier=1
    )
    yield celery_setup_app
    celery_setup_app.close()


@pytest.fixture
def default_worker_container_cls() -> type[LocalWorker]:
    """The class whose hooks describe the worker."""
    return LocalWorker


@pytest.fixture(scope="session")
def default_worker_container_session_cls() -> type[LocalWorker]:
    """The same, where pytest-celery asks once a session."""
    return LocalWorker


@pytest.fixture
def default_worker_container(
    default_worker_container_cls: type[LocalWorker],
    default_worker_command: list[str],
    default_worker_env: dict[str, str],
    default_worker_initial_content: dict[str, bytes],
    tmp_path: Path,
) -> Iterator[LocalWorker]:
    """The worker: pytest-celery's generated files in a directory, where Docker would mount a volume."""
    for name, content in default_worker_initial_content.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    bin_directory = str(Path(sys.executable).parent)
    env = {
        **default_worker_env,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "PATH": os.pathsep.join([bin_directory, os.environ["PATH"]]),  # exec_run says "python"
    }
    argv = [sys.executable, "-m", *default_worker_command]
    worker = default_worker_container_cls.launch(argv, env=env, directory=tmp_path)
    yield worker
    worker.teardown()
    print(f"--- worker\n{worker.logs()[-10_000:]}")
