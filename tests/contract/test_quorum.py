"""A quorum of servers passes the contract of one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from celery_singleton_lock import Lock, open_store
from celery_singleton_lock.protocol import Answer, Granted, Split, Store, Taken
from celery_singleton_lock.stores.quorum import QuorumStore

from ..support.quorums import QuorumDoor, urls
from ..support.servers import Server, valkey_binary
from .client import BERT, RECORD, TTL, BackDoor, Client, about
from .contract import StoreContract


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
        made = open_store(urls(five[: len(clients)]), timeout=5.0)
        yield made
        made.close()

    @pytest.fixture
    def door(self, store: QuorumStore, clients: list[redis.Redis]) -> BackDoor:  # type: ignore[override]
        """The keys of all servers."""
        return QuorumDoor(store, clients)

    def test_acquire_again_by_the_same_token(self, anna: Client, door: BackDoor, store: Store) -> None:
        """The token that holds gets it again, with a fence that is never lower and agreed by a majority."""
        fence = anna.granted()
        door.leave(anna.names.lock, 5)
        assert anna.granted() >= fence
        taken = store.peek(anna.names)
        assert taken is not None
        assert taken.fence == anna.fence
        assert about(taken.remaining, TTL)

    def test_holder_is_not_answered_from_a_record(self, anna: Client, bert: Client) -> None:
        """The token that holds is granted again though a record came up meanwhile: it has begun already."""
        anna.granted()
        anna.record()
        bert.granted()
        assert isinstance(bert.acquire(record_id=RECORD), Granted)

    def test_only_one_of_many_is_granted(self, store: Store) -> None:
        """Of eight that ask at once one is granted at most; who is told that it is taken is told by whom."""
        for number in range(20):
            clients = [Client(store, f"{index}{number % 10}", key=f"order:{number}") for index in range(8)]
            answers: list[Answer] = []
            start = threading.Barrier(len(clients), timeout=20)

            def ask(client: Client, start: threading.Barrier = start, answers: list[Answer] = answers) -> None:
                start.wait()
                answers.append(client.acquire())

            threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert len(answers) == 8
            assert sum(isinstance(answer, Granted) for answer in answers) <= 1
            for answer in answers:
                assert isinstance(answer, (Granted, Taken, Split))
                assert not isinstance(answer, Taken) or answer.token in {client.token for client in clients}

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
        self, anna: Client, bert: Client, store: QuorumStore, clients: list[redis.Redis]
    ) -> None:
        """Where a minority has somebody else's lock, left behind, the answer names the one that holds (B26)."""
        for client in clients[store.majority :]:
            client.set(anna.names.lock, f"h:{'c' * 32}:5:{BERT.encode()}", px=60_000)
        anna.granted()
        answer = bert.acquire()
        assert isinstance(answer, Taken)
        assert answer.token == anna.token

    def test_every_server_is_asked(self, anna: Client, store: Store, door: QuorumDoor) -> None:
        """A lock, its renewal and its release reach all servers, not a majority alone."""
        anna.granted()
        door.lifetimes()
        assert [client.exists(anna.names.lock) for client in door.clients] == [1] * len(door.clients)
        anna.release()
        door.lifetimes()
        assert [client.exists(anna.names.lock) for client in door.clients] == [0] * len(door.clients)
