"""What a history of locks must satisfy: pure functions over what clients and the guarded table wrote down."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Span:
    """One grant. Times are readings of the clock that all processes of the machine share; ``told``: when the lease was
    lost by the holder's own clock; ``end`` is the next process's start where the process was killed."""

    key: str
    fence: int
    token: str
    sent: float
    granted: float
    end: float = math.inf
    told: float | None = None
    refused: int = 0


@dataclass
class Report:
    """The counts, and every violation in words."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def read(lines: Iterable[str], report: Report) -> list[Span]:
    """The spans of one process's history, and of those that followed it after its death."""
    spans: dict[str, Span] = {}
    for line in lines:
        found = json.loads(line)
        if "started" in found:  # whoever wrote before in this file was killed
            for span in spans.values():
                if span.end == math.inf:
                    span.end = found["started"]
                    report.counts["holders killed"] += 1
        elif "counts" in found:
            report.counts.update(found["counts"])
        elif "key" in found:
            spans[found["token"]] = Span(**found)
        else:
            span = spans[found["token"]]
            span.end, span.told, span.refused = found["end"], found["told"], found["refused"]
    return list(spans.values())


def check(spans: Sequence[Span], written: Sequence[tuple[str, int, str]], report: Report) -> None:
    """``written``: key, fence and token of every admitted write, in the order of their commits."""
    by_key: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_key[span.key].append(span)
    positions: dict[str, list[int]] = defaultdict(list)
    for position, (_, _, token) in enumerate(written):
        positions[token].append(position)
    report.counts["acquisitions"] = len(spans)
    report.counts["writes"] = len(written)
    report.counts["stale writes refused"] = sum(span.refused for span in spans)
    report.counts["leases lost"] = sum(span.told is not None for span in spans)
    for key, found in by_key.items():
        found.sort(key=lambda span: span.granted)
        _fences(key, found, report)
        _overlaps(key, found, positions, report)
    _writes(written, report)


def _fences(key: str, spans: Sequence[Span], report: Report) -> None:
    for earlier, later in itertools.pairwise(spans):
        if earlier.fence >= later.fence:
            report.violations.append(f"{key}: fence {later.fence} was granted after {earlier.fence}")


def _overlaps(key: str, spans: Sequence[Span], positions: dict[str, list[int]], report: Report) -> None:
    open_spans: list[Span] = []
    for newer in spans:
        open_spans = [older for older in open_spans if older.end > newer.granted]
        for older in open_spans:
            report.counts["overlaps"] += 1
            if older.told is not None and older.told <= newer.granted:
                report.counts["overlaps, the older had been told"] += 1
                continue
            first = positions[newer.token][:1]
            if first and any(position > first[0] for position in positions[older.token]):
                report.violations.append(f"{key}: {older.fence} wrote after {newer.fence} had, and was not told")
            else:
                report.counts["overlaps, no older write was admitted"] += 1
        open_spans.append(newer)


def _writes(written: Sequence[tuple[str, int, str]], report: Report) -> None:
    last: dict[str, tuple[int, str]] = {}
    for key, fence, token in written:
        newest, by = last.get(key, (0, ""))
        if fence < newest or (fence == newest and token != by):
            report.violations.append(f"{key}: a write under {fence} was admitted after one under {newest}")
        last[key] = (fence, token)
