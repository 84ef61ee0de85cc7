"""How far it is from a task's call to its body: the package's files and functions on a granted call's way.

``python -m benchmarks.path [--show]``. One warm server, a task with a template key and an idempotency key, called as a
worker calls it; ``sys.setprofile`` sees every Python function that is entered before the body's first line. A function
of the package counts; what Celery, redis-py and the standard library call beneath it does not.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
from celery import Celery

import celery_singleton_lock
from celery_singleton_lock import single_instance
from tests.support.servers import Server, valkey_binary

PACKAGE = Path(celery_singleton_lock.__file__).parent


def make_task(url: str) -> Any:
    """A task whose body ends the count, on an app of its own."""
    app = Celery("benchmark", broker="memory://", set_as_current=False)
    app.conf.singleton_lock_url = url

    @app.task(name="shop.charge", acks_late=True, lazy=False)
    @single_instance(key="order:{order_id}", idempotency_key="{event_id}")
    def charge(order_id: int, event_id: str, amount: int) -> None:
        sys.setprofile(None)

    return charge


@contextmanager
def delivered(task: Any, task_id: str) -> Iterator[None]:
    """The task's request is a worker's, for the block."""
    task.push_request(
        id=task_id, called_directly=False, is_eager=False, retries=0, headers={}, delivery_info={}, hostname="here"
    )
    try:
        yield
    finally:
        task.pop_request()


def functions_before_the_body(task: Any, number: int) -> list[tuple[str, str]]:
    """File and name of each function of the package that one call enters, in order."""
    entered: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            entered.append((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_name))

    with delivered(task, f"task-{number}"):
        sys.setprofile(note)
        try:
            task(7, f"event-{number}", 500)
        finally:
            sys.setprofile(None)
    return entered


@click.command()
@click.option("--show", is_flag=True, help="List the functions.")
def main(show: bool) -> None:
    """Count the files and functions between a task's call and its body."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(valkey_binary(), Path(directory))
        try:
            task = make_task(server.url(0))
            warm = [functions_before_the_body(task, number) for number in range(3)][-1]
        finally:
            server.stop()
    if show:
        for file, name in warm:
            click.echo(f"  {file} {name}")
    click.echo(f"{len({file for file, _ in warm})} files, {len(warm)} functions of the package")


if __name__ == "__main__":
    main()
