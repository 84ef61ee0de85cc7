"""What every store must do with records, resting resources and tombstones."""

from __future__ import annotations

import pytest

from celery_singleton_lock.locks.answers import Granted, Holder, Recorded, Taken
from celery_singleton_lock.locks.protocol import Store

from ..support.locks import ANNA, BODY, RECORD_ID, Owner, about, is_held
from .doors import BackDoor


class RecordContract:
    """What a run leaves behind; the fixtures are those of `StoreContract`."""

    def test_record_answers(self, anna: Owner, bert: Owner) -> None:
        """A record answers whoever asks for it, byte for byte, and nothing is held then."""
        anna.granted()
        anna.record()
        assert bert.recorded().body == BODY
        anna.granted()

    @pytest.mark.parametrize("body", [b"", b"0", b":", b"1:2:3", b"x" * 200_000], ids=lambda body: repr(body[:6]))
    def test_record_may_be_any_bytes(self, anna: Owner, bert: Owner, body: bytes) -> None:
        """A record of any bytes comes back as it was."""
        anna.granted()
        anna.record(body)
        assert bert.recorded().body == body

    def test_record_is_not_asked_for(self, anna: Owner, bert: Owner) -> None:
        """Who asks for no record, or for another one, gets the lock."""
        anna.granted()
        anna.record()
        for record_id in (None, "cd" * 16):
            assert isinstance(bert.acquire(record_id=record_id), Granted)
            bert.release()

    @pytest.mark.parametrize(
        ("recorded", "asked", "kind"), [(0, 0, Recorded), (2, 1, Recorded), (1, 2, Granted), (9, 10, Granted)]
    )
    def test_attempt_of_a_record(self, anna: Owner, bert: Owner, recorded: int, asked: int, kind: type) -> None:
        """A record answers its own attempt and earlier ones, and no later one."""
        anna.granted()
        anna.record(attempt=recorded)
        assert isinstance(bert.acquire(record_id=RECORD_ID, attempt=asked), kind)

    def test_record_wins_over_taken(self, anna: Owner, bert: Owner, store: Store) -> None:
        """Who asks for a record gets it although the lock is taken, or resting."""
        anna.granted()
        anna.record()
        bert.granted()
        third = Owner(store, "c")
        assert third.recorded()
        bert.release(rest=10)
        assert third.recorded()
        assert third.taken()

    def test_holder_is_not_answered_from_a_record(self, anna: Owner, bert: Owner) -> None:
        """The token that holds is granted again though a record came up meanwhile: it has begun already."""
        anna.granted()
        anna.record()
        fence = bert.granted()
        assert bert.acquire(record_id=RECORD_ID) == Granted(fence)

    def test_record_is_written_though_the_lock_is_gone(self, anna: Owner, bert: Owner, door: BackDoor) -> None:
        """A run whose lease ran out still leaves its record, if nobody got the lock after it."""
        anna.granted()
        door.leave(anna.names.lock, 0)
        assert anna.record() is False
        assert bert.recorded()

    def test_stale_owner_writes_no_record(self, anna: Owner, bert: Owner, door: BackDoor, store: Store) -> None:
        """Once a newer fence was granted an older run writes no record, and overwrites none."""
        anna.granted()
        door.leave(anna.names.lock, 0)
        bert.granted()
        assert anna.record(b"stale") is False
        assert isinstance(Owner(store, "c").acquire(record_id=RECORD_ID), Taken)
        bert.record(b"newer")
        assert anna.record(b"stale") is False
        assert Owner(store, "c").recorded().body == b"newer"

    def test_newer_record_replaces_the_older(self, anna: Owner, bert: Owner) -> None:
        """The record of a newer run takes the place of an older one's."""
        anna.granted()
        anna.record(b"first")
        bert.granted()
        bert.record(b"second", attempt=1)
        assert anna.recorded(attempt=1).body == b"second"

    def test_record_ends(self, anna: Owner, bert: Owner, door: BackDoor) -> None:
        """A record answers until its time is over."""
        anna.granted()
        anna.record()
        door.leave(anna.names.record(RECORD_ID), 0)
        assert isinstance(bert.acquire(record_id=RECORD_ID), Granted)

    def test_resting_resource(self, anna: Owner, bert: Owner, store: Store) -> None:
        """A resource that rests is taken by the one who let it rest, for as long as it rests, held by nobody."""
        anna.granted()
        assert anna.release(rest=20) is True
        for answer in (bert.taken(), bert.peek()):
            assert (answer.holder, answer.resting) == (ANNA, True)
            assert about(answer.remaining, 20)
        assert anna.renew() is False

    def test_rest_ends(self, anna: Owner, bert: Owner, door: BackDoor) -> None:
        """When the rest is over the resource is free."""
        anna.granted()
        anna.release(rest=20)
        door.leave(anna.names.lock, 0)
        bert.granted()

    def test_rest_is_taken_over_by_the_same_task(self, anna: Owner, store: Store) -> None:
        """The task id that lets it rest takes the resource over at once, with a new fence, and frees it as its own."""
        anna.granted()
        anna.release(rest=20)
        again = Owner(store, "c", Holder("anna", "shop.charge", "elsewhere", 99))
        assert again.granted() > anna.fence
        assert anna.release() is False
        assert again.release() is True
        assert not is_held(store)

    @pytest.mark.parametrize("other", [None, "ann", "annax", "", "null", '"anna"', "ANNA"], ids=repr)
    def test_rest_is_not_taken_over_by_another(self, anna: Owner, store: Store, other: str | None) -> None:
        """A task id that is only like it does not take a resting resource over."""
        anna.granted()
        anna.release(rest=20)
        assert Owner(store, "c", Holder(other)).taken()

    def test_rest_of_nobody_is_nobodys(self, anna: Owner, store: Store) -> None:
        """Two direct calls have no task id, and that is not the same one."""
        anna.holder = Holder()
        anna.granted()
        anna.release(rest=20)
        assert Owner(store, "c", Holder()).taken()

    @pytest.mark.parametrize("task_id", ['a"b', "ä", "a\\b", "a:b", "a\nb", "😀"], ids=ascii)
    def test_rest_of_a_strange_task_id(self, anna: Owner, store: Store, task_id: str) -> None:
        """Any text may be a task id."""
        anna.holder = Holder(task_id)
        anna.granted()
        anna.release(rest=20)
        assert Owner(store, "c", Holder(task_id)).granted()

    def test_tombstone_of_a_token(self, anna: Owner, bert: Owner, store: Store) -> None:
        """After an undo a late request of the same token takes nothing; another token does."""
        anna.granted()
        assert anna.release(unanswered=True) is True
        assert anna.taken()
        assert anna.renew() is False
        assert not is_held(store)
        bert.granted()

    def test_undo_before_its_request(self, anna: Owner, bert: Owner, store: Store) -> None:
        """An undo that arrives first keeps its request from taking anything; who holds the lock is left alone."""
        assert anna.release(unanswered=True) is False
        answer = anna.taken()
        assert (answer.holder, answer.remaining, answer.resting) == (Holder(), None, False)
        bert.granted()
        assert anna.release(unanswered=True) is False
        assert is_held(store)
