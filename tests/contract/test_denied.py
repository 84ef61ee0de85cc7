"""A server that turns us away: denied is not out of reach, and no secret is shown."""

from __future__ import annotations

import pytest

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.stores.redis import RedisStore

from ..support.locks import Owner
from ..support.servers import StartServer

SECRET = "s3cret"


def denied(store: Store) -> StoreUnavailable:
    """How the store refuses an acquire."""
    with pytest.raises(StoreUnavailable) as caught:
        Owner(store, "a", key="tok_abc").acquire()
    assert SECRET not in repr(caught.value) + str(caught.value) + repr(store)
    assert "tok_abc" not in str(caught.value)
    return caught.value


def test_wrong_credentials(start_server: StartServer) -> None:
    """A wrong or missing password is denied, which no policy may take for out of reach; it is not shown (B46, B47)."""
    server = start_server()
    with server.client() as admin:
        admin.config_set("requirepass", "right")
    for user in (f":{SECRET}@", f"someone:{SECRET}@", ""):
        assert denied(open_store(f"redis://{user}127.0.0.1:{server.port}/0")).denied is True
    good = open_store(f"redis://:right@127.0.0.1:{server.port}/0", timeout=5.0)
    assert Owner(good, "a").granted()
    good.close()


#: The commands that docs/options.md says are needed.
NEEDED = "evalsha eval get mget set del getrange pexpire pttl time zadd zrem zremrangebyscore"


def test_missing_permissions(start_server: StartServer) -> None:
    """A user who may not touch our keys, or not run one of the scripts' commands, is denied as well (B48)."""
    server = start_server()
    with server.client() as admin:
        admin.acl_setuser("keys", enabled=True, passwords=[f"+{SECRET}"], keys=["other:*"], commands=["+@all"])
        admin.acl_setuser("commands", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], commands=["+@all", "-zadd"])
        enough = [f"+{name}" for name in NEEDED.split()]
        admin.acl_setuser("enough", enabled=True, passwords=[f"+{SECRET}"], keys=["singleton-lock:*"], commands=enough)
    for user in ("keys", "commands"):
        assert denied(open_store(f"redis://{user}:{SECRET}@127.0.0.1:{server.port}/0")).denied is True
    good = open_store(f"redis://enough:{SECRET}@127.0.0.1:{server.port}/0", timeout=5.0)
    anna = Owner(good, "a", key="order:8")
    anna.granted()
    assert anna.renew() is True
    assert good.peek(anna.names) is not None
    assert anna.record() is True
    good.close()


def test_store_shows_no_password() -> None:
    """A store's repr has its server and not its password (B47)."""
    store = open_store(f"redis://user:{SECRET}@localhost:6379/0")
    assert isinstance(store, RedisStore)
    assert SECRET not in repr(store)
    assert "localhost:6379" in repr(store)
