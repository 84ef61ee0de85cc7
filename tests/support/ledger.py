"""A table that checks fences, as a user's own storage would."""

from __future__ import annotations

import sqlite3
from pathlib import Path


class Ledger:
    """One row per key with its newest fence, and what was written in order. Each thread and process opens its own."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=20, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS newest (key TEXT PRIMARY KEY, fence INTEGER NOT NULL)")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS entry (number INTEGER PRIMARY KEY, key TEXT, fence INTEGER)"
        )

    def busy(self) -> bool:
        """Whether somebody is in the middle of a write."""
        self._connection.execute("PRAGMA busy_timeout = 50")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("ROLLBACK")
            return False
        except sqlite3.OperationalError:
            return True
        finally:
            self._connection.execute("PRAGMA busy_timeout = 20000")

    def write(self, key: str, fence: int) -> bool:
        """Write under ``fence``; False where a newer one has written."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            row = run("SELECT fence FROM newest WHERE key = ?", (key,)).fetchone()
            if row is not None and row[0] > fence:
                return False
            run("INSERT OR REPLACE INTO newest VALUES (?, ?)", (key, fence))
            run("INSERT INTO entry (key, fence) VALUES (?, ?)", (key, fence))
            return True
        finally:
            run("COMMIT")

    def fences(self, key: str) -> list[int]:
        """The fences of all writes, in their order."""
        return [
            fence
            for (fence,) in self._connection.execute("SELECT fence FROM entry WHERE key = ? ORDER BY number", (key,))
        ]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
