"""The store on one server keeps the contract on Redis, the system's own."""

from __future__ import annotations

import pytest

from ..support.servers import Server
from .server_contract import ServerContract


class TestRedis(ServerContract):
    """The contract on Redis."""

    @pytest.fixture
    def server(self, redis_server: Server) -> Server:
        """An empty server."""
        return redis_server
