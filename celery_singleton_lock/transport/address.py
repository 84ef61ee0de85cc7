"""Where a server is, how to log in there, and a connection to it that keeps to a deadline."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ..errors import LockConfigError
from .redis_py import Bounded, Tcp, Tls, Unix, skip_log_in
from .requests import Plain, plain
from .urls import HostPort, Url

PING = plain("PING")


class Address:
    """One server. ``display_name``: for logs. Raises `LockConfigError` for an option that cannot be used.

    ``may_fail_over``: the deployment may put another server here, so that a read-only one is worth a second look.
    """

    may_fail_over = False

    def __init__(self, url: Url) -> None:
        self.display_name = url.display_name
        tls = {name: value for name, value in url.options.items() if name.startswith("ssl_")}
        self.options: dict[str, Any] = {
            "protocol": 2,  # RESP2: no handshake, and no push message between two replies
            "health_check_interval": 0,
            "redis_connect_func": skip_log_in,
            **(tls if url.tls else {}),
        }
        self._kind: Callable[..., Bounded] = Tls if url.tls else Tcp
        if url.kind == "socket":
            self._kind = Unix
            self.options["path"] = url.path
        else:
            host, port = url.hosts[0]
            self.options |= {"host": host, "port": port}
            if "socket_keepalive" in url.options:
                self.options["socket_keepalive"] = url.options["socket_keepalive"]
        self.login = _login(url)
        try:
            self.connection(lambda sock, _: sock)
        except (ValueError, TypeError, RedisError) as error:
            # A TypeError names an option that this redis-py does not have; other texts may repeat a value.
            text = str(error).rpartition("() ")[2] if isinstance(error, TypeError) else "an option cannot be used"
            raise LockConfigError(f"singleton_lock_url: {self.display_name!r} cannot be used: {text}") from None

    @property
    def where(self) -> HostPort:
        """Host and port; a socket's path and 0."""
        options = self.options
        return (options["path"], 0) if "path" in options else (options["host"], options["port"])

    def connection(self, wrap: Callable[[Any, float], Any]) -> Bounded:
        """A connection of redis-py, not opened yet, that tries nothing twice. ``wrap``: see `Bounded`."""
        connection = self._kind(**self.options, retry=Retry(NoBackoff(), 0))
        connection.wrap = wrap
        return connection

    def locate(self, seconds: float) -> Address:
        """The server to connect to now, found within ``seconds``. Raises RedisError."""
        return self

    def suspect(self) -> None:
        """The server that `locate` named did not serve: look elsewhere next time."""

    def at(self, host: str, port: int) -> Address:
        """A server at another place of the same deployment."""
        other = copy.copy(self)
        other.display_name = f"{host}:{port}"
        other.options = {**self.options, "host": host, "port": port}
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
