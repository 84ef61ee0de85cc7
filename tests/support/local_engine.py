"""A Docker-free engine for pytest-celery: local processes that look like docker-py's containers."""

from __future__ import annotations

import signal as signals
import subprocess
from pathlib import Path
from typing import Any

from pytest_celery import CeleryWorkerContainer, RedisContainer

from .process import Process
from .servers import Server


class LocalContainer:
    """What pytest-celery asks of ``docker.models.containers.Container``, answered by a `Process`."""

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = self.id = name

    @property
    def status(self) -> str:
        """Docker's word for the process's state."""
        return "running" if self.process.running else "exited"

    @property
    def attrs(self) -> dict[str, Any]:
        """The few fields of ``docker inspect`` that are read."""
        return {
            "Config": {"Hostname": "127.0.0.1", "Env": [f"{k}={v}" for k, v in self.process.env.items()]},
            "HostConfig": {"PortBindings": None},
            "NetworkSettings": {"Networks": {"lo": {"IPAddress": "127.0.0.1"}}, "Ports": {}},
            "State": {"Pid": self.process.pid, "ExitCode": self.process.exit_code},
        }

    def reload(self) -> None:
        """Nothing to do: `status` and `attrs` are always fresh."""

    def logs(self, **_: Any) -> bytes:
        """The output since the last start."""
        return self.process.log().encode()

    def kill(self, signal: str | int | None = None) -> None:
        """Sends a signal; SIGKILL, the default, ends the whole group, as it does in a container."""
        number = signals.Signals[signal] if isinstance(signal, str) else signals.Signals(signal or signals.SIGKILL)
        if number == signals.SIGKILL:
            self.process.kill()
        else:
            self.process.send(number)

    def stop(self, timeout: float = 10.0) -> None:
        """SIGTERM, then SIGKILL."""
        self.process.stop(timeout)

    def restart(self, timeout: float = 10.0) -> None:
        """The same command again."""
        self.process.stop(timeout)
        self.process.start()

    def exec_run(self, cmd: str | list[str], **_: Any) -> tuple[int, bytes]:
        """Runs a command beside the process, with its environment and directory: its exit code and output."""
        done = subprocess.run(
            cmd,
            shell=isinstance(cmd, str),
            env=self.process.env,
            cwd=self.process.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.returncode, done.stdout


class LocalRedis(RedisContainer):  # type: ignore[misc]  # pytest-celery has no types
    """pytest-celery's view of a `Server`, which belongs to a longer-lived fixture: teardown leaves it."""

    def __init__(self, server: Server, vhost: int) -> None:
        super().__init__(LocalContainer(server.process, f"redis-{server.port}-{vhost}"))
        self._server, self._vhost = server, vhost

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def vhost(self) -> str:
        return str(self._vhost)

    @property
    def url(self) -> str:
        return self._server.url(self._vhost)

    host_url = url


class LocalWorker(CeleryWorkerContainer):  # type: ignore[misc]  # pytest-celery has no types
    """pytest-celery's view of a worker process, which ends with the test."""

    @classmethod
    def launch(cls, argv: list[str], *, env: dict[str, str], directory: Path) -> LocalWorker:
        """Starts a worker in ``directory`` and waits until it takes tasks."""
        process = Process(argv, env=env, cwd=directory, log=directory / "worker.log")
        worker = cls(LocalContainer(process, "worker"))
        process.wait_for_log(worker.ready_prompt, 30)
        return worker

    def teardown(self) -> None:
        self._container.kill()
