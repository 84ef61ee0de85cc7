"""A real cluster: one node a call, slots that move, nodes that die."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.keys.names import names
from celery_singleton_lock.stores.cluster import ClusterStore

from ..support.cluster import Cluster
from ..support.locks import Owner, held_lock, held_lock_soon, is_held
from ..support.servers import StartServer

RESOURCES = [f"order:{number}" for number in range(40)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters; tests leave every slot where it was, and use resources of their own."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def store(cluster: Cluster) -> Iterator[ClusterStore]:
    """A store that knows nothing of the cluster yet."""
    store = open_store(cluster.url())
    assert isinstance(store, ClusterStore)
    yield store
    store.close()


def home(cluster: Cluster, slot: int) -> int:
    """The number of the master that has a slot at the start."""
    return next(number for number in range(3) if cluster.slots(number)[0] <= slot <= cluster.slots(number)[1])


@pytest.mark.parametrize(
    "resource",
    ["order:7", "order:{7}", "{", "}", "{}", "a{}b{c}", "{a}{b}", "}{", "ü:{ß}", "a b\r\n$5", "x" * 2000],
    ids=repr,
)
def test_every_key_of_a_resource_is_in_one_slot(store: ClusterStore, resource: str) -> None:
    """Whatever a user's key contains, lock, fence, index, tombstone and record are in the slot that we ask (B38)."""
    lock = held_lock(store, resource)
    assert Owner(store, key=resource).taken()
    assert store.renew([lock], 1.0) == [True]
    assert store.release(lock)
    assert not is_held(store, resource)


def test_slots_as_the_server_counts_them(cluster: Cluster, store: ClusterStore) -> None:
    """Our own arithmetic of a slot is the cluster's."""
    for resource in RESOURCES:
        name = names(store.prefix, resource)
        for key in (name.lock, name.fence, name.index, name.tombstone("f" * 32), name.record("e" * 32)):
            assert cluster.nodes[0].run("CLUSTER", "KEYSLOT", key) == key_slot(name.bucket.encode())


def test_renewals_of_many_nodes(store: ClusterStore) -> None:
    """One call renews leases on every node; one that is not held says so and the rest are renewed."""
    locks = [held_lock(store, resource) for resource in RESOURCES]
    assert len({key_slot(lock.names.bucket.encode()) for lock in locks}) > 20
    store.release(locks[7])
    assert store.renew(locks, 1.0) == [number != 7 for number in range(len(locks))]
    for lock in locks:
        store.release(lock)


def test_forgotten_scripts(cluster: Cluster, store: ClusterStore) -> None:
    """SCRIPT FLUSH between acquire, renewal and release is not noticed, in batches over all nodes neither (B38)."""
    locks = [held_lock(store, resource) for resource in RESOURCES[:10]]
    for node in cluster.nodes:
        node.run("SCRIPT", "FLUSH")
    assert store.renew(locks, 1.0) == [True] * 10
    for node in cluster.nodes:
        node.run("SCRIPT", "FLUSH")
    assert [store.release(lock) for lock in locks] == [True] * 10


def test_a_slot_that_moved_is_followed(cluster: Cluster, store: ClusterStore) -> None:
    """MOVED: the call goes to the new owner at once, and the next call asks it first; so does a renewal."""
    resource = "moved:1"
    slot = key_slot(names(store.prefix, resource).bucket.encode())
    held_lock(store, "warm:1")  # the store knows the cluster as it was
    cluster.move(slot, (home(cluster, slot) + 1) % 3)
    try:
        lock = held_lock(store, resource)
        assert store.renew([lock, *[held_lock(store, other) for other in RESOURCES[:5]]], 1.0) == [True] * 6
        node = cluster.nodes[(home(cluster, slot) + 1) % 3]
        assert node.run("EXISTS", lock.names.lock) == 1
        node.run("DEL", *node.run("KEYS", f"{lock.names.bucket}*"))
    finally:
        cluster.move(slot, home(cluster, slot))
    assert store.renew([lock], 1.0) == [False]  # moved back, without its lock
    for other in RESOURCES[:5]:
        name = names(store.prefix, other)
        cluster.nodes[home(cluster, key_slot(name.bucket.encode()))].run("DEL", name.lock)


def test_a_slot_on_its_way(cluster: Cluster, store: ClusterStore) -> None:
    """ASK is followed for this one call; what needs several keys is refused by TRYAGAIN: out of reach, never taken."""
    resource = "ask:1"
    name = names(store.prefix, resource)
    slot = key_slot(name.bucket.encode())
    source, target = home(cluster, slot), (home(cluster, slot) + 1) % 3
    ids = [cluster.id(node) for node in cluster.nodes]
    with cluster.nodes[source].client() as here, cluster.nodes[target].client() as there:
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        try:
            assert store.peek(name) is None
            with pytest.raises(StoreUnavailable, match="TRYAGAIN") as caught:
                held_lock(store, resource)
            assert caught.value.denied is False
        finally:
            here.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
            there.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
    assert store.release(held_lock(store, resource))


def test_any_seed_will_do(cluster: Cluster) -> None:
    """One node that answers is enough, and dead ones before it cost no more than their part of the call's bound."""
    alive = cluster.nodes[2].port
    store = open_store(f"redis+cluster://127.0.0.1:1,127.0.0.1:2,127.0.0.1:{alive}", timeout=1.0)
    assert store.release(held_lock(store, "seeds:1"))
    store.close()


def test_nobody_there() -> None:
    """No node answers: out of reach, in bounded time, with the reason."""
    store = open_store("redis+cluster://127.0.0.1:1,127.0.0.1:2", timeout=0.5)
    with pytest.raises(StoreUnavailable, match="Connection refused") as caught:
        held_lock(store, "nobody:1")
    assert caught.value.denied is False


def test_a_server_that_is_no_cluster(start_server: StartServer) -> None:
    """The server's own words say what is wrong."""
    single = start_server()
    with pytest.raises(StoreUnavailable, match="cluster support disabled"):
        held_lock(open_store(f"redis+cluster://127.0.0.1:{single.port}"), "single:1")


def test_a_silent_node_spoils_no_other(cluster: Cluster) -> None:
    """A node that accepts and never answers: leases on the others are renewed in time, its own are unknown."""
    store = open_store(cluster.url(), timeout=0.5)
    locks = [held_lock(store, resource) for resource in RESOURCES]
    assert store.renew(locks, 0.5) == [True] * len(locks)
    cluster.nodes[1].pause()
    try:
        start = time.monotonic()
        found = store.renew(locks, 0.4)
        assert time.monotonic() - start < 0.4 + 1.0
        theirs = [home(cluster, key_slot(lock.names.bucket.encode())) == 1 for lock in locks]
        assert any(theirs)
        assert found == [None if silent else True for silent in theirs]
        with pytest.raises(StoreUnavailable):
            store.release(locks[theirs.index(True)])
    finally:
        cluster.nodes[1].resume()
    for lock in locks:
        store.release(lock)
    store.close()


@pytest.mark.slow
def test_replicas_take_over(tmp_path: Path) -> None:
    """A master dies: its locks are out of reach until its replica is promoted, then they go on there, fences rising."""
    cluster = Cluster(tmp_path, replicas=1)
    try:
        store = open_store(cluster.url(), timeout=0.5)
        careful = open_store(cluster.url(), timeout=0.5, min_replicas=1)
        first, second = [r for r in RESOURCES if home(cluster, key_slot(names(store.prefix, r).bucket.encode())) == 0][
            :2
        ]
        lock = held_lock_soon(careful, first)
        assert is_held(store, first)
        cluster.nodes[0].kill()
        with pytest.raises(StoreUnavailable) as caught:
            held_lock(store, second)
        assert caught.value.denied is False
        assert store.release(held_lock_soon(store, second))
        assert Owner(store, key=first).taken().fence == lock.fence  # acknowledged by the replica, so it is there
        assert store.release(lock)
        assert held_lock(store, first).fence > lock.fence
        store.close()
        careful.close()
    finally:
        cluster.stop()
