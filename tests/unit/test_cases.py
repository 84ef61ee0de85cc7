"""The numbers in the tests' docstrings and the page that says what they stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "cases.md"
#: A letter and two digits.
NUMBER = re.compile(r"\b[A-Z]\d{2}\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(source: str) -> Iterator[str]:
    """Every docstring in ``source``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED):
            yield ast.get_docstring(node, clean=False) or ""


def cited() -> set[str]:
    """Every number that a test's docstring cites."""
    texts = [text for path in (ROOT / "tests").rglob("*.py") for text in docstrings(path.read_text())]
    return set(NUMBER.findall("\n".join(texts)))


def lines() -> list[str]:
    """The numbers that have a line on the page, in its order."""
    return re.findall(rf"^\| ({NUMBER.pattern}) \|", PAGE.read_text(), re.MULTILINE)


def test_every_cited_case_has_a_line() -> None:
    """Whoever meets a number in a test finds it on the page."""
    assert sorted(cited() - set(lines())) == []


def test_every_line_is_cited() -> None:
    """No case stands on the page without a test."""
    assert sorted(set(lines()) - cited()) == []


def test_each_case_has_one_line_in_order() -> None:
    """A number is on the page once, where one looks for it."""
    assert lines() == sorted(set(lines()))


def test_docstrings_are_found() -> None:
    """The docstrings of a module, a class and functions count; comments and other texts do not."""
    source = '"""A01"""\nclass X:\n    "A02"\n    def f(self):\n        "A03"\n        x = "A04"  # A05\n'
    assert NUMBER.findall(" ".join(docstrings(source))) == ["A01", "A02", "A03"]
