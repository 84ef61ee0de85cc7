"""Certificates for a test, made by the openssl program, and a server that speaks TLS with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .servers import Server, redis_binary, require


class Certificates:
    """A private authority (``ca``), a server's certificate for 127.0.0.1 and a client's, each with its key.

    ``stranger``: an authority that signed none of them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._openssl = require("openssl")
        for authority in ("ca", "stranger"):
            self._run(
                *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
                *("-subj", f"/CN={authority}", "-addext", "keyUsage=critical,keyCertSign"),
                *("-keyout", self.key(authority), "-out", self.crt(authority)),
            )
        self._sign("server", "subjectAltName=IP:127.0.0.1")
        self._sign("client", "subjectAltName=DNS:client")

    def crt(self, name: str) -> str:
        """The path of a certificate."""
        return str(self._directory / f"{name}.crt")

    def key(self, name: str) -> str:
        """The path of its private key."""
        return str(self._directory / f"{name}.key")

    def _sign(self, name: str, extension: str) -> None:
        request, extensions = str(self._directory / f"{name}.csr"), self._directory / f"{name}.ext"
        extensions.write_text(extension + "\n")
        self._run(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", self.key(name), "-out", request),
        )
        self._run(
            *("x509", "-req", "-in", request, "-CA", self.crt("ca"), "-CAkey", self.key("ca"), "-CAcreateserial"),
            *("-days", "2", "-extfile", str(extensions), "-out", self.crt(name)),
        )

    def _run(self, *args: str) -> None:
        subprocess.run([self._openssl, *args], check=True, capture_output=True, timeout=30)


class TlsServer(Server):
    """The system's own Redis server; ``tls_port`` is the one that speaks TLS, ``socket`` its unix socket.

    ``options``: the server's own; ``clients``: whether it demands a certificate of who comes.
    """

    def __init__(self, directory: Path, certificates: Certificates, *options: str, clients: bool = False) -> None:
        from .servers import free_port

        self.tls_port = free_port()
        self.socket = str(directory / "redis.sock")
        super().__init__(
            redis_binary(),
            directory,
            *("--tls-port", str(self.tls_port), "--tls-auth-clients", "yes" if clients else "no"),
            *("--tls-cert-file", certificates.crt("server"), "--tls-key-file", certificates.key("server")),
            *("--tls-ca-cert-file", certificates.crt("ca"), "--unixsocket", self.socket),
            *options,
            name="tls",
        )
