"""A TCP proxy in front of a server, with the faults of a network."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Queue


class _Pair:
    """One client's connection and the one to the server behind it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.request = b""  # one that is kept back; then the server's replies go into the queue
        self.replies: Queue[bytes] = Queue()

    def close(self) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class Proxy:
    """``port``: where clients connect. One fault is armed at a time and strikes once; then the proxy is sound again."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        self._pairs: list[_Pair] = []
        self._on_request: Callable[[_Pair, bytes], bool] | None = None
        self._on_reply: Callable[[_Pair, bytes], bool] | None = None
        self._late: list[_Pair] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the server behind the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cut_after_request(self, times: int = 1) -> None:
        """Let the next request be carried out, and cut the connection in place of its reply; so with those after it."""

        def cut(pair: _Pair, data: bytes) -> bool:
            if times > 1:
                self.cut_after_request(times - 1)
            pair.close()
            return True

        self._on_reply = cut

    def cut_in_reply(self) -> None:
        """Let the next request be carried out, and cut the connection in the middle of its reply."""

        def cut(pair: _Pair, data: bytes) -> bool:
            pair.client.sendall(data[: len(data) // 2])
            pair.close()
            return True

        self._on_reply = cut

    def swallow_reply(self) -> None:
        """Let the next request be carried out and lose its reply; the connection stays."""
        self._on_reply = lambda _, __: True

    def delay_request(self) -> None:
        """Cut the client's connection when its next request has arrived; the request stays, until `deliver`."""

        def keep(pair: _Pair, data: bytes) -> bool:
            pair.request = data
            self._late.append(pair)
            pair.client.shutdown(socket.SHUT_RDWR)
            return True

        self._on_request = keep

    def deliver(self) -> bytes:
        """Let the request that stayed reach the server now; returns the server's reply to it."""
        pair = self._late.pop()
        pair.server.sendall(pair.request)
        reply = pair.replies.get(timeout=20)
        pair.close()
        return reply

    def close(self) -> None:
        """The end of every connection, and of the port."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept()
        self._listener.close()
        for pair in self._pairs:
            pair.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                pair = _Pair(client, socket.create_connection(("127.0.0.1", self._server_port)))
                self.accepted += 1
                self._pairs.append(pair)
                threading.Thread(target=self._pump, args=(pair, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(pair, False), daemon=True).start()

    def _pump(self, pair: _Pair, requests: bool) -> None:
        source, target = (pair.client, pair.server) if requests else (pair.server, pair.client)
        with suppress(OSError):
            while data := source.recv(65536):
                if pair.request and not requests:
                    pair.replies.put(data)
                elif not self._strikes(pair, data, requests):
                    target.sendall(data)
        if not pair.request:
            pair.close()

    def _strikes(self, pair: _Pair, data: bytes, requests: bool) -> bool:
        fault = self._on_request if requests else self._on_reply
        # What redis-py says of itself on a new connection is not the request that is meant.
        if fault is None or (b"EVAL" not in data if requests else data.startswith((b"+OK", b"-NOSCRIPT"))):
            return False
        if requests:
            self._on_request = None
        else:
            self._on_reply = None
        return fault(pair, data)
