"""A master, a replica and Sentinels that watch over them."""

from __future__ import annotations

from pathlib import Path

import redis

from .servers import Server, StartServer, valkey_binary
from .waiting import eventually

NAME = "mymaster"


class Watched:
    """``master``, ``replica``: two servers, of which the second follows the first; ``sentinels``: three by default.

    ``options``: the servers' own; ``sentinel_lines``: more of the Sentinels' configuration.
    """

    def __init__(
        self,
        start: StartServer,
        directory: Path,
        *options: str,
        count: int = 3,
        sentinel_lines: tuple[str, ...] = (),
    ) -> None:
        options = (*options, "--repl-diskless-sync-delay", "0")
        self.master: Server = start(*options)
        self.replica: Server = start(*options, "--replicaof", "127.0.0.1", str(self.master.port))
        eventually(lambda: self._link() == "up", message="the replica's link to its master")
        self.sentinels: list[Server] = []
        for number in range(count):
            file = directory / f"sentinel-{number}.conf"
            lines = [
                f"sentinel monitor {NAME} 127.0.0.1 {self.master.port} {count // 2 + 1}",
                f"sentinel down-after-milliseconds {NAME} 500",
                f"sentinel failover-timeout {NAME} 3000",
                *sentinel_lines,
            ]
            file.write_text("\n".join(lines) + "\n")
            self.sentinels.append(_Sentinel(directory, file, number))

    def _link(self) -> str:
        return str(self.replica.run("INFO", "replication").get("master_link_status"))

    def url(self, query: str = "") -> str:
        """A URL of all the Sentinels."""
        hosts = ";".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"sentinel://{hosts}/0?master_name={NAME}{query}"

    def until_agreed(self) -> None:
        """Returns when each Sentinel knows the others and the replica."""
        for sentinel in self.sentinels:

            def knows(sentinel: Server = sentinel) -> bool:
                info = sentinel.run("SENTINEL", "MASTER", NAME)
                found = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
                others = int(found["num-other-sentinels"])
                return others == len(self.sentinels) - 1 and int(found["num-slaves"]) == 1

            eventually(knows, message="the Sentinels' acquaintance")

    def until_promoted(self) -> None:
        """Returns when the replica is the master and every Sentinel says so."""

        def agreed() -> bool:
            try:
                masters = [sentinel.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME) for sentinel in self.sentinels]
                promoted = self.replica.run("INFO", "replication")["role"] == "master"
            except redis.ConnectionError:  # Sentinels cut the clients of whom they promote
                return False
            return promoted and all(int(port) == self.replica.port for _, port in masters)

        eventually(agreed, message="the failover")

    def stop(self) -> None:
        """Ends the Sentinels; whoever started the servers ends those."""
        for sentinel in self.sentinels:
            sentinel.stop()


class _Sentinel(Server):
    """A Sentinel: the server's program, with a file that it writes its findings into."""

    def __init__(self, directory: Path, file: Path, number: int) -> None:
        self._file = file
        super().__init__(valkey_binary(), directory, name=f"sentinel-{number}")

    def _ready(self) -> bool:
        if "--sentinel" not in self.process.argv:  # the base class's options are a server's: once more, as a Sentinel
            self.process.kill()
            self.process.argv = [valkey_binary(), str(self._file), "--port", str(self.port), "--sentinel"]
            self.process.start()
        return super()._ready()
