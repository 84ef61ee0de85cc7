"""What the database says in the end: a table with a line for each order, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase

from ..shop import tasks
from ..shop.app import app
from ..shop.models import Order, Payment, Session, Shipment
from .records import FAILED, FOUND, KILLED, Note, Run, Sent, unanswered

KILLS = 2
_LATE = 1.0  # seconds: so late a body may begin after its lock was taken, on a busy machine

Row = TypeVar("Row", bound=DeclarativeBase)


@dataclass
class OrderLine:
    """One order's line of the table, or the line of them all."""

    order: int | str
    messages: int = 0
    at_once: int = 0
    events: int = 0
    payments: int = 0
    parcels: int = 0
    replayed: int = 0
    recovered: int = 0
    waits: int = 0


_COLUMNS = {
    "order": ("order", ""),
    "at_once": ("most runs", "at once"),
    "messages": ("messages", "sent"),
    "events": ("different", "events"),
    "payments": ("payments", "booked"),
    "parcels": ("parcels", "booked"),
    "replayed": ("answered from", "the record"),
    "recovered": ("recovered", "after a kill"),
    "waits": ("waits", ""),
}


@dataclass
class Verdict:
    """The table, what else was counted, and every fault in words."""

    orders: list[OrderLine]
    total: OrderLine
    killed: int
    found_booked: int
    reports: int
    reports_at_once: int
    report_skips: int
    problems: list[str]

    def table(self) -> Iterator[str]:
        """The lines to print."""
        widths = [max(map(len, column)) + 2 for column in _COLUMNS.values()]

        def row(cells: Iterable[object]) -> str:
            return "".join(f"{cell!s:>{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()

        yield ""
        yield row(top for top, _ in _COLUMNS.values())
        yield row(under for _, under in _COLUMNS.values())
        for line in self.orders:
            yield row(getattr(line, name) or "-" for name in _COLUMNS)
        yield row("-" * (width - 2) for width in widths)
        yield row(getattr(self.total, name) or "-" for name in _COLUMNS)
        yield ""
        yield f"Processes killed: {self.killed}. Bodies that found their work booked already: {self.found_booked}."
        yield (
            f"Daily reports, asked for by two beats: {self.reports} written, {self.report_skips} skipped, "
            f"{self.reports_at_once} at once."
        )


class Evidence:
    """Every row of the database, read once everything has stopped."""

    def __init__(self) -> None:
        with Session() as session:

            def every(table: type[Row]) -> Sequence[Row]:
                return session.scalars(select(table)).all()

            self.orders, self.sent = every(Order), every(Sent)
            self.payments, self.shipments = every(Payment), every(Shipment)
            self.runs, self.notes = every(Run), every(Note)
        self.unanswered = unanswered()
        self.booked = Counter(payment.event_id for payment in self.payments)
        self.booked.update(shipment.event_id for shipment in self.shipments)
        self.reports = [run for run in self.runs if run.task == tasks.daily_report.name]

    def noted(self, what: str) -> list[Note]:
        """What was written down under this name."""
        return [note for note in self.notes if note.what == what]

    def line(self, order: int) -> OrderLine:
        """One order's line."""
        sent = {row.task_id: row.event_id for row in self.sent if row.order_id == order}
        killed = {run.event_id for run in self.runs if run.order_id == order and run.outcome == KILLED}
        return OrderLine(
            order,
            messages=len(sent),
            at_once=most_at_once(run for run in self.runs if run.order_id == order),
            events=len(set(sent.values())),
            payments=sum(payment.order_id == order for payment in self.payments),
            parcels=sum(shipment.order_id == order for shipment in self.shipments),
            replayed=sum(note.task_id in sent for note in self.noted("lock_replayed")),
            recovered=sum(self.booked[event] == 1 for event in killed if event),
            waits=sum(note.task_id in sent for note in self.noted("lock_waiting")),
        )

    def problems(self, lines: Sequence[OrderLine]) -> Iterator[str]:
        """Every fault."""
        for event in sorted({row.event_id for row in self.sent}):
            if self.booked[event] > 1:
                yield f"event {event} is booked {self.booked[event]} times"
            if not self.booked[event]:
                yield f"event {event} is LOST: sent, and never booked"
        for order in self.orders:
            booked = sum(payment.amount for payment in self.payments if payment.order_id == order.id)
            if not order.due == order.paid == booked:
                yield f"order {order.id}: {order.due} cents are due, {order.paid} paid, {booked} booked"
        overlaps = [line.at_once for line in lines if line.at_once > 1]
        if overlaps:
            yield f"bodies OVERLAP in {len(overlaps)} orders, up to {max(overlaps)} at once"
        if most_at_once(self.reports) > 1:
            yield "daily reports OVERLAP"
        starts = [run.started for run in self.reports]
        span = max(starts, default=0.0) - min(starts, default=0.0)
        if (len(starts) - 1) * tasks.REST > span + _LATE:
            yield f"{len(starts)} daily reports were written within {span:.1f} s: more than one a day"
        if self.unanswered:
            yield f"{len(self.unanswered)} messages have no answer"
        if self.noted(FAILED):
            yield f"{len(self.noted(FAILED))} messages failed"
        kills = sum(run.outcome == KILLED for run in self.runs)
        if kills < KILLS:
            yield f"{kills} processes were killed, not {KILLS}: this run proves too little"
        yield from self._different_answers()

    def _different_answers(self) -> Iterator[str]:
        """A duplicate gets the answer that the first message got, from the record or from the database."""
        first: dict[str, Any] = {}
        for row in self.sent:
            answer = app.backend.get_task_meta(row.task_id)["result"]
            if first.setdefault(row.event_id, answer) != answer:
                yield f"a duplicate of event {row.event_id} got another answer than the first"


def most_at_once(runs: Iterable[Run]) -> int:
    """How many of these bodies were at work at the same time, at most."""
    steps = []
    for run in runs:
        steps.append((run.started, 1))
        steps.append((float("inf") if run.ended is None else run.ended, -1))
    most = now = 0
    for _, step in sorted(steps):  # of two at the same time, the end comes first
        now += step
        most = max(most, now)
    return most


def judge() -> Verdict:
    """Read the database and the results."""
    evidence = Evidence()
    lines = [evidence.line(order.id) for order in evidence.orders]
    total = OrderLine("all", at_once=max(line.at_once for line in lines))
    for column in ("messages", "events", "payments", "parcels", "replayed", "recovered", "waits"):
        setattr(total, column, sum(getattr(line, column) for line in lines))
    return Verdict(
        lines,
        total,
        killed=sum(run.outcome == KILLED for run in evidence.runs),
        found_booked=sum(run.outcome == FOUND for run in evidence.runs),
        reports=len(evidence.reports),
        reports_at_once=most_at_once(evidence.reports),
        report_skips=len(evidence.noted("lock_skipped")),
        problems=list(evidence.problems(lines)),
    )
