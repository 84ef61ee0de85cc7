"""Processes that the example starts: each in a group of its own, ended by its pid, whatever happens."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1
_LIBC: ctypes.CDLL | None = ctypes.CDLL(None) if sys.platform == "linux" else None


class Interrupted(Exception):
    """Ctrl-C, or another signal that asks for the end. ``signum``: which."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Failed(Exception):
    """The example cannot go on."""


class Stop:
    """Takes note of SIGINT, SIGTERM and SIGHUP, for `check` to act on where the example can be left in good order."""

    def __init__(self) -> None:
        self._signum = 0
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._note)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._signum = signum

    def check(self) -> None:
        """Raise `Interrupted` if a signal has come."""
        if self._signum:
            raise Interrupted(self._signum)

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Look until ``condition()`` is true, for so many seconds at most; whether it came true."""
        end = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True


class Process:
    """A running command. ``log``: the file that gets its output.

    Ctrl-C in a terminal does not reach it: the example ends it in its turn. On Linux it does not outlive the example,
    even if that is killed.
    """

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self.log = log
        self._killed = False
        with log.open("wb") as out:
            self._popen = subprocess.Popen(
                argv,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent(os.getpid()),
            )

    @property
    def pid(self) -> int:
        """Its pid, and its group's number."""
        return self._popen.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._popen.poll() is not None

    def tail(self) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])

    def ask_to_end(self) -> None:
        """SIGTERM: a worker finishes the tasks at hand first."""
        if not self.ended:
            self._popen.terminate()

    def kill(self) -> None:
        """SIGKILL for what is left of its group, and wait for its end. A second call does nothing."""
        if self._killed:
            return
        self._killed = True
        for _ in range(100):  # until the group is empty, but its zombies may stay for a while
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # macOS says EPERM where only zombies are left
                break
            self._popen.poll()
            time.sleep(0.01)
        self._popen.wait()


def _end_with_parent(parent: int) -> Callable[[], None] | None:
    if _LIBC is None:
        return None
    prctl = _LIBC.prctl

    def ask() -> None:  # runs in the child, before its program
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)

    return ask
