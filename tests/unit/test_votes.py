"""Counting a quorum's votes: pure arithmetic on the replies of servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from celery_singleton_lock import StoreUnavailable
from celery_singleton_lock.locks.answers import Answer, Granted, SplitVote
from celery_singleton_lock.stores import quorum
from celery_singleton_lock.stores.quorum import QuorumStore
from celery_singleton_lock.stores.votes import Tally, Votes
from celery_singleton_lock.transport.requests import Reply
from celery_singleton_lock.transport.stream import Incomplete, parse
from celery_singleton_lock.transport.urls import read

from ..support.locks import Owner

A, B, C = "a" * 32, "b" * 32, "c" * 32
DOWN = StoreUnavailable("down")


def granted(fence: int = 5) -> Reply:
    """A server's grant."""
    return [str(fence).encode()]


def taken(token: str = A, left: int = 900, state: str = "h") -> Reply:
    """A server that has somebody's lock."""
    return [[b"taken", f'{state}:{token}:4:["t","n","h",1]'.encode(), left]]


def recorded(fence: int) -> Reply:
    """A server that has a record."""
    return [[b"recorded", b"0:%d:done" % fence, 500]]


def votes(*replies: Reply, asked: int = 5) -> Votes:
    """The votes of ``asked`` servers, of which the first have replied."""
    found = Votes(asked // 2 + 1, asked)
    for index, reply in enumerate(replies):
        found.count(index, reply)
    return found


@pytest.mark.parametrize(
    ("replies", "asked", "won"),
    [
        ([granted()] * 2, 3, True),
        ([granted()], 3, False),
        ([granted()] * 2, 4, False),
        ([granted()] * 3, 4, True),
        ([granted()] * 2 + [DOWN] * 3, 5, False),
        ([granted()] * 3 + [taken()] * 2, 5, True),
    ],
)
def test_majority(replies: list[Reply], asked: int, won: bool) -> None:
    """More than half of all servers, not of those that answered."""
    assert votes(*replies, asked=asked).won is won


def test_fence_is_agreed_by_a_majority() -> None:
    """A majority that granted different fences has won and not agreed; the highest of them is proposed next."""
    found = votes(granted(5), granted(5), granted(8))
    assert (found.won, found.agreed(5), found.highest(5)) == (True, False, 8)
    assert (found.agreeable(5), found.agreeable(8)) == (True, True)
    found.count(3, granted(9))
    assert (found.agreeable(5), found.agreeable(8)) == (True, False)
    found.count(4, granted(5))
    assert found.agreed(5)


def test_an_error_cannot_agree_any_more() -> None:
    """The last round does not wait for a server that has answered with an error."""
    found = votes(granted(5), granted(5), granted(8), DOWN)
    assert found.agreeable(5)
    found.count(4, [ResponseError("LOADING")])
    assert not found.agreeable(5)


def test_holder_needs_a_majority_for_one_token() -> None:
    """One owner on a majority is the holder; several minorities are nobody (B26)."""
    named = votes(taken(A), taken(A), taken(A)).holder()
    assert named is not None
    assert named.token == A
    assert votes(taken(A), taken(A)).holder() is None
    assert votes(taken(A), taken(A), taken(B), taken(B), taken(C)).holder() is None


def test_holder_may_be_behind_a_silent_server() -> None:
    """Free where a majority is, or where all have answered and no majority names one; else nobody can tell."""
    free: Reply = [[b"free"]]
    assert votes(taken(A), free, DOWN, asked=3).holdable
    assert not votes(taken(A), free, free, asked=3).holdable
    assert not votes(free, free, DOWN, asked=3).holdable
    assert not votes(taken(A), taken(A), taken(B), taken(B), free).holdable
    assert votes(DOWN, DOWN, DOWN).holdable


def test_split_is_no_unreachable_server() -> None:
    """Where all have answered and nobody won, nothing could still be won; with silent servers it could."""
    assert not votes(taken(A), taken(A), taken(B), granted(), granted()).winnable
    assert votes(taken(A), taken(A), granted()).winnable
    assert votes(taken(A), taken(A), granted(), DOWN, DOWN).winnable
    assert not votes(taken(A), taken(A), taken(A)).winnable


@pytest.mark.parametrize(
    ("lefts", "granted_by", "remaining"),
    [([100, 900, 500], 2, 0.1), ([100, 900, 500, 700], 1, 0.5), ([100, 900, 500, 700, 800], 0, 0.7)],
)
def test_remaining_is_until_a_majority_is_free(lefts: list[int], granted_by: int, remaining: float) -> None:
    """A waiter is told when a majority will be free, not when the last server is."""
    found = votes(*[taken(A, left) for left in lefts], *[granted()] * granted_by).holder()
    assert found is not None
    assert found.remaining == remaining


def test_remaining_of_a_lock_without_end() -> None:
    """Nobody can tell when a majority is free whose locks have no end."""
    found = votes(taken(A, -1), taken(A, -1), taken(A, -1), taken(A, 50), taken(A, 60)).holder()
    assert found is not None
    assert found.remaining is None


def test_it_rests_where_any_server_says_so() -> None:
    """A release that has reached one server is over: the resource rests, whatever the others still say."""
    found = votes(taken(A), taken(A, state="r"), taken(A)).holder()
    assert found is not None
    assert found.resting


def test_record_is_proof_from_any_server() -> None:
    """One server's record is enough to be seen, and it does not count as a grant."""
    found = votes(granted(), granted(), recorded(7))
    assert [record.fence for record in found.recorded] == [7]
    assert not found.won


def test_errors_are_no_votes() -> None:
    """A server's error is unknown, as silence is; refused credentials are remembered."""
    found = votes([ResponseError("READONLY")], DOWN, StoreUnavailable("no", True), granted())
    assert (found.answered, found.unknown, found.won) == (1, 4, False)
    assert [error.denied for error in found.errors] == [False, False, True]


@pytest.mark.parametrize(
    ("replies", "verdicts"),
    [
        ([[1, 1], [1, 0], [1, 0]], [True, None]),
        ([[1, 1], [1, 0], [1, 0], [0, 0]], [True, False]),
        ([[1, 1], [1, 1], DOWN, DOWN, [0, ResponseError("OOM")]], [None, None]),
        ([[0, 1], [0, 1], [0, 1]], [False, True]),
    ],
)
def test_renewals_are_counted_one_by_one(replies: list[Reply], verdicts: list[bool | None]) -> None:
    """Each lease of a batch is held, lost, or nobody can tell, by its own majority."""
    tally = Tally(3, 2)
    decided = [tally.count(reply) for reply in replies]
    assert tally.verdicts() == verdicts
    assert decided[-1] is (None not in verdicts)


REPLIES: list[tuple[bytes, Any]] = [
    (b":12\r\n", 12),
    (b"$-1\r\n", None),
    (b"$4\r\n\r\n\r\n\r\n", b"\r\n\r\n"),
    (b"+OK\r\n", b"OK"),
    (b"*3\r\n$5\r\ntaken\r\n$0\r\n\r\n:-2\r\n", [b"taken", b"", -2]),
    (b"*0\r\n", []),
]


@pytest.mark.parametrize(("data", "value"), REPLIES)
def test_replies_are_read_in_pieces(data: bytes, value: Any) -> None:
    """A reply is complete or it is not; what follows it is not touched."""
    assert parse(data + b":7\r\n") == (value, len(data))
    assert parse(b":7\r\n" + data, 4) == (value, len(data) + 4)
    for cut in range(len(data)):
        with pytest.raises(Incomplete):
            parse(data[:cut])


def test_server_error_is_a_value() -> None:
    """An error reply is a value with its text, and leaves the connection in order."""
    error, end = parse(b"-NOSCRIPT No matching script.\r\n")
    assert type(error).__name__ == "NoScriptError"
    assert end == 31
    assert type(parse(b"-LOADING Redis is loading\r\n")[0]) is ResponseError


def acquire_in(monkeypatch: pytest.MonkeyPatch, *rounds: list[Reply]) -> Answer:
    """What a store of five answers to an acquire whose rounds bring these replies; no server is asked."""
    following = iter(rounds)

    class Scripted:
        """In place of `FanOut`."""

        doubtful, asked = False, frozenset(range(5))
        missing = list

        def __init__(self, *_: Any) -> None: ...

        def run(self, end: float, count: Callable[[int, Reply], bool]) -> None:
            any(count(index, reply) for index, reply in enumerate(next(following, [])))

    monkeypatch.setattr(quorum, "FanOut", Scripted)
    store = QuorumStore([read("redis://127.0.0.1:1/0")] * 5, prefix="p", timeout=1.0, wall=lambda: 5e-6)
    return Owner(store).acquire()


def test_last_round_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second round that a majority has granted with different fences is no grant, and the vote is split."""
    first = [granted(5), granted(6), granted(6)]
    split = [granted(6), granted(6), granted(7), granted(7), granted(8)]
    assert isinstance(acquire_in(monkeypatch, first, split), SplitVote)
    assert acquire_in(monkeypatch, first, [granted(6), granted(7), granted(6), granted(6)]) == Granted(6)


def test_one_round_where_the_proposal_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A majority that takes the client's own proposal needs no second round."""
    assert acquire_in(monkeypatch, [granted(5), granted(5), granted(5), granted(9)]) == Granted(5)
