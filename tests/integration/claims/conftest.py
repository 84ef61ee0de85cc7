"""The databases: SQLite files always; PostgreSQL where its server and a driver are installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from celery_singleton_lock.contrib import sqlalchemy as contrib

from ...support.waiting import eventually
from .tables import Base, engine_for

POSTGRESQL = sorted(glob("/usr/lib/postgresql/*/bin"))[-1:]
DRIVER = [name for name in ("psycopg", "psycopg2") if importlib.util.find_spec(name)][:1]
DATABASES = ["sqlite", "sqlite, no-upsert"]
if POSTGRESQL and DRIVER and (os.geteuid() != 0 or shutil.which("setpriv")):
    DATABASES += ["postgresql", "postgresql, no-upsert", "postgresql, repeatable read"]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A PostgreSQL server of this run's own, on a socket in a private directory; ended with the run."""
    home = tempfile.mkdtemp(prefix="claim-")
    drop: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(home, "postgres")
        drop = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL"]
    tools, data = POSTGRESQL[0], f"{home}/data"
    initdb = [f"{tools}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
    subprocess.run([*drop, *initdb], cwd=home, check=True, stdout=subprocess.DEVNULL)
    server = subprocess.Popen(
        [*drop, f"{tools}/postgres", "-D", data, "-k", home, "-c", "listen_addresses=", "-c", "fsync=off"],
        cwd=home,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"postgresql+{DRIVER[0]}://postgres@/postgres?host={home}"
        eventually(lambda: _answers(url), 30, "PostgreSQL answers")
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # a fast shutdown
        server.wait(30)
        shutil.rmtree(home)


def _answers(url: str) -> bool:
    try:
        with engine_for(url).connect():
            return True
    except OperationalError:
        return False


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with empty tables."""
    kind, _, variant = request.param.partition(", ")
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db{variant}"
    else:
        url = request.getfixturevalue("postgresql") + f"&application_name={variant}"
        if variant == "repeatable read":
            url += r"&options=-c default_transaction_isolation=repeatable\ read"
    engine = engine_for(url)
    for tables in (contrib.metadata, Base.metadata):
        tables.drop_all(engine)
        tables.create_all(engine)
    return url


@pytest.fixture
def engine(url: str) -> sa.Engine:
    """An engine for that database."""
    return engine_for(url)
