"""The command line: options, exit status, and the environment that the shop's modules read."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .outside import Services
from .processes import Failed, Interrupted, Stop
from .server import NoServer, check, embedded, eternal, remove

if TYPE_CHECKING:
    from .verdict import Verdict


@click.command()
@click.option("--redis-url", help="A Redis or Valkey server of your own, instead of an embedded one.")
@click.option("--orders", type=click.IntRange(2), default=36, show_default=True, help="How many orders there are.")
@click.option("--events", type=int, default=360, show_default=True, help="Messages to send; a third are duplicates.")
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses amounts, duplicates and their order.")
@click.option("--unlocked", is_flag=True, help="Switch the locks off, to see what they are for.")
@click.option("--keep", is_flag=True, help="Keep the database and the logs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; progress goes to stderr.")
def main(redis_url: str | None, orders: int, events: int, seed: int, unlocked: bool, keep: bool, as_json: bool) -> None:
    """Charge and ship a few dozen orders with a real worker and two beats, and kill two processes meanwhile.

    The exit status is 0 if every event was booked once and no two tasks of an order overlapped, 1 if not, 2 if there
    is no server to work with.
    """
    if events < 3 * orders:
        raise click.UsageError(f"--events: {orders} orders need at least {3 * orders}")
    if not hasattr(os, "killpg"):
        raise click.UsageError("Celery's prefork workers need Linux or macOS")

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    stop = Stop()
    directory = Path(tempfile.mkdtemp(prefix="celery-shop-"))
    with ExitStack() as cleanup:  # undone in reverse order: the processes end first, the files go last
        if keep:
            say(f"Everything is kept in {directory}")
        else:
            cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        try:
            url, prefix = redis_url, f"shop-{secrets.token_hex(4)}:"
            if url is None:
                url = embedded(directory, cleanup, stop)
            else:
                check(url)
                cleanup.callback(remove, url, prefix)
            services = Services()
            cleanup.callback(services.server_close)
            _set_environment(url, prefix, services.url, directory, locked=not unlocked)
            from .show import Show, plan  # not earlier: they read the environment

            verdict = Show(directory, services, cleanup, stop, say).run(plan(orders, events, seed))
            verdict.problems += [f"a key that never expires is left: {key}" for key in eternal(url, f"{prefix}lock:")]
            status = _report(verdict, say, as_json)
        except Interrupted as interrupted:
            say("Interrupted, cleaning up")
            status = 128 + interrupted.signum
        except (Failed, NoServer) as error:
            click.echo(str(error), err=True)
            status = 2 if isinstance(error, NoServer) else 1
    sys.exit(status)


def _report(verdict: Verdict, say: Callable[[str], None], as_json: bool) -> int:
    """Print the verdict; the exit status."""
    if as_json:
        click.echo(json.dumps(asdict(verdict)))
    else:
        for line in verdict.table():
            say(line)
    for problem in verdict.problems:
        say(f"  {problem}")
    if verdict.problems:
        say(click.style("NOT in order. (The option --keep keeps the database and the logs.)", fg="red", bold=True))
        return 1
    say(click.style("In order: every event was booked once, none was lost, nothing overlapped.", fg="green", bold=True))
    return 0


def _set_environment(url: str, prefix: str, gateway: str, directory: Path, *, locked: bool) -> None:
    """What the shop's modules read, here and in the processes to come."""
    for name in [name for name in os.environ if name.startswith("CELERY_")]:
        del os.environ[name]  # Celery prefers CELERY_BROKER_URL to any configuration: the messages would go elsewhere
    os.environ["TMPDIR"] = str(directory)  # a worker that is killed leaves its own temporary files
    os.environ["SHOP_REDIS_URL"] = url
    os.environ["SHOP_PREFIX"] = prefix
    os.environ["SHOP_GATEWAY_URL"] = gateway
    os.environ["no_proxy"] = "127.0.0.1"  # a proxy of the user's leads away from this machine
    os.environ["SHOP_DATABASE"] = str(directory / "shop.sqlite")
    os.environ["SHOP_LOCKED"] = "yes" if locked else "no"
