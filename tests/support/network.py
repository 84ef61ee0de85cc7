"""Cables: TCP proxies between clients and servers, with the faults of a network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from .waiting import eventually


class _End(asyncio.Protocol):
    """One side of one connection through a cable."""

    def __init__(self, cable: Cable, towards_server: bool) -> None:
        self.cable = cable
        self.towards_server = towards_server  # what comes in here goes to the server
        self.other: _End | None = None
        self.transport: Any = None
        self.early: list[bytes] = []  # until the other side is connected

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.cable.ends.add(self)
        if self.towards_server:
            self.cable.network.spawn(self._connect())

    async def _connect(self) -> None:
        far = _End(self.cable, False)
        try:
            await asyncio.get_running_loop().create_connection(lambda: far, "127.0.0.1", self.cable.server_port)
        except OSError:
            self.transport.abort()
            return
        far.other, self.other = self, far
        for data in self.early:
            self.cable.carry(far, data, True)
        if self.transport.is_closing():
            far.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early.append(data)
        else:
            self.cable.carry(self.other, data, self.towards_server)

    def connection_lost(self, error: Exception | None) -> None:
        self.cable.ends.discard(self)
        if self.other is not None and not self.cable.held:
            self.other.transport.close()


class Cable:
    """The way to one server. Sound at first; every fault lasts until `heal`."""

    def __init__(self, network: Network, server_port: int) -> None:
        self.network = network
        self.server_port = server_port
        self.ends: set[_End] = set()
        self.held = False
        self.delay = 0.0
        self.swallowing = False
        self._waiting: list[tuple[_End, bytes]] = []
        self._listener = network.call(self._listen())
        self.port: int = self._listener.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """The URL of the server behind the cable."""
        return f"redis://127.0.0.1:{self.port}/0"

    def hold(self) -> None:
        """Nothing gets through in either direction; what is sent arrives after `heal`, however late."""
        self.network.do(lambda: setattr(self, "held", True))

    def slow(self, seconds: float) -> None:
        """Everything takes ``seconds`` longer, each way."""
        self.network.do(lambda: setattr(self, "delay", seconds))

    def swallow(self) -> None:
        """Requests arrive, replies are lost; the connections stay."""
        self.network.do(lambda: setattr(self, "swallowing", True))

    def cut(self) -> None:
        """Every connection breaks, and what was on its way is lost; new ones are possible."""
        self.network.do(self._cut)

    def heal(self) -> None:
        """Sound again; what was held arrives now. Connections that lost replies break."""
        self.network.do(self._heal)

    def lose_held(self) -> None:
        """Wait until a request is held, and lose it with its connection; new ones are sound."""
        eventually(lambda: self._waiting, 20, "a request")
        self.cut()
        self.heal()

    def carry(self, target: _End, data: bytes, to_server: bool) -> None:
        """Pass ``data`` on, as the cable is at this moment."""
        if self.swallowing and not to_server:
            return
        if self.held:
            self._waiting.append((target, data))
        elif self.delay:
            asyncio.get_running_loop().call_later(self.delay, target.transport.write, data)
        else:
            target.transport.write(data)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(lambda: _End(self, True), "127.0.0.1", 0)

    def end(self) -> None:
        """No more connections; called in the network's thread."""
        self._listener.close()
        self._cut()

    def _cut(self) -> None:
        self._waiting.clear()
        for end in list(self.ends):
            end.transport.abort()

    def _heal(self) -> None:
        swallowed, self.swallowing, self.held, self.delay = self.swallowing, False, False, 0.0
        waiting, self._waiting = self._waiting, []
        for target, data in waiting:
            if not target.transport.is_closing():
                target.transport.write(data)
        for end in list(self.ends):
            if end.other is not None and end.other.transport.is_closing():
                end.transport.close()  # after what was held has been written
        if swallowed:
            self._cut()


class Network:
    """Any number of cables, run by one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cables: list[Cable] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def cable(self, server_port: int) -> Cable:
        """A new way to the server at ``server_port``."""
        made = Cable(self, server_port)
        self._cables.append(made)
        return made

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of ``coroutine``, run in the network's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def do(self, action: Callable[[], object]) -> None:
        """Carry ``action`` out in the network's thread."""

        async def act() -> None:
            action()

        self.call(act())

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start ``coroutine``; called in the network's thread."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """The end of every connection."""
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        for cable in self._cables:
            cable.end()
        for task in list(self._tasks):
            task.cancel()
        while any(cable.ends for cable in self._cables):  # until each transport has said that it is lost
            await asyncio.sleep(0.001)
