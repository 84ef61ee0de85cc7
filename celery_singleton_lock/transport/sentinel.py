"""A server that Sentinels watch over: asked for at each new connection, so that a failover is followed."""

from __future__ import annotations

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ..errors import LockConfigError
from ..locks.clock import now
from .address import Address
from .connection import Link
from .errors import is_denied
from .requests import plain
from .urls import Url


class SentinelAddress(Address):
    """The master of one name. Credentials before the hosts are the master's; the Sentinels' are options of the URL."""

    may_fail_over = True

    def __init__(self, url: Url) -> None:
        name = url.options.get("master_name")
        if not name:
            raise LockConfigError(
                f"singleton_lock_url: {url.display_name!r} does not say which master: add ?master_name=mymaster"
            )
        super().__init__(url)
        self._request = plain("SENTINEL", "get-master-addr-by-name", name)
        self._master = name
        self._sentinels = [_sentinel(url, host, port) for host, port in url.hosts]
        self._first = 0

    def locate(self, seconds: float) -> Address:
        """The master's address as the first Sentinel that answers knows it. Raises RedisError."""
        end = now() + seconds
        count = len(self._sentinels)
        errors: list[RedisError] = []
        for turn in range(count):
            sentinel = self._sentinels[(self._first + turn) % count]
            link = Link(sentinel)
            try:
                # The rest of the time is shared with the Sentinels that are still to be asked, and with the master.
                (reply,) = link.exchange([self._request], (end - now()) / (count - turn + 1))
            except RedisError as error:
                reply = error
            finally:
                link.close()
            if isinstance(reply, list):
                self._first = (self._first + turn) % count
                host, port = reply
                return self.at(host.decode(), int(port))
            errors.append(reply if isinstance(reply, RedisError) else self._unknown(sentinel))
        raise next(filter(is_denied, errors), errors[0])

    def _unknown(self, sentinel: Address) -> RedisError:
        return RedisConnectionError(f"the Sentinel {sentinel.display_name} knows no master named {self._master!r}")

    def suspect(self) -> None:
        """Another Sentinel may know better."""
        self._first = (self._first + 1) % len(self._sentinels)


def _sentinel(url: Url, host: str, port: int) -> Address:
    options = url.options
    address = Address(
        url._replace(
            kind="server",
            hosts=[(host, port)],
            username=options.get("sentinel_username"),
            password=options.get("sentinel_password"),
            db=0,
            tls=options.get("sentinel_ssl", url.tls),
        )
    )
    address.display_name = f"{host}:{port}"
    return address
