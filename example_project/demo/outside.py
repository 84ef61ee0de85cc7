"""The world outside of the shop: the services that it calls, and their faults."""

from __future__ import annotations

import json
import random
import sys
import time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import Any, NamedTuple

_HANG = 15.0  # seconds: long enough to be killed meanwhile, however slow the machine


class Fault(NamedTuple):
    """What befalls the first request to ``path`` for an event: it ``hangs``, or else there is no answer to it."""

    path: str
    hangs: bool


DOWN, CAPTURE_HANGS, MAIL_HANGS = Fault("captures", False), Fault("captures", True), Fault("mails", True)


class Services(ThreadingTCPServer):
    """A payment gateway, its mails and a label printer, on a free loopback port, in threads of this process.

    ``faults``: what goes wrong, once, by the request's path and event. ``hanging``: what hangs now, by event.
    """

    daemon_threads = True  # nobody waits for the answer to a killed process
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults: dict[tuple[str, str], Fault] = {}
        self.hanging: dict[str, Fault] = {}

    def open(self) -> None:
        """Answer from now on. No process may be forked after that: a fork and threads do not go together."""
        Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Be silent about a client that was killed before its answer, and about nothing else."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def befall(self, path: str, event: str) -> bool:
        """Whether the request is answered. It may take long."""
        fault = self.faults.pop((path, event), None)  # one step, for several threads: only one meets it
        if fault is None:
            return True
        if not fault.hangs:
            return False
        self.hanging[event] = fault
        time.sleep(_HANG)
        self.hanging.pop(event, None)
        return True


class _Request(BaseHTTPRequestHandler):
    server: Services

    def do_POST(self) -> None:
        path = self.path.strip("/")
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["event"]
        if path != "mails":
            time.sleep(random.uniform(0.05, 0.1))
        if self.server.befall(path, event):
            self._answer(200, {"receipt": f"receipt {event}"})
        else:
            self._answer(503, {})

    def _answer(self, status: int, about: dict[str, str]) -> None:
        body = json.dumps(about).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep the show's own lines readable."""
