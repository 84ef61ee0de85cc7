"""Real ``celery worker`` processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .process import Process

ROOT = Path(__file__).parents[2]


class Worker(Process):
    """``celery -A MODULE worker``; ready when the constructor returns.

    ``module``: a dotted name; ``name``: the node's, before the @; ``directory``: its working directory, with its log.
    """

    def __init__(
        self,
        module: str,
        *,
        name: str,
        directory: Path,
        pool: str = "prefork",
        concurrency: int = 2,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        wait: bool = True,
    ) -> None:
        argv = [
            *(sys.executable, "-m", "celery", "-A", module, "worker", "-n", f"{name}@localhost"),
            *("--pool", pool, "--concurrency", str(concurrency), "--loglevel", "INFO"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            *args,
        ]
        # A killed worker leaves multiprocessing's files behind: here they go with the test's own directory.
        env = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TMPDIR": str(directory), **(env or {})}
        super().__init__(argv, log=directory / f"{name}.log", env=env, cwd=directory)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, timeout: float = 30.0) -> None:
        """Returns when the worker takes tasks; AssertionError, with its log, if it ends or takes too long."""
        try:
            self.wait_for_log(" ready.", timeout)
        except AssertionError:
            self.kill()
            raise


#: What the fixtures `load_app` and `start_worker` give.
LoadApp = Callable[[str], Any]
StartWorker = Callable[..., Worker]
