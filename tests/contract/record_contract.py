"""What every store must do with records, resting resources and refused tokens."""

from __future__ import annotations

import pytest

from celery_singleton_lock.locks.answers import Granted, Holder, Recorded, Taken
from celery_singleton_lock.locks.protocol import Store

from .client import ANNA, BODY, RECORD, BackDoor, Client, about


class RecordContract:
    """What a run leaves behind; the fixtures are those of `StoreContract`."""

    def test_record_answers(self, anna: Client, bert: Client) -> None:
        """A record answers whoever asks for it, byte for byte, and nothing is held then."""
        anna.granted()
        anna.record()
        answer = bert.acquire(record_id=RECORD)
        assert isinstance(answer, Recorded)
        assert answer.body == BODY
        anna.granted()

    @pytest.mark.parametrize("body", [b"", b"0", b":", b"1:2:3", b"x" * 200_000], ids=lambda body: repr(body[:6]))
    def test_record_may_be_any_bytes(self, anna: Client, bert: Client, body: bytes) -> None:
        """A record of any bytes comes back as it was."""
        anna.granted()
        anna.record(body)
        answer = bert.acquire(record_id=RECORD)
        assert isinstance(answer, Recorded)
        assert answer.body == body

    def test_record_is_not_asked_for(self, anna: Client, bert: Client) -> None:
        """Who asks for no record, or for another one, gets the lock."""
        anna.granted()
        anna.record()
        for record_id in (None, "cd" * 16):
            assert isinstance(bert.acquire(record_id=record_id), Granted)
            bert.release()

    @pytest.mark.parametrize(
        ("recorded", "asked", "kind"), [(0, 0, Recorded), (2, 1, Recorded), (1, 2, Granted), (9, 10, Granted)]
    )
    def test_attempt_of_a_record(self, anna: Client, bert: Client, recorded: int, asked: int, kind: type) -> None:
        """A record answers its own attempt and earlier ones, and no later one."""
        anna.granted()
        anna.record(attempt=recorded)
        assert isinstance(bert.acquire(record_id=RECORD, attempt=asked), kind)

    def test_record_wins_over_taken(self, anna: Client, bert: Client, store: Store) -> None:
        """Who asks for a record gets it although the lock is taken, or resting."""
        anna.granted()
        anna.record()
        bert.granted()
        third = Client(store, "c")
        assert isinstance(third.acquire(record_id=RECORD), Recorded)
        bert.release(rest=10)
        assert isinstance(third.acquire(record_id=RECORD), Recorded)
        assert isinstance(third.acquire(), Taken)

    def test_holder_is_not_answered_from_a_record(self, anna: Client, bert: Client) -> None:
        """The token that holds is granted again though a record came up meanwhile: it has begun already."""
        anna.granted()
        anna.record()
        fence = bert.granted()
        answer = bert.acquire(record_id=RECORD)
        assert isinstance(answer, Granted)
        assert answer.fence == fence

    def test_record_is_written_though_the_lock_is_gone(self, anna: Client, bert: Client, door: BackDoor) -> None:
        """A run whose lease ran out still leaves its record, if nobody got the lock after it."""
        anna.granted()
        door.leave(anna.names.lock, 0)
        assert anna.record() is False
        assert isinstance(bert.acquire(record_id=RECORD), Recorded)

    def test_stale_owner_writes_no_record(self, anna: Client, bert: Client, door: BackDoor, store: Store) -> None:
        """Once a newer fence was granted an older run writes no record, and overwrites none."""
        anna.granted()
        door.leave(anna.names.lock, 0)
        bert.granted()
        assert anna.record(b"stale") is False
        assert isinstance(Client(store, "c").acquire(record_id=RECORD), Taken)
        bert.record(b"newer")
        assert anna.record(b"stale") is False
        answer = Client(store, "c").acquire(record_id=RECORD)
        assert isinstance(answer, Recorded)
        assert answer.body == b"newer"

    def test_newer_record_replaces_the_older(self, anna: Client, bert: Client) -> None:
        """The record of a newer run takes the place of an older one's."""
        anna.granted()
        anna.record(b"first")
        bert.granted()
        bert.record(b"second", attempt=1)
        answer = anna.acquire(record_id=RECORD, attempt=1)
        assert isinstance(answer, Recorded)
        assert answer.body == b"second"

    def test_record_ends(self, anna: Client, bert: Client, door: BackDoor) -> None:
        """A record answers until its time is over."""
        anna.granted()
        anna.record()
        door.leave(anna.names.record(RECORD), 0)
        assert isinstance(bert.acquire(record_id=RECORD), Granted)

    def test_resting_resource(self, anna: Client, bert: Client, store: Store) -> None:
        """A resource that rests is taken by the one who let it rest, for as long as it rests, held by nobody."""
        anna.granted()
        assert anna.release(rest=20) is True
        for answer in (bert.acquire(), store.peek(bert.names)):
            assert isinstance(answer, Taken)
            assert (answer.holder, answer.resting) == (ANNA, True)
            assert about(answer.remaining, 20)
        assert anna.renew() is False

    def test_rest_ends(self, anna: Client, bert: Client, door: BackDoor) -> None:
        """When the rest is over the resource is free."""
        anna.granted()
        anna.release(rest=20)
        door.leave(anna.names.lock, 0)
        bert.granted()

    def test_rest_is_taken_over_by_the_same_task(self, anna: Client, store: Store) -> None:
        """The task id that lets it rest takes the resource over at once, with a new fence, and frees it as its own."""
        anna.granted()
        anna.release(rest=20)
        again = Client(store, "c", Holder("anna", "shop.charge", "elsewhere", 99))
        assert again.granted() > anna.fence
        assert anna.release() is False
        assert again.release() is True
        assert store.peek(anna.names) is None

    @pytest.mark.parametrize("other", [None, "ann", "annax", "", "null", '"anna"', "ANNA"], ids=repr)
    def test_rest_is_not_taken_over_by_another(self, anna: Client, store: Store, other: str | None) -> None:
        """A task id that is only like it does not take a resting resource over."""
        anna.granted()
        anna.release(rest=20)
        assert isinstance(Client(store, "c", Holder(other)).acquire(), Taken)

    def test_rest_of_nobody_is_nobodys(self, anna: Client, store: Store) -> None:
        """Two direct calls have no task id, and that is not the same one."""
        anna.holder = Holder()
        anna.granted()
        anna.release(rest=20)
        assert isinstance(Client(store, "c", Holder()).acquire(), Taken)

    @pytest.mark.parametrize("task_id", ['a"b', "ä", "a\\b", "a:b", "a\nb", "😀"], ids=ascii)
    def test_rest_of_a_strange_task_id(self, anna: Client, store: Store, task_id: str) -> None:
        """Any text may be a task id."""
        anna.holder = Holder(task_id)
        anna.granted()
        anna.release(rest=20)
        assert isinstance(Client(store, "c", Holder(task_id)).acquire(), Granted)

    def test_refused_token_takes_nothing(self, anna: Client, bert: Client, store: Store) -> None:
        """After an undo a late request of the same token takes nothing; another token does."""
        anna.granted()
        assert anna.release(unanswered=True) is True
        assert isinstance(anna.acquire(), Taken)
        assert anna.renew() is False
        assert store.peek(anna.names) is None
        bert.granted()

    def test_undo_before_its_request(self, anna: Client, bert: Client, store: Store) -> None:
        """An undo that arrives first keeps its request from taking anything; who holds the lock is left alone."""
        assert anna.release(unanswered=True) is False
        answer = anna.acquire()
        assert isinstance(answer, Taken)
        assert (answer.holder, answer.remaining, answer.resting) == (Holder(), None, False)
        bert.granted()
        assert anna.release(unanswered=True) is False
        assert store.peek(bert.names) is not None
