"""Benchmarks: they report, and assert nothing. Run from the clone, for example ``python -m benchmarks.cycle``."""
