"""What a type checker says to users' code: the decorator keeps a function's signature, wrong calls are seen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
from celery_singleton_lock import Lease, Lock, current_lease, is_skipped, open_store, single_instance

@single_instance
def bare(order_id: int, region: str = "eu") -> float:
    return 0.5

@single_instance(key="order:{order_id}", ttl=30)
def charge(order_id: int, *, amount: float) -> str:
    return "done"

reveal_type(bare)
reveal_type(charge)
bare("x")
charge(1)
charge(1, amount=0.5).upper()
lease: Lease | None = current_lease()
with Lock(open_store("memory://"), "order") as held:
    reveal_type(held.fence)
    reveal_type(held.remaining())
reveal_type(is_skipped(5))
"""
EXPECTED = [
    'Revealed type is "def (order_id: int, region: str =) -> float"',
    'Revealed type is "def (order_id: int, *, amount: float) -> str"',
    'Argument 1 to "bare" has incompatible type "str"; expected "int"',
    'Missing named argument "amount" for "charge"',
    'Revealed type is "int"',
    'Revealed type is "float"',
    'Revealed type is "bool"',
]


def test_signatures_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mypy, in its strict mode, sees the arguments and results of decorated functions, and of the lock library."""
    api = pytest.importorskip("mypy.api")
    (tmp_path / "shop.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    out, err, _ = api.run(
        ["--strict", "--follow-imports=silent", "--ignore-missing-imports", "--python-version", python, "shop.py"]
    )
    lines = [line for line in out.splitlines() if line.startswith("shop.py")]
    found = [line.partition(": ")[2].partition(": ")[2].replace("builtins.", "") for line in lines]
    assert err == ""
    assert [text.partition("  [")[0] for text in found] == EXPECTED
