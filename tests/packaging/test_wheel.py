"""The wheel that users install: what is in it, and that it works with nothing but what it says it needs."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ..support.servers import Server

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip"]

CYCLE = """
import sys
from celery_singleton_lock import Lock, open_store

store = open_store(sys.argv[1])
lock, other = Lock(store, "order:1", ttl=5), Lock(store, "order:1", ttl=5)
with lock:
    assert lock.owned() and not other.acquire(blocking=False)
assert other.acquire(blocking=False)
other.release()

from celery import Celery
from celery_singleton_lock import single_instance

app = Celery("shop", set_as_current=False)
app.conf.singleton_lock_url = sys.argv[1]


@app.task
@single_instance(key="order:{order_id}")
def charge(order_id):
    return order_id


assert charge.apply(args=[7]).get() == 7
print(sys.modules["celery_singleton_lock"].__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree: nothing left by an earlier build gets in, nothing is left behind."""
    source = tmp_path_factory.mktemp("source")
    unwanted = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "__pycache__")
    shutil.copytree(ROOT, source, ignore=unwanted, dirs_exist_ok=True)
    run(*PIP, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", ".", cwd=source)
    (built,) = (source / "dist").iterdir()
    return built


def distributions(requirements: list[str], found: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """What has to be there for these requirements, in the versions of the running environment."""
    for requirement in map(Requirement, requirements):
        if requirement.name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(requirement.name)
        distribution = importlib.metadata.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version, prereleases=True)
        yield distribution
        yield from distributions(distribution.requires or [], found)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and what it requires, copied from here instead of downloaded."""
    directory = tmp_path_factory.mktemp("empty")
    venv.create(directory, symlinks=True)
    interpreter = directory / "bin" / "python"
    where = run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=directory)
    packages = Path(where.strip())
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    for distribution in distributions(required, set()):
        for file in distribution.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), packages / file)
    run(*PIP, "--python", interpreter, "install", "--no-index", "--no-deps", wheel, cwd=directory)
    return interpreter


def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    """Every module, every Lua file and py.typed are in it; tests and the example are not."""
    package = ROOT / "celery_singleton_lock"
    expected = {str(file.relative_to(ROOT)) for kind in ("*.py", "*.lua", "py.typed") for file in package.rglob(kind)}
    assert any(name.endswith(".lua") for name in expected)
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


@pytest.mark.parametrize("kind", ["memory", "valkey"])
def test_the_installed_wheel_locks(kind: str, python: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """In an empty environment a lock and a task work, in memory and with the installed Lua files."""
    url = "memory://"
    if kind == "valkey":
        server: Server = request.getfixturevalue("valkey")
        url = server.url()
    module = run(python, "-I", "-c", CYCLE, url, cwd=tmp_path).splitlines()[-1]
    assert Path(module).is_relative_to(python.parents[1])


def test_the_wheel_requires_what_it_needs(python: Path, tmp_path: Path) -> None:
    """pip finds nothing missing or in conflict."""
    run(*PIP, "--python", python, "check", cwd=tmp_path)
