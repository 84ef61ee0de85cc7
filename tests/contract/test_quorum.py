"""A quorum of servers passes the contract of one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from celery_singleton_lock import Lock, open_store
from celery_singleton_lock.locks.answers import Granted, SplitVote, Taken
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.stores.quorum import QuorumStore
from celery_singleton_lock.stores.scripts import encode_holder

from ..support.locks import BERT, RECORD_ID, TTL, Owner, about, all_at_once, connect, is_held, settle
from ..support.servers import Server, valkey_binary
from .contract import StoreContract
from .doors import BackDoor, ServerDoor


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Five servers."""
    directory = tmp_path_factory.mktemp("quorum")
    servers = [Server(valkey_binary(), directory, name=f"server-{number}") for number in range(5)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture(params=[3, 4, 5], ids=lambda count: f"{count} servers")
def clients(request: pytest.FixtureRequest, five: list[Server]) -> Iterator[list[redis.Redis]]:
    """A client of each server of the quorum; all are empty."""
    made = [server.client() for server in five[: request.param]]
    for client in made:
        client.flushall()
    yield made
    for client in made:
        client.close()


class TestQuorum(StoreContract):
    """The contract, and where several servers differ from one."""

    @pytest.fixture
    def store(self, five: list[Server], clients: list[redis.Redis]) -> Iterator[Store]:
        """The store on them; slow machines are no subject here."""
        made = open_store([server.url() for server in five[: len(clients)]], timeout=5.0)
        assert isinstance(made, QuorumStore)
        connect(made)
        yield made
        made.close()

    @pytest.fixture
    def door(self, store: QuorumStore, clients: list[redis.Redis]) -> ServerDoor:
        """The keys of all servers."""
        return ServerDoor(clients, lambda: settle(store))

    def test_acquire_again_by_the_same_token(self, anna: Owner, door: BackDoor, store: Store) -> None:
        """The token that holds gets it again, with a fence that is never lower and agreed by a majority."""
        fence = anna.granted()
        door.leave(anna.names.lock, 5)
        assert anna.granted() >= fence
        taken = anna.peek()
        assert taken.fence == anna.fence
        assert about(taken.remaining, TTL)

    def test_holder_is_not_answered_from_a_record(self, anna: Owner, bert: Owner) -> None:
        """The token that holds is granted again though a record came up meanwhile: it has begun already."""
        anna.granted()
        anna.record()
        bert.granted()
        assert isinstance(bert.acquire(record_id=RECORD_ID), Granted)

    def test_only_one_of_many_is_granted(self, store: Store) -> None:
        """Of eight that ask at once one is granted at most; who is told that it is taken is told by whom."""
        for number in range(20):
            owners = [Owner(store, f"{index}{number % 10}", key=f"order:{number}") for index in range(8)]
            answers = all_at_once(owners)
            assert len(answers) == 8
            assert sum(isinstance(answer, Granted) for answer in answers) <= 1
            for answer in answers:
                assert isinstance(answer, (Granted, Taken, SplitVote))
                assert not isinstance(answer, Taken) or answer.token in {owner.token for owner in owners}

    def test_counter_is_exact(self, store: Store) -> None:
        """Eight threads count under one lock, by read and write: splits are waited out, and no count is lost."""
        count = 0

        def work() -> None:
            nonlocal count
            for _ in range(25):
                with Lock(store, "counter", ttl=30, blocking_timeout=60):
                    seen = count
                    threading.Event().wait(0.0002)
                    count = seen + 1

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert count == 200

    def test_taken_names_the_holder_of_a_majority(
        self, anna: Owner, bert: Owner, store: QuorumStore, clients: list[redis.Redis]
    ) -> None:
        """Where a minority has somebody else's lock, left behind, the answer names the one that holds (B26)."""
        for client in clients[store.majority :]:
            client.set(anna.names.lock, f"h:{'c' * 32}:5:{encode_holder(BERT)}", px=60_000)
        anna.granted()
        assert bert.taken().token == anna.token

    def test_every_server_is_asked(self, anna: Owner, store: Store, door: ServerDoor) -> None:
        """A lock, its renewal and its release reach all servers, not a majority alone."""
        anna.granted()
        door.settle()
        assert [client.exists(anna.names.lock) for client in door.clients] == [1] * len(door.clients)
        anna.release()
        door.settle()
        assert [client.exists(anna.names.lock) for client in door.clients] == [0] * len(door.clients)

    @pytest.mark.parametrize("verb", ["acquire", "renew", "release", "peek"])
    def test_scripts_are_forgotten(self, anna: Owner, bert: Owner, store: Store, door: ServerDoor, verb: str) -> None:
        """Servers that have forgotten their scripts are taught them again, a batch of renewals in its order (B38)."""
        if verb != "acquire":
            anna.granted()
        door.settle()
        for client in door.clients:
            client.script_flush()
        if verb == "acquire":
            anna.granted()
        elif verb == "renew":
            assert store.renew([anna.lock(), bert.lock(), anna.lock()], 5.0) == [True, False, True]
        elif verb == "peek":
            assert is_held(store)
        else:
            assert anna.record() is True
            door.settle()
            assert all(client.exists(anna.names.lock) == 0 for client in door.clients)
            assert bert.recorded()


def test_even_number_warns(caplog: pytest.LogCaptureFixture) -> None:
    """B43 (e): a fourth server bears no more than three do."""
    assert isinstance(open_store([f"redis://a:{port}/0" for port in range(1, 5)]), QuorumStore)
    assert "odd number" in caplog.text
