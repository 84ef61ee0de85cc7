"""No call outlasts its bound, and nothing grows: servers that accept and never answer, refuse, or are slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil
import pytest

from celery_singleton_lock import Lock, StoreUnavailable, open_store
from celery_singleton_lock.locks.answers import Granted, Holder
from celery_singleton_lock.locks.protocol import RecordWrite
from celery_singleton_lock.stores.quorum import QuorumStore
from celery_singleton_lock.transport.node import MAX_PARKED, Node

from ..support.locks import NAMES, guard_on, held_guard, lease_of, lock_of, peek, settle
from ..support.network import Network
from ..support.programs import FORK, run_python
from ..support.servers import StartServer
from ..support.waiting import eventually
from .conftest import Deployment

#: Seconds that a busy machine may add to a call. Where a bound is asserted, a call without it takes longer by more.
SLACK = 2.0


def test_black_holed_server(deployment: Deployment) -> None:
    """B13: the loss is flagged at the local deadline, whatever the servers do; release and acquire are bounded."""
    store = deployment.warm_store(timeout=5.0)  # the calls' bound is a quarter of the ttl
    lost: list[float] = []
    began = time.monotonic()
    guard = held_guard(store, ttl=1.5, renewed=True, on_lost=lambda _: lost.append(time.monotonic() - began))
    for server in deployment.servers:
        server.pause()
    eventually(lambda: lost, message="the loss")
    assert 1.4 < lost[0] < 1.5 + SLACK  # the deadline, and a renewal under way
    assert lease_of(guard).lost
    for call in (guard.release, guard_on(store, ttl=1.5).acquire):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert time.monotonic() - began < 0.375 + SLACK
        assert (caught.value.denied, caught.value.contended) == (False, False)


def test_hung_before_the_first_call(five: Deployment) -> None:
    """Servers that accept and never answer cost nothing while a majority answers, and the bound when it does not."""
    for server in five.servers[:2]:
        server.pause()
    store = five.cold_quorum(timeout=5.0)
    began = time.monotonic()
    guard = held_guard(store)
    assert guard.release() is True
    assert time.monotonic() - began < SLACK
    five.servers[2].pause()
    other = five.cold_quorum(timeout=0.5)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="2 of 5 servers answered, 3 are needed"):
        guard_on(other).acquire()
    assert time.monotonic() - began < 0.5 + SLACK


def test_hung_at_release(five: Deployment) -> None:
    """Two hung servers do not delay a release, and are free once they answer again."""
    store = five.quorum(timeout=5.0)
    guard = held_guard(store)
    for server in five.servers[:2]:
        server.pause()
    began = time.monotonic()
    assert guard.release(RecordWrite("ab" * 16, 0, b"done", 60)) is True
    assert time.monotonic() - began < SLACK
    for server in five.servers[:2]:
        server.resume()
    eventually(lambda: not any(five.locked()), message="the late release")
    eventually(lambda: all(NAMES.record("ab" * 16) in keys for keys in five.stored()), message="the late record")


def test_one_paused_server_delays_nothing(three: Deployment) -> None:
    """B43 (b): beside one paused server of three, acquire, renewal and release end long before their bound of 5 s."""
    store = three.quorum(timeout=5.0)
    three.servers[0].pause()

    def timed(call: Callable[[], object]) -> object:
        began = time.monotonic()
        answer = call()
        assert time.monotonic() - began < SLACK
        return answer

    for _ in range(3):  # from the second round on, the paused server owes replies
        guard = guard_on(store)
        assert isinstance(timed(guard.acquire), Granted)
        assert timed(lambda: store.renew([lock_of(guard)], 5.0)) == [True]  # noqa: B023
        assert timed(guard.release) is True
    three.servers[0].resume()
    settle(store)
    assert not any(three.locked())


def test_large_batch_to_a_hung_server(three: Deployment) -> None:
    """A batch of renewals that fills a hung server's buffers holds up no other server (B13, B38)."""
    store = three.quorum()
    guards = [held_guard(store, f"order:{number}", holder=Holder("x" * 3000)) for number in range(400)]
    locks = [lock_of(guard) for guard in guards]
    settle(store)
    three.servers[0].pause()
    for _ in range(4):
        began = time.monotonic()
        assert store.renew(locks, 10.0) == [True] * 400
        assert time.monotonic() - began < 3 * SLACK
    three.servers[0].resume()
    for guard in guards:
        guard.release()


@pytest.mark.parametrize(("refusing", "works"), [(2, True), (3, False)])
def test_refused_credentials(start_server: StartServer, refusing: int, works: bool) -> None:
    """A minority that turns the password down is a minority; with a majority the answer is denied, never open."""
    servers = [start_server() for _ in range(5)]
    for server in servers[:refusing]:
        server.run("CONFIG", "SET", "requirepass", "other")
    store = open_store([server.url() for server in servers], timeout=0.5)
    if works:
        guard = held_guard(store)
        assert guard.release() is True
    else:
        with pytest.raises(StoreUnavailable) as caught:
            guard_on(store).acquire()
        assert caught.value.denied
    store.close()


def test_same_server_twice_under_two_names(start_server: StartServer, network: Network) -> None:
    """B43 (e): a server that is named twice has one vote; the second name is refused with the reason."""
    first, second = start_server(), start_server()
    urls = [first.url(), network.cable(first.port).url, second.url()]
    store = open_store(urls, timeout=0.5)
    assert isinstance(store, QuorumStore)
    with Lock(store, "order:7"):
        for node in store.nodes:

            def settled(node: Node = node) -> bool:
                return any(node.settle()) or "stands in singleton_lock_url twice" in str(node.connect_soon())

            eventually(settled, 3, "a connection, or why not")
        assert [any(node.settle()) for node in store.nodes].count(True) == 2
    first.kill()
    with pytest.raises(StoreUnavailable):
        guard_on(store).acquire()
    store.close()


def resources() -> tuple[int, int, int]:
    """Threads, file descriptors and memory (bytes) of this process."""
    this = psutil.Process()
    return threading.active_count(), this.num_fds(), this.memory_info().rss


@pytest.mark.slow
@pytest.mark.parametrize("state", ["dead", "hung"])
def test_failing_calls_leave_nothing(five: Deployment, state: str) -> None:
    """After 10,000 failing calls threads, sockets and memory are what they were."""
    store = five.cold_quorum(timeout=0.01)
    store.timeout = 0.0005  # less than a user may ask for: 11,000 calls that wait for nobody are soon over
    five.quorum()
    for server in five.servers[:3]:
        server.kill() if state == "dead" else server.pause()

    def fail(count: int) -> None:
        for _ in range(count):
            with pytest.raises(StoreUnavailable):
                guard_on(store).acquire()

    fail(1000)
    threads, files, memory = resources()
    fail(10_000)
    after = resources()
    assert after[0] <= threads + 3
    assert after[1] <= files + 5 * MAX_PARKED
    assert after[2] <= memory + 8 * 2**20


def test_remembered_error_keeps_no_tracebacks(three: Deployment) -> None:
    """A dead server's error is given anew to every call: one that is raised again and again grows."""
    store = three.cold_quorum()
    for server in three.servers[:2]:
        server.kill()
    with pytest.raises(StoreUnavailable):
        guard_on(store).acquire()
    node = store.nodes[0]
    eventually(lambda: node.connect_soon() is not None, 2, "the refused connection")
    assert node.connect_soon() is not node.connect_soon()


def test_slow_server_costs_nothing(three: Deployment) -> None:
    """A server that always answers later than the others is asked with a bounded number of connections."""
    store = three.quorum()
    three.cables[2].slow(0.2)
    began = time.monotonic()
    for _ in range(60):
        guard = held_guard(store)
        guard.release()
    assert (time.monotonic() - began) / 60 < 0.1  # two calls that waited for it would take 0.8 s
    node = store.nodes[2]
    assert sum(node.settle()) <= MAX_PARKED + 1
    settle(store)
    assert not three.locked()[2]


def test_many_threads_share_a_store(three: Deployment) -> None:
    """Threads on one store never read each other's answers, also while connections break."""
    store = three.quorum()
    wrong: list[object] = []
    doubts: list[int] = []
    rounds: list[int] = []
    end = time.monotonic() + 2.0

    def work(number: int) -> None:
        while time.monotonic() < end:
            guard = guard_on(store, f"order:{number}", holder=Holder(f"task-{number}"))
            try:
                answer = guard.acquire()
                if not isinstance(answer, Granted):
                    wrong.append(answer)
                taken = peek(store, f"order:{number}")
                if taken.holder.task_id != f"task-{number}":
                    wrong.append(taken)
            except StoreUnavailable:  # the third server has no connection yet, the second is cut off: nobody can tell
                doubts.append(number)
            finally:
                guard.release()
                rounds.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end - 0.5:
        three.cables[1].cut()
        time.sleep(0.05)
    for thread in threads:
        thread.join(20)
    assert not wrong, "\n".join(map(repr, wrong[:20]))
    assert len(doubts) < len(rounds) / 10


GEVENT = """
from gevent import monkey; monkey.patch_all()
import sys, time
import gevent
from celery_singleton_lock import Lock, open_store

store = open_store(sys.argv[1:], timeout=2.0)
count, ticks = 0, 0

def work():
    global count
    for _ in range(20):
        with Lock(store, "counter", ttl=30):
            seen = count
            gevent.sleep(0.001)
            count = seen + 1

def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.01)

gevent.spawn(tick)
gevent.joinall([gevent.spawn(work) for _ in range(6)], raise_error=True, timeout=40)
assert count == 120, count
assert ticks > 5, ticks
"""


@pytest.mark.parametrize("program", [FORK, GEVENT], ids=["fork", "gevent"])
def test_other_worlds(five: Deployment, program: str) -> None:
    """A store used before a fork, and by greenlets, mixes no replies and blocks nobody else (B36)."""
    run_python("-c", program, *five.urls)
