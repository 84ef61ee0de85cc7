"""The contract of a store: its own test file inherits `StoreContract` and opens its keys to it."""

from __future__ import annotations

import pytest

from celery_singleton_lock.locks.protocol import Store

from ..support.locks import ANNA, BERT, Owner
from .doors import BackDoor
from .lock_contract import LockContract
from .record_contract import RecordContract


class StoreContract(LockContract, RecordContract):
    """The tests of a store. A subclass has the fixtures `store` and `door`."""

    @pytest.fixture
    def store(self) -> Store:
        """The store, empty."""
        raise NotImplementedError

    @pytest.fixture
    def door(self, store: Store) -> BackDoor:
        """The keys behind the store."""
        raise NotImplementedError

    @pytest.fixture
    def anna(self, store: Store) -> Owner:
        """One run."""
        return Owner(store, "a", ANNA)

    @pytest.fixture
    def bert(self, store: Store) -> Owner:
        """Another run, of another task, that wants the same resource."""
        return Owner(store, "b", BERT)
