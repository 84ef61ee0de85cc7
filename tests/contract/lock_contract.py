"""What every store must do with locks."""

from __future__ import annotations

import pytest

from celery_singleton_lock.locks.answers import Granted, Holder
from celery_singleton_lock.locks.protocol import Store
from celery_singleton_lock.locks.terms import FENCE_TTL

from ..support.locks import ANNA, BERT, RECORD_ID, TTL, Owner, about, all_at_once, is_held
from .doors import BackDoor


class LockContract:
    """Taking, renewing and freeing; the fixtures are those of `StoreContract`."""

    def test_free_lock_is_granted(self, anna: Owner, store: Store) -> None:
        """A free lock is granted with a fence, and the answer is sure."""
        assert not is_held(store)
        answer = anna.acquire()
        assert isinstance(answer, Granted)
        assert (answer.fence > 0, answer.unanswered) == (True, False)

    def test_taken_lock_says_by_whom(self, anna: Owner, bert: Owner, store: Store) -> None:
        """A held lock is answered with its holder and the time that is left to it (B26)."""
        anna.granted()
        for answer in (bert.taken(), bert.peek()):
            assert (answer.holder, answer.resting, answer.token, answer.fence) == (ANNA, False, anna.token, anna.fence)
            assert about(answer.remaining, TTL)

    @pytest.mark.parametrize(
        "holder", [Holder(), Holder('a"b\\:[', "täsk", "höst\n", 0), Holder("x" * 500, None, "", 2**31)], ids=repr
    )
    def test_holder_is_kept_exactly(self, anna: Owner, bert: Owner, holder: Holder) -> None:
        """Any holder comes back as it was."""
        anna.holder = holder
        anna.granted()
        assert bert.taken().holder == holder

    def test_resources_are_independent(self, store: Store) -> None:
        """Resources do not touch each other, whatever is in their names."""
        keys = [
            "order:7",
            "order:7:",
            "order",
            "{order}:7",
            "order:77",
            "ordér:7",
            "order 7\n",
            "record:ab:order:7",
            "%",
        ]
        owners = [Owner(store, "a", key=key) for key in keys]
        for owner in owners:
            owner.granted()
        assert owners[0].release()
        assert [is_held(store, key) for key in keys] == [False, *[True] * (len(keys) - 1)]

    def test_acquire_again_by_the_same_token(self, anna: Owner, door: BackDoor, store: Store) -> None:
        """The token that holds gets the same fence again and a renewed expiry: a lost reply does no harm."""
        fence = anna.granted()
        door.leave(anna.names.lock, 5)
        assert anna.granted() == fence
        assert about(anna.peek().remaining, TTL)

    def test_only_one_of_many_is_granted(self, store: Store) -> None:
        """Of eight that ask at once one is granted, round after round."""
        for number in range(10):
            answers = all_at_once([Owner(store, f"{index}{number}", key=f"order:{number}") for index in range(8)])
            assert sorted(type(answer).__name__ for answer in answers) == ["Granted", *["Taken"] * 7]

    def test_fences_increase(self, anna: Owner, bert: Owner, door: BackDoor) -> None:
        """Each grant has a larger fence than every one before: after a release, an end and a rest."""
        fences = [anna.granted()]
        anna.release()
        fences.append(bert.granted())
        door.leave(bert.names.lock, 0)
        fences.append(anna.granted())
        anna.release(rest=10)
        fences.append(anna.granted())
        assert fences == sorted(set(fences))

    def test_fence_outlives_its_lock(self, anna: Owner, door: BackDoor) -> None:
        """The last fence is remembered for a week after its last use."""
        anna.granted(ttl=86400)
        door.leave(anna.names.fence, FENCE_TTL - 3600)
        assert anna.renew(ttl=86400) is True
        assert about(door.lifetimes()[anna.names.fence], FENCE_TTL)
        anna.release()
        assert about(door.lifetimes()[anna.names.fence], FENCE_TTL)

    def test_renew_sets_and_never_adds(self, anna: Owner, door: BackDoor, store: Store) -> None:
        """A renewal sets the rest of the lock to its ttl, however often, shorter or longer (B41)."""
        anna.granted()
        for ttl in (TTL, TTL, 200.0, 15.0):
            door.leave(anna.names.lock, 12)
            assert [anna.renew(ttl), anna.renew(ttl)] == [True, True]
            assert about(anna.peek().remaining, ttl)

    def test_a_renewal_behind_an_extension(self, anna: Owner, store: Store) -> None:
        """An extension may make the rest shorter; a renewal that it has overtaken on the way does not (B40, B41)."""
        anna.granted()
        for ttl in (200.0, 100.0):
            assert [anna.extend(ttl), anna.renew(15.0)] == [True, True]
            assert about(anna.peek().remaining, ttl)

    def test_renew_by_another_token(self, anna: Owner, bert: Owner, door: BackDoor) -> None:
        """Who does not hold the lock does not renew it (B07)."""
        anna.granted()
        door.leave(anna.names.lock, 12)
        assert bert.renew(200) is False
        assert about(door.lifetimes()[anna.names.lock], 12)

    def test_renew_creates_nothing(self, anna: Owner, door: BackDoor) -> None:
        """A renewal of a key that has vanished is refused and makes no key (B07)."""
        anna.granted()
        door.leave(anna.names.lock, 0)
        before = set(door.lifetimes())
        assert anna.renew() is False
        assert set(door.lifetimes()) == before
        assert anna.names.lock not in before

    def test_renew_of_a_released_lock(self, anna: Owner, store: Store) -> None:
        """A renewal that comes after its release takes nothing (B40)."""
        anna.granted()
        anna.release()
        assert anna.renew() is False
        assert not is_held(store)

    def test_many_are_renewed_in_order(self, store: Store) -> None:
        """One call renews many locks, and answers for each in its place."""
        owners = [Owner(store, "a", key=f"order:{number}") for number in range(100)]
        for owner in owners[::2]:
            owner.granted()
        assert store.renew([owner.lock() for owner in owners], 1.0) == [True, False] * 50

    def test_release_frees(self, anna: Owner, bert: Owner, store: Store) -> None:
        """A release frees the lock at once, and the next one gets it."""
        anna.granted()
        assert anna.release() is True
        assert not is_held(store)
        bert.granted()

    def test_release_twice(self, anna: Owner, bert: Owner, store: Store) -> None:
        """A release asked again answers that nothing was held, and touches nothing (B10)."""
        anna.granted()
        assert [anna.release(), anna.release()] == [True, False]
        bert.granted()
        assert anna.release() is False
        assert is_held(store)

    def test_release_by_another_token(self, anna: Owner, bert: Owner, store: Store) -> None:
        """Who does not hold the lock does not free it (B10)."""
        anna.granted()
        assert [bert.release(), bert.release(rest=5)] == [False, False]
        answer = anna.peek()
        assert (answer.holder, answer.resting) == (ANNA, False)
        assert about(answer.remaining, TTL)

    def test_stale_owner_can_do_nothing(self, anna: Owner, bert: Owner, door: BackDoor, store: Store) -> None:
        """After its lease ended and another one got the lock, an owner renews, frees and rests nothing (B07)."""
        anna.granted()
        door.leave(anna.names.lock, 0)
        bert.granted()
        assert [anna.renew(200), anna.release(), anna.release(rest=200)] == [False, False, False]
        answer = bert.peek()
        assert (answer.holder, answer.resting, answer.fence) == (BERT, False, bert.fence)
        assert about(answer.remaining, TTL)

    def test_every_key_ends(self, anna: Owner, bert: Owner, door: BackDoor) -> None:
        """Every key has an end, and a lock's is never farther than its ttl (B41)."""
        anna.granted(ttl=20)
        assert about(door.lifetimes()[anna.names.lock], 20)
        anna.renew(ttl=20)
        assert about(door.lifetimes()[anna.names.lock], 20)
        anna.record(ttl=40)
        assert about(door.lifetimes()[anna.names.record(RECORD_ID)], 40)
        bert.granted(ttl=0.4)
        assert door.lifetimes().get(bert.names.lock, 0.0) <= 0.4
        bert.release(rest=9, unanswered=True)
        lifetimes = door.lifetimes()
        assert about(lifetimes[bert.names.tombstone(bert.token)], 4 * TTL)
        assert max(lifetimes.values()) <= FENCE_TTL

    def test_closed_store_opens_again(self, anna: Owner, bert: Owner, store: Store) -> None:
        """After `close` the next call works as before."""
        anna.granted()
        store.close()
        assert bert.taken()
        store.close()
        store.close()
        assert anna.release() is True
