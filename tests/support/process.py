"""Processes that a test starts: each in a session of its own, with a log file, ended by its pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from .waiting import eventually

_LAUNCHER = [sys.executable, "-I", "-S", str(Path(__file__).with_name("launch.py"))]


class Process:
    """A running command. It ends with the test process at the latest, and what it started ends with it.

    ``log``: the file that gets its output; ``env``: variables on top of this process's own.
    """

    def __init__(
        self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.argv = list(argv)
        self.log_file = log
        self.env = {**os.environ, **(env or {})}
        self.cwd = cwd
        self.start()

    def start(self) -> None:
        """Runs the command (again); `log` begins anew."""
        with self.log_file.open("ab") as out:
            self._log_start = out.tell()
            self._popen = subprocess.Popen(
                [*_LAUNCHER, str(os.getpid()), *self.argv],
                env=self.env,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The pid of the command, which leads a process group of the same number."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -9 after SIGKILL."""
        return self._popen.poll()

    @property
    def running(self) -> bool:
        """Whether the command has not ended; a paused one runs."""
        return self.exit_code is None

    def children(self) -> list[int]:
        """The pids of its children, the oldest first."""
        try:
            return [child.pid for child in psutil.Process(self.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def log(self) -> str:
        """Its output since the last start."""
        return self.log_file.read_bytes()[self._log_start :].decode(errors="replace")

    def wait_for_log(self, text: str, timeout: float = 30.0) -> None:
        """Returns when ``text`` is in the log; AssertionError, with the log, after ``timeout`` s or at its end."""

        def seen() -> bool:
            ended = not self.running  # asked first: the last lines count
            if text in self.log():
                return True
            if ended:
                raise AssertionError(f"exit {self.exit_code} before {text!r} was in the log:\n{self.log()}")
            return False

        try:
            eventually(seen, timeout, f"{text!r} in the log")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from None

    def send(self, signum: int) -> None:
        """Sends a signal to the command alone, not to its children."""
        self._popen.send_signal(signum)

    def pause(self) -> None:
        """Stops it and its children where they are: connections stay open, nothing is answered."""
        self._send_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on after `pause`."""
        self._send_group(signal.SIGCONT)

    def stop(self, timeout: float = 10.0) -> None:
        """Ends it with SIGTERM, or SIGKILL after ``timeout`` seconds; nothing of its group is left."""
        if self.running:
            self.resume()  # a stopped process does not see SIGTERM
            self.send(signal.SIGTERM)
            try:
                self._popen.wait(timeout)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """Ends it and its whole group with SIGKILL, as a crash of its machine would."""
        self._send_group(signal.SIGKILL)
        self._popen.wait(10)

    def _send_group(self, signum: int) -> None:
        try:
            os.killpg(self.pid, signum)
        except (ProcessLookupError, PermissionError):  # macOS says EPERM where only zombies are left
            pass
