"""A server, the app ``life`` and its workers, shared by the tests of a module."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery_singleton_lock import open_store
from celery_singleton_lock.keys.names import names
from celery_singleton_lock.locks.answers import Granted, Holder, Taken
from celery_singleton_lock.locks.guard import Guard

from ...support.apps import APPS, close_app, load_app
from ...support.servers import Server, valkey_binary
from ...support.waiting import eventually
from ...support.worker import Worker


class Life:
    """``env``: on top of the URLs; ``broker``: its URL, where it is not the server of everything else."""

    def __init__(self, directory: Path, module: str = "life", broker: str | None = None, **env: str) -> None:
        self.directory = directory
        self.module = module
        self.server = Server(valkey_binary(), directory)
        self.env = {
            "TEST_BROKER_URL": broker or self.server.url(0),
            "TEST_BACKEND_URL": self.server.url(1),
            "TEST_LOCK_URL": self.server.url(2),
            "TEST_NOTES_URL": self.server.url(3),
            **env,
        }
        self.results, self.locks, self.notes = (self.server.client(db) for db in (1, 2, 3))
        self.store = open_store(self.env["TEST_LOCK_URL"])
        self.workers: list[Worker] = []
        self.tasks: Any = load_app(module, self.env)
        self.app = self.tasks.app

    def close(self) -> None:
        """End everything that was started."""
        for worker in self.workers:
            worker.kill()
            print(f"--- worker {worker.log_file.stem}\n{worker.log()[-10_000:]}")
        close_app(self.app)
        for store in (self.store, getattr(self.tasks, "store", None)):
            if store is not None:
                store.close()
        for client in (self.results, self.locks, self.notes, getattr(self.tasks, "notes", None)):
            if client is not None:
                client.close()
        self.server.stop()

    def start_worker(
        self, *, conf: dict[str, Any] | None = None, env: dict[str, str] | None = None, **options: Any
    ) -> Worker:
        """One more worker; ``conf``: settings of the app, there alone."""
        extra = {"TEST_LIFE_CONF": json.dumps(conf)} if conf else {}
        name = f"{self.directory.name}-{len(self.workers)}"
        worker = Worker(
            f"{APPS}.{self.module}",
            name=name,
            directory=self.directory,
            env={**self.env, **extra, **(env or {})},
            **options,
        )
        self.workers.append(worker)
        return worker

    def note(self, where: str, timeout: float = 30.0) -> Any:
        """The next thing that was said under ``where``, waited for."""
        return json.loads(eventually(lambda: self.notes.lpop(where), timeout, f"a note in {where}"))

    def noted(self, where: str) -> list[Any]:
        """All that was said under ``where`` so far."""
        return [json.loads(text) for text in self.notes.lrange(where, 0, -1)]

    def begun(self, key: str) -> Any:
        """Waits for a body to begin."""
        return self.note(f"begun:{key}")

    def go(self, key: str) -> None:
        """Lets the bodies of ``key`` end."""
        self.notes.set(f"go:{key}", 1)

    def runs(self, key: str) -> int:
        """How many bodies have begun."""
        return int(self.notes.get(f"runs:{key}") or 0)

    def holder(self, key: str) -> Taken | None:
        """Who holds the resource of ``key``."""
        return self.store.peek(names(self.store.prefix, f"res:{key}"))

    def lock(self, key: str) -> str:
        """The name of the resource's lock on the server."""
        return names(self.store.prefix, f"res:{key}").lock

    def take_away(self, key: str) -> bool:
        """The server forgets the lock of ``key``; False where there was none."""
        return bool(self.locks.delete(self.lock(key)))

    def waited(self, task_id: str, times: int = 1) -> None:
        """Returns when the message was sent again ``times`` times."""
        eventually(lambda: self.notes.llen(f"lock_waiting:{task_id}") >= times, message=f"{times} waits")

    @contextlib.contextmanager
    def outsider(self, key: str, ttl: float = 60.0) -> Iterator[Guard]:
        """The resource is held by nobody the workers know, for the block or until ``release()``."""
        guard = Guard(self.store, f"res:{key}", ttl=ttl, holder=Holder("an-outsider", "outside", "outside", 1))
        assert isinstance(guard.acquire(), Granted)
        try:
            yield guard
        finally:
            guard.release()

    def redeliver(self) -> None:
        """What kombu does at the visibility timeout: every unacknowledged message goes to its queue again."""
        with self.app.connection(transport_options={"visibility_timeout": -1}) as connection:
            connection.default_channel.qos.restore_visible(interval=1)
