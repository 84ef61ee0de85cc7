"""Where a server is, how to log in there, and a connection to it that keeps to a deadline."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ..errors import LockConfigError
from .bounded import Bounded, Tcp, Tls, Unix
from .script import Plain, plain
from .urls import Url, read

PORT = 6379

PING = plain("PING")


def _greet(connection: Any) -> None:
    # In place of redis-py's own log-in: that takes up to four round trips, each with a timeout of its own, and names
    # itself by a command that a minimal ACL refuses.
    connection._parser.on_connect(connection)


class Address:
    """One server. ``shown``: for logs. Raises `LockConfigError` for a malformed URL, showing no password.

    ``follows``: the deployment may put another server here, so that a read-only one's refusal is worth a second look.
    """

    follows = False

    def __init__(self, url: str | Url) -> None:
        parsed = read(url) if isinstance(url, str) else url
        self.shown = parsed.shown
        tls = {name: value for name, value in parsed.options.items() if name.startswith("ssl_")}
        self._options: dict[str, Any] = {
            "protocol": 2,  # RESP2: no handshake, and no push message between two replies
            "health_check_interval": 0,
            "redis_connect_func": _greet,
            **(tls if parsed.tls else {}),
        }
        self._kind: Callable[..., Bounded] = Tls if parsed.tls else Tcp
        if parsed.kind == "socket":
            self._kind = Unix
            self._options["path"] = parsed.path
        else:
            host, port = parsed.hosts[0]
            self._options |= {"host": host or "localhost", "port": port or PORT}
            if "socket_keepalive" in parsed.options:
                self._options["socket_keepalive"] = parsed.options["socket_keepalive"]
        self.login = _login(parsed)
        try:
            self.connection()
        except (ValueError, TypeError, RedisError) as error:
            # A TypeError names an option that this redis-py does not have; other texts may repeat a value.
            text = str(error).rpartition("() ")[2] if isinstance(error, TypeError) else "an option cannot be used"
            raise LockConfigError(f"singleton_lock_url: {self.shown!r} cannot be used: {text}") from None

    @property
    def where(self) -> tuple[str, int]:
        """Host and port; a socket's path and 0."""
        options = self._options
        return (options["path"], 0) if "path" in options else (options["host"], options["port"])

    def connection(self) -> Bounded:
        """A connection of redis-py, not opened yet, that tries nothing twice."""
        return self._kind(**self._options, retry=Retry(NoBackoff(), 0))

    def locate(self, seconds: float) -> Address:
        """The server to connect to now, found within ``seconds``. Raises RedisError."""
        return self

    def doubt(self) -> None:
        """The server that `locate` named did not serve: look elsewhere next time."""

    def at(self, host: str, port: int) -> Address:
        """A server at another place of the same deployment."""
        other = copy.copy(self)
        other.shown = f"{host}:{port}"
        other._options = {**self._options, "host": host, "port": port}
        return other


def _login(url: Url) -> list[Plain]:
    requests = []
    if url.password is not None or url.username is not None:
        user = [url.username] if url.username is not None else []
        requests.append(plain("AUTH", *user, url.password or ""))
    if url.db:
        requests.append(plain("SELECT", url.db))
    if url.tls and not requests:
        # What TLS itself sends after its handshake would look like a reply; it is read with the reply to this.
        requests.append(PING)
    return requests
