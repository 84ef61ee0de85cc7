"""A stage for the tests of one module: a server, an app with locked tasks, and its real workers.

Starting a worker costs more than most tests take, so they share it: every test uses resources of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from celery_singleton_lock import open_store
from celery_singleton_lock.keys.names import names
from celery_singleton_lock.locks.answers import Granted, Holder, Taken
from celery_singleton_lock.locks.guard import Guard

from ..support.apps import APPS, close_app, load_app
from ..support.servers import Server, valkey_binary
from ..support.waiting import eventually
from ..support.worker import Worker

BROKER, RESULTS, LOCKS, NOTES = range(4)
PREFIX = "singleton-lock"


def resource(name: str) -> str:
    """The resource of the tasks that are called with ``name``."""
    return f"res:{name}"


def lock_name(resource: str) -> str:
    """The key of a resource's lock on the server, after the documented layout."""
    return _name("lock", resource)


def fence_name(resource: str) -> str:
    """The key of a resource's last fencing token."""
    return _name("fence", resource)


def _name(kind: str, resource: str) -> str:
    bucket = hashlib.sha256(resource.encode()).hexdigest()[:2]
    return f"{PREFIX}:1:{{{bucket}}}:{kind}:{resource}"


def key_id(resource: str) -> str:
    """What logs, signals and errors show of a resource."""
    return hashlib.sha256(resource.encode()).hexdigest()[:16]


class Tasks:
    """The tasks of an app, by the last part of their names."""

    def __init__(self, app: Any) -> None:
        self._tasks = {name.rpartition(".")[2]: task for name, task in app.tasks.items()}

    def __getattr__(self, name: str) -> Any:
        try:
            return self._tasks[name]
        except KeyError:
            raise AttributeError(f"the app has no task {name}") from None


class Stage:
    """``directory``: for logs; ``module``: the file in apps/; ``env``: for the app, here and in workers.

    ``locks_apart``: locks are on a server of their own, which a test may pause or kill. ``password``: of the servers.
    ``broker_url``: of another broker than the stage's own server.

    It has the ``app``, its ``app_module``, its ``tasks``; its servers, and clients of what is kept there.
    """

    def __init__(
        self,
        directory: Path,
        module: str = "locked",
        *,
        locks_apart: bool = False,
        password: str = "",
        broker_url: str | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.module = module
        self.password = password
        self.workers: list[Worker] = []
        with contextlib.ExitStack() as end:
            self.server = self._start_server("server", end)
            self.lock_server = self._start_server("locks", end) if locks_apart else self.server
            self.env = {
                "TEST_BROKER_URL": broker_url or self._url(self.server, BROKER),
                "TEST_BACKEND_URL": self._url(self.server, RESULTS),
                "TEST_LOCK_URL": self._url(self.lock_server, LOCKS),
                "TEST_NOTES_URL": self._url(self.server, NOTES),
                "C_FORCE_ROOT": "1",  # a worker of root refuses pickle
                **(env or {}),
            }
            self.results = self._client(self.server, RESULTS, end)
            self.locks = self._client(self.lock_server, LOCKS, end)
            self.notes = self._client(self.server, NOTES, end)
            self.broker = self._client(self.server, BROKER, end)
            self.store = open_store(self.env["TEST_LOCK_URL"])
            end.callback(self.store.close)
            self.app_module: Any = load_app(module, self.env)
            self.app = self.app_module.app
            end.callback(self._close_app)
            self.tasks = Tasks(self.app)
            end.callback(self._end_workers)
            self._end = end.pop_all()

    def __enter__(self) -> Stage:
        return self

    def close(self) -> None:
        """End everything that was started."""
        self._end.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_server(self, name: str, end: contextlib.ExitStack) -> Server:
        server = Server(valkey_binary(), self.directory, name=name)
        end.callback(server.stop)
        if self.password:
            with server.client() as client:
                client.config_set("requirepass", self.password)
        return server

    def _url(self, server: Server, db: int) -> str:
        return server.url(db).replace("//", f"//:{self.password}@") if self.password else server.url(db)

    def _client(self, server: Server, db: int, end: contextlib.ExitStack) -> Any:
        client = server.client(db)
        if self.password:
            client.connection_pool.connection_kwargs["password"] = self.password
        end.callback(client.close)
        return client

    def _close_app(self) -> None:
        close_app(self.app)
        for name in ("notes", "store"):
            if hasattr(self.app_module, name):
                getattr(self.app_module, name).close()

    def _end_workers(self) -> None:
        for worker in self.workers:
            worker.kill()
            print(f"--- worker {worker.log_file.stem}\n{worker.log()[-10_000:]}")

    def start_worker(
        self, *, conf: dict[str, Any] | None = None, env: dict[str, str] | None = None, **options: Any
    ) -> Worker:
        """One more worker of the app; it lives until the stage ends, unless the test kills it.

        ``conf``: settings of its app alone; ``env``: of its environment.
        """
        extra = {"TEST_CONF": json.dumps(conf)} if conf else {}
        worker = Worker(
            f"{APPS}.{self.module}",
            name=f"{self.directory.name}-{len(self.workers)}",
            directory=self.directory,
            env={**self.env, **extra, **(env or {})},
            **options,
        )
        self.workers.append(worker)
        return worker

    def note(self, where: str, timeout: float = 30.0) -> Any:
        """The next thing that a task said under ``where``, waited for."""
        return json.loads(eventually(lambda: self.notes.lpop(where), timeout, f"a note in {where}"))

    def noted(self, where: str) -> list[Any]:
        """All that was said under ``where`` so far."""
        return [json.loads(text) for text in self.notes.lrange(where, 0, -1)]

    def heard(self, signal: str, task_id: str) -> list[Any]:
        """The fields of each ``signal`` that workers sent for a task."""
        return self.noted(f"signal:{signal}:{task_id}")

    def begun(self, name: str) -> Any:
        """Waits for a body to begin that was called with ``name``: what it says of itself."""
        return self.note(f"begun:{name}")

    def runs(self, name: str) -> int:
        """How many bodies have begun."""
        return int(self.notes.get(f"runs:{name}") or 0)

    def go(self, name: str, count: int = 1) -> None:
        """Lets ``count`` bodies go on that wait for it, or all that look for it."""
        self.notes.rpush(f"go:{name}", *[1] * count)

    def lock(self, resource: str) -> str | None:
        """The value of the resource's lock on the server."""
        value: str | None = self.locks.get(lock_name(resource))
        return value

    def until_waiting(self, task_id: str, waits: int = 1) -> None:
        """Returns when the message was sent again for the lock ``waits`` times."""
        eventually(lambda: len(self.heard("lock_waiting", task_id)) >= waits, message=f"{waits} waits of {task_id}")

    def holder(self, name: str) -> Taken | None:
        """Who holds the resource of the tasks that are called with ``name``."""
        return self.store.peek(names(self.store.prefix, resource(name)))

    def take_away(self, name: str) -> bool:
        """The server forgets that lock; False where there was none."""
        return bool(self.locks.delete(lock_name(resource(name))))

    def redeliver(self) -> None:
        """What kombu does at the visibility timeout: every unacknowledged message goes to its queue again."""
        with self.app.connection(transport_options={"visibility_timeout": -1}) as connection:
            connection.default_channel.qos.restore_visible(interval=1)

    @contextlib.contextmanager
    def outsider(self, resource: str, task_id: str | None = "an-outsider", ttl: float = 30.0) -> Iterator[Guard]:
        """The resource is held by somebody outside of the app's workers, for the block or until ``release()``."""
        guard = Guard(self.store, resource, ttl=ttl, holder=Holder(task_id, "outside.task", "outside-host", 1))
        assert isinstance(guard.acquire(), Granted)
        try:
            yield guard
        finally:
            guard.release()
