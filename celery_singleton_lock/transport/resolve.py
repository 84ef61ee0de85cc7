"""A host's addresses within a bound: the system's own lookup has none, and a name server may be silent for long."""

from __future__ import annotations

import ipaddress
import socket
import threading

from ..locks.forks import forget_in_children


class _Lookup:
    """One question to the system, in a thread that nobody has to wait for."""

    def __init__(self, resolver: Resolver, host: str, port: int) -> None:
        self._resolver = resolver
        self._host, self._port = host, port
        self._ended = False
        self._gates: set[threading.Lock] = set()
        self.found: list[str] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            entries = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self.found = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except Exception as error:  # noqa: BLE001  # a malformed name raises UnicodeError, which is no OSError
            self.error = error
        finally:
            self._resolver.ended(self._host, self._port)
            self._ended = True
            for gate in list(self._gates):
                gate.release()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, waited for ``seconds`` at most.

        Each caller has a lock of its own. They share no Condition: a time limit that strikes inside of it, which is
        Python code, would leave its lock taken, and everybody waiting for ever.
        """
        gate = threading.Lock()
        gate.acquire()
        self._gates.add(gate)  # before the look: it is opened, or the end is seen
        try:
            return self._ended or gate.acquire(timeout=seconds)
        finally:
            self._gates.discard(gate)  # a silent name server may have callers without end


class Resolver:
    """Asks for each host once at a time: however many calls give up, a silent name server costs one thread a host."""

    def __init__(self) -> None:
        self.forget()
        forget_in_children(self)

    def addresses(self, host: str, port: int, seconds: float) -> list[str]:
        """The numeric addresses of ``host``, in the system's order.

        Raises TimeoutError where they are not known within ``seconds``, else what ``socket.getaddrinfo`` raises, or
        OSError where no thread can be started.
        """
        if _is_numeric(host):
            return [host]
        lookup = self._lookup(host, port)
        if not lookup.wait(max(0.0, seconds)):
            raise TimeoutError("the host's name was not resolved in time")
        if lookup.error is not None:
            raise type(lookup.error)(*lookup.error.args)  # anew: callers share the lookup, and a traceback grows
        return lookup.found

    def _lookup(self, host: str, port: int) -> _Lookup:
        with self._lock:
            lookup = self._running.get((host, port))
            if lookup is None:
                try:
                    lookup = self._running[host, port] = _Lookup(self, host, port)
                    threading.Thread(target=lookup.run, name="singleton-lock-resolve", daemon=True).start()
                except RuntimeError:  # the system has no thread to give
                    self.ended(host, port)
                    raise OSError("no thread can be started to look up the host's name") from None
                except BaseException:  # nobody may wait for one that does not run
                    self.ended(host, port)
                    raise
            return lookup

    def ended(self, host: str, port: int) -> None:
        """The lookup is over; the next caller asks anew."""
        self._running.pop((host, port), None)

    def forget(self) -> None:
        """In a forked child: the threads are not here."""
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], _Lookup] = {}


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


RESOLVER = Resolver()
