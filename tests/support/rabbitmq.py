"""A private RabbitMQ server: its own node name, ports, cookie and files. It takes about ten seconds to start."""

from __future__ import annotations

import secrets
from pathlib import Path

from .process import Process
from .servers import free_port, require
from .waiting import eventually

# The script of the same name on PATH changes to another user; this one runs as it is called.
_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class RabbitMQ:
    """A running RabbitMQ with the user guest; ``directory`` holds all of its files."""

    def __init__(self, directory: Path) -> None:
        server, epmd = require(_SERVER), require("epmd")
        self.port = free_port()
        name, names_port, node_port = f"t{secrets.token_hex(4)}", str(free_port()), str(free_port())
        cookie = directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(10))
        cookie.chmod(0o400)
        env = {
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": names_port,
            "RABBITMQ_NODENAME": f"{name}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": node_port,
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none-env"),
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server instead of waiting for it
        }
        # Erlang would start its port mapper as a daemon that outlives everything; it finds this one instead.
        self._names = Process([epmd, "-port", names_port], log=directory / "epmd.log", env=env)
        self.process = Process([server], log=directory / "rabbitmq.log", env=env, cwd=directory)
        try:
            self.process.wait_for_log("completed with", timeout=90)
            eventually(self._answers, message="RabbitMQ's start")
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The broker URL, for Celery."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def stop(self) -> None:
        """The end of the server and of its port mapper."""
        self.process.kill()
        self._names.kill()

    def _answers(self) -> bool:
        from kombu.connection import Connection

        with Connection(self.url, connect_timeout=2) as connection:
            try:
                connection.connect()
            except OSError:
                return False
            return True
