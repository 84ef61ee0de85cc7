"""Servers and holders that fail, on one server and on a quorum: was there an overlap, did the holder know, was a stale
write refused."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_singleton_lock import Lock, StoreUnavailable, open_store
from celery_singleton_lock.locks.answers import Answer, Granted, Taken
from celery_singleton_lock.locks.protocol import AcquireRequest

from ..support.ledger import Ledger
from ..support.locks import guard_on, held_guard, lease_of, warm
from ..support.network import Network
from ..support.process import Process
from ..support.servers import Server, StartServer, missing, valkey_binary
from ..support.waiting import eventually
from .conftest import Deployment

ROOT = Path(__file__).parents[2]
TTL = 2.0


def flush(server: Server) -> None:
    """It forgets everything."""
    server.run("FLUSHALL")


def forget_scripts(server: Server) -> None:
    """It forgets the scripts."""
    server.run("SCRIPT", "FLUSH")


def kill_clients(server: Server) -> None:
    """It closes every connection."""
    server.run("CLIENT", "KILL", "TYPE", "normal")


def pause_shortly(server: Server) -> None:
    """It stands still for less than the lease."""
    server.pause()
    time.sleep(0.15 * TTL)
    server.resume()


MILD = [forget_scripts, kill_clients, pause_shortly]
FORGETTING = [flush, Server.restart]


@pytest.mark.parametrize("fault", MILD, ids=lambda fault: fault.__name__)
def test_mild_faults_cost_no_lease(deployment: Deployment, fault: Callable[[Server], None]) -> None:
    """Whatever is shorter than the lease, on every server at once, is outlived: no overlap, nothing to know (B38)."""
    store = deployment.warm_store(timeout=0.5)
    guard = held_guard(store, ttl=TTL, renewed=True)
    for _ in range(3):
        for server in deployment.servers:
            fault(server)
        time.sleep(TTL / 3)
        assert isinstance(guard_on(deployment.store()).acquire(), Taken)
    assert not lease_of(guard).lost
    assert guard.release() is True


@pytest.mark.parametrize("fault", FORGETTING, ids=["flush", "restart"])
def test_memory_loss(deployment: Deployment, ledger: Ledger, fault: Callable[[Server], None]) -> None:
    """One server that forgets: a single one's lease is lost and known, a quorum's goes on; fences order the rest."""
    store = deployment.warm_store(timeout=0.5)
    guard = held_guard(store, ttl=TTL, renewed=True)
    first = lease_of(guard).fence
    assert ledger.write("order:7", first)
    fault(deployment.servers[0])
    if len(deployment.servers) == 1:
        eventually(lambda: lease_of(guard).lost, 2 * TTL, "the loss")
        second = lease_of(held_guard(deployment.store())).fence
        assert second > first
        assert ledger.write("order:7", second)
        assert not ledger.write("order:7", first)
    else:
        time.sleep(1.5 * TTL)
        assert not lease_of(guard).lost
        assert isinstance(guard_on(deployment.store()).acquire(), Taken)
        names_there = [key for key in deployment.stored()[0] if ":lock:" in key]
        assert names_there, "the lock was not restored"
        assert guard.release() is True


def test_restart_with_memory(start_server: StartServer, tmp_path: Path) -> None:
    """A server that comes back with its append-only file has the lock still: the lease goes on, nobody else gets it."""
    directory = tmp_path / "data"
    directory.mkdir()
    server = start_server("--appendonly", "yes", "--appendfsync", "always", "--dir", str(directory))
    store = open_store(server.url(), timeout=0.3)
    guard = held_guard(store, ttl=3.0, renewed=True)
    server.restart()
    other = open_store(server.url(), timeout=0.5)
    assert isinstance(guard_on(other).acquire(), Taken)
    time.sleep(1.2)
    assert not lease_of(guard).lost
    assert guard.release() is True
    for made in (store, other):
        made.close()


def test_majority_forgets(three: Deployment, ledger: Ledger) -> None:
    """Two of three forget at once: an overlap may be, the older holder is told by its next renewal, and the fence
    keeps its late writes out."""
    store = three.warm_store(timeout=0.5)
    guard = held_guard(store, ttl=TTL, renewed=True)
    first = lease_of(guard).fence
    for server in three.servers[:2]:
        flush(server)
    second = held_guard(three.store(), ttl=TTL, renewed=True)
    newer = lease_of(second).fence
    assert newer > first
    assert ledger.write("order:7", newer)
    assert not ledger.write("order:7", first)
    eventually(lambda: lease_of(guard).lost, 2 * TTL, "the loss")
    assert not lease_of(second).lost
    assert second.release() is True


def test_holder_stands_still(deployment: Deployment, ledger: Ledger, tmp_path: Path) -> None:
    """A holder stopped past its ttl: another works meanwhile; it knows when it wakes, and its late write is refused."""
    argv = [sys.executable, "-m", "tests.faults.holder", str(tmp_path / "ledger.sqlite"), str(TTL), *deployment.urls]
    holder = Process(argv, log=tmp_path / "holder.log", env={"PYTHONPATH": str(ROOT)}, cwd=ROOT)
    try:
        holder.wait_for_log("held ")
        holder.pause()
        while ledger.busy():  # it was stopped in the middle of a write, which would block every other
            holder.resume()
            time.sleep(0.013)
            holder.pause()
        store = deployment.store()
        lock = Lock(store, "order:7", ttl=5)
        began = time.monotonic()
        assert lock.acquire(blocking_timeout=10)
        assert time.monotonic() - began < TTL + 2.0
        assert ledger.write("order:7", lease_of(lock).fence)
        holder.resume()
        holder.wait_for_log("admitted=")
        assert "lost=True admitted=False" in holder.log()
        assert lease_of(lock).lost is False
        assert lock.release() is True
        assert ledger.fences("order:7") == sorted(ledger.fences("order:7"))
    finally:
        holder.kill()


def test_pause_between_computing_and_sending(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """B51: who stood still for 2 x ttl before its request went out is judged by the clock from before that."""
    store = deployment.warm_store()
    ttl = 0.9
    acquire = store.acquire

    def late(request: AcquireRequest) -> Answer:
        time.sleep(2 * ttl)  # as SIGSTOP and SIGCONT would, here at exactly this point
        return acquire(request)

    guard = guard_on(store, ttl=ttl)
    with monkeypatch.context() as patch:
        patch.setattr(store, "acquire", late)
        with pytest.raises(StoreUnavailable) as caught:
            guard.acquire()
    assert caught.value.contended or "time" in str(caught.value)
    assert guard.lease is None
    assert isinstance(guard_on(store).acquire(), Granted)


def clock_server(start_server: StartServer, directory: Path, offset: Path) -> Server:
    """A server whose clock is moved by what is in the file ``offset``."""
    library = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if shutil.which("faketime") is None or library is None:
        missing("faketime is not installed")
    offset.write_text("+0\n")
    script = directory / "server-with-a-clock"
    variables = (
        f"LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={offset} FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1"
    )
    script.write_text(f'#!/bin/sh\nexec env {variables} {valkey_binary()} "$@"\n')
    script.chmod(0o755)
    return start_server(binary=str(script))


def set_clock(server: Server, offset: Path, seconds: str) -> None:
    """Move the server's clock, and return when it is there."""
    offset.write_text(f"{seconds}\n")
    eventually(lambda: abs(server.run("TIME")[0] - time.time() - int(seconds)) < 60, message="the server's new clock")


@pytest.mark.parametrize("jump", ["+3600", "-3600"])
@pytest.mark.parametrize("count", [1, 3])
def test_clock_of_a_server_jumps(
    start_server: StartServer, network: Network, tmp_path: Path, jump: str, count: int
) -> None:
    """A server's clock an hour off: a single server's lock may end early, and the holder is told; a quorum's lease goes
    on. Fences increase all the same."""
    offset = tmp_path / "offset"
    servers = [clock_server(start_server, tmp_path, offset), *[start_server() for _ in range(count - 1)]]
    set_clock(servers[0], offset, jump)
    set_clock(servers[0], offset, "+0")
    deployment = Deployment(servers, network)
    store = deployment.warm_store(timeout=0.5)
    guard = held_guard(store, ttl=TTL, renewed=True)
    first = lease_of(guard).fence
    set_clock(servers[0], offset, jump)
    time.sleep(1.2 * TTL)
    if count == 1 and jump.startswith("+"):
        assert lease_of(guard).lost
    else:
        assert not lease_of(guard).lost
        assert guard.release() is True
    second = held_guard(deployment.store())
    assert lease_of(second).fence > first
    second.release()
    set_clock(servers[0], offset, "+0")
    assert lease_of(held_guard(deployment.store())).fence > first
    deployment.close()


NAMESPACE = f"lock{os.getpid() % 100000}"


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Two servers in a network namespace of their own: their URLs, and the command that puts a process there."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    link, peer = f"{NAMESPACE[:12]}a", f"{NAMESPACE[:12]}b"
    steps = [
        f"netns add {NAMESPACE}",
        f"link add {link} type veth peer name {peer}",
        f"link set {peer} netns {NAMESPACE}",
        f"addr add 10.213.7.1/24 dev {link}",
        f"link set {link} up",
        f"-n {NAMESPACE} addr add 10.213.7.2/24 dev {peer}",
        f"-n {NAMESPACE} link set {peer} up",
        f"-n {NAMESPACE} link set lo up",
    ]
    processes: list[Process] = []
    try:
        for step in steps:
            if os.system(f"ip {step} >/dev/null 2>&1") != 0:
                pytest.skip("no network namespace can be made here")
        enter = ["ip", "netns", "exec", NAMESPACE]
        for port in (7001, 7002):
            argv = [*enter, valkey_binary(), "--port", str(port), "--bind", "0.0.0.0", "--protected-mode", "no"]
            processes.append(Process([*argv, "--save", ""], log=tmp_path / f"inside-{port}.log", cwd=tmp_path))
            processes[-1].wait_for_log("Ready to accept connections")
        yield [f"redis://10.213.7.2:{port}/0" for port in (7001, 7002)], enter
    finally:
        for process in processes:
            process.kill()
        os.system(f"ip netns del {NAMESPACE} >/dev/null 2>&1; ip link del {link} >/dev/null 2>&1")


def test_partition(
    inside: tuple[list[str], list[str]], start_server: StartServer, ledger: Ledger, tmp_path: Path
) -> None:
    """A holder on the minority's side knows at its deadline; the majority's side has a new holder only after that."""
    urls, enter = inside
    near = start_server()
    store = open_store([*urls, near.url()], timeout=0.5)
    warm(store)
    lost: list[float] = []
    guard = held_guard(store, ttl=TTL, renewed=True, on_lost=lambda _: lost.append(time.time()))
    first = lease_of(guard).fence
    assert ledger.write("order:7", first)
    os.system(f"ip link set {NAMESPACE[:12]}a down")
    argv = [*enter, sys.executable, "-m", "tests.faults.holder", str(tmp_path / "ledger.sqlite"), "3"]
    argv += [*urls, "redis://127.0.0.1:1/0"]
    other = Process(argv, log=tmp_path / "other.log", env={"PYTHONPATH": str(ROOT)}, cwd=ROOT)
    try:
        eventually(lambda: lost, message="the loss")
        other.wait_for_log("held ")
        assert time.time() >= lost[0]
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            guard.release()
        assert time.monotonic() - began < TTL
        eventually(lambda: ledger.fences("order:7")[-1] > first, message="a write of the newer holder")
        assert not ledger.write("order:7", first)
    finally:
        os.system(f"ip link set {NAMESPACE[:12]}a up")
        other.kill()
        store.close()
