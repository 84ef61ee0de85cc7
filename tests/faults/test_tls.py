"""TLS, unix sockets, users and passwords on a real server: the URL's spelling of each reaches it."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.tasks.settings import LockSettings

from ..support.locks import held_lock
from ..support.tls import Certificates, TlsServer

PASSWORD = "p@ss:w/ord#ü %?;,"
USER = "us:er/1@"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """What the module's servers and clients show."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[TlsServer]:
    """A server that asks no certificate of its clients."""
    server = TlsServer(tmp_path_factory.mktemp("tls"), certificates)
    server.run("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "+@all")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[TlsServer]:
    """A server that demands a certificate of its clients."""
    server = TlsServer(tmp_path_factory.mktemp("strict"), certificates, clients=True)
    yield server
    server.stop()


def works(url: str, **options: Any) -> None:
    """A lock can be taken and freed there."""
    store = open_store(url, **options)
    assert store.release(held_lock(store, "order:1"))
    store.close()


@pytest.mark.parametrize("reqs", ["required", "CERT_REQUIRED", "optional", "none", "CERT_NONE", None])
def test_spellings(server: TlsServer, certificates: Certificates, reqs: str | None) -> None:
    """redis-py's and Celery's words for what is checked; by default the certificate is."""
    ca = f"&ssl_ca_certs={certificates.crt('ca')}" if reqs not in ("none", "CERT_NONE") else ""
    works(f"rediss://127.0.0.1:{server.tls_port}/3?{f'ssl_cert_reqs={reqs}' if reqs else ''}{ca}")


@pytest.mark.parametrize("query", ["", "ssl_ca_certs={stranger}", "ssl_ca_certs={stranger}&ssl_check_hostname=false"])
def test_a_server_that_is_not_trusted(server: TlsServer, certificates: Certificates, query: str) -> None:
    """A certificate of an unknown authority is denied: it is never a reason to run without a lock."""
    url = f"rediss://127.0.0.1:{server.tls_port}/0?{query.format(stranger=certificates.crt('stranger'))}"
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED") as caught:
        held_lock(open_store(url), "order:1")
    assert caught.value.denied is True


def test_another_hosts_certificate(server: TlsServer, certificates: Certificates) -> None:
    """The name is checked, unless the URL says not to."""
    url = f"rediss://localhost:{server.tls_port}/0?ssl_ca_certs={certificates.crt('ca')}"
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        held_lock(open_store(url), "order:1")
    works(f"{url}&ssl_check_hostname=false")


def test_a_clients_certificate(strict: TlsServer, certificates: Certificates) -> None:
    """A server that demands one gets it; without it the server turns us down, and that is denied."""
    url = f"rediss://127.0.0.1:{strict.tls_port}/0?ssl_ca_certs={certificates.crt('ca')}"
    works(f"{url}&ssl_certfile={certificates.crt('client')}&ssl_keyfile={certificates.key('client')}")
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_REQUIRED") as caught:
        held_lock(open_store(url), "order:1")
    assert caught.value.denied is True


def test_the_wrong_kind_of_port(server: TlsServer) -> None:
    """TLS to a plain port, and plain to a TLS port, is out of reach in bounded time, and not denied."""
    for url in (f"rediss://127.0.0.1:{server.port}/0?ssl_cert_reqs=none", f"redis://127.0.0.1:{server.tls_port}/0"):
        start = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            held_lock(open_store(url, timeout=0.5), "order:1")
        assert time.monotonic() - start < 0.5 + 2.0
        assert caught.value.denied is False


def test_a_handshake_that_never_ends() -> None:
    """A port that accepts and says nothing: name, connect, TLS and log-in share the call's bound."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(StoreUnavailable):
            held_lock(open_store(f"rediss://:pw@127.0.0.1:{silent.getsockname()[1]}/1", timeout=0.4), "order:1")
        assert time.monotonic() - start < 0.4 + 2.0


def test_a_quorum_by_tls(server: TlsServer, strict: TlsServer, certificates: Certificates, tmp_path: Path) -> None:
    """A quorum's servers may each be spoken to in their own way."""
    ca = f"ssl_ca_certs={certificates.crt('ca')}"
    mine = f"ssl_certfile={certificates.crt('client')}&ssl_keyfile={certificates.key('client')}"
    store = open_store(
        [
            f"rediss://127.0.0.1:{server.tls_port}/1?{ca}",
            f"rediss://127.0.0.1:{strict.tls_port}/1?{ca}&{mine}",
            "redis://127.0.0.1:1/0",
        ],
        timeout=0.5,
    )
    with server.client() as client:
        for _ in range(5):
            lock = held_lock(store, "order:1")
            assert store.renew([lock], 1.0) == [True]
            assert store.release(lock)
        before = client.info("stats")["total_connections_received"]
        time.sleep(0.7)  # a connection outlives the bound of the call that opened it
        assert store.release(held_lock(store, "order:1"))
        assert client.info("stats")["total_connections_received"] == before
    store.close()


def test_user_and_password(server: TlsServer) -> None:
    """Percent-encoded, each arrives as it was meant, and neither is shown when it is wrong (B46, B47)."""
    user, password = quote(USER, safe=""), quote(PASSWORD, safe="")
    works(f"redis://{user}:{password}@127.0.0.1:{server.port}/2")
    works(f"unix://{user}:{password}@{server.socket}?db=2")
    works(f"redis://127.0.0.1:{server.port}/2?username={user}&password={password}")
    with pytest.raises(StoreUnavailable, match="WRONGPASS") as caught:
        held_lock(open_store(f"redis://{user}:{password}x@127.0.0.1:{server.port}/2"), "order:1")
    assert PASSWORD not in str(caught.value)
    assert password not in str(caught.value)


@pytest.mark.parametrize("form", ["unix://{}?db=5", "redis+socket://{}?virtual_host=5", "unix://{}?virtual_host=/5"])
def test_unix_socket(server: TlsServer, form: str) -> None:
    """redis-py's and Celery's words for a socket and its database."""
    store = open_store(form.format(server.socket))
    lock = held_lock(store, "order:1")
    with server.client(db=5) as client:
        assert client.exists(lock.names.lock) == 1
    store.release(lock)
    store.close()


def test_no_socket_there(tmp_path: Path) -> None:
    """A socket that is not there is out of reach."""
    with pytest.raises(StoreUnavailable):
        held_lock(open_store(f"unix://{tmp_path}/none.sock"), "order:1")


CA = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "{ca}"}


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_url": "redis://127.0.0.1:{tls}/4", "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE}},
        {"broker_url": "redis://127.0.0.1:{tls}/4", "broker_use_ssl": CA},
        {"broker_url": "rediss://127.0.0.1:{tls}/4", "broker_use_ssl": CA},
        {"broker_url": "rediss://127.0.0.1:{tls}/4?ssl_cert_reqs=CERT_NONE"},
        {"broker_url": "rediss://127.0.0.1:{tls}/4"},  # kombu's default: not checked
        {"broker_url": "redis+socket://{socket}?virtual_host=4"},
        {"broker_url": "amqp://", "result_backend": "redis+socket://{socket}?virtual_host=4"},
        {"broker_url": "amqp://", "result_backend": "redis://127.0.0.1:{tls}/4", "redis_backend_use_ssl": CA},
        {"broker_url": "amqp://", "result_backend": "rediss://127.0.0.1:{tls}/4?ssl_cert_reqs=none"},
    ],
    ids=str,
)
def test_where_the_app_points(server: TlsServer, certificates: Certificates, conf: dict[str, Any]) -> None:
    """Without a URL the locks go where the broker or the result backend is, in the same way (B46)."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        if not isinstance(value, str):
            return value
        return value.format(tls=server.tls_port, socket=server.socket, ca=certificates.crt("ca"))

    app = Celery("shop", set_as_current=False)
    app.conf.update(filled(conf))
    store = LockSettings(app).store
    lock = held_lock(store, "order:1")
    with server.client(db=4) as client:
        assert client.exists(lock.names.lock) == 1
    store.release(lock)
    store.close()
