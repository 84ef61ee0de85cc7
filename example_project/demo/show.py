"""The show itself: a shop with a worker and two beats, a burst of events, two killed processes."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select, update

from ..shop import tasks
from ..shop.models import Order, Payment, Session, create_tables, engine
from .outside import CAPTURE_HANGS, DOWN, MAIL_HANGS, Fault, Services
from .processes import Failed, Process, Stop
from .records import KILLED, READY, Base, Note, Run, Sent, unanswered
from .verdict import Verdict, judge

PATIENCE = 90.0
"""Seconds after which nobody waits for answers any more."""

_STAGES = {CAPTURE_HANGS: "before its commit", MAIL_HANGS: "after its commit, before its record"}


@dataclass(frozen=True)
class Message:
    """What is sent once; several messages may carry the same event. ``fault``: what its work meets, the first time."""

    task: str
    order_id: int
    event_id: str
    amount: int = 0
    fault: Fault | None = None

    def send(self, task_id: str) -> None:
        """Publish it."""
        if self.task == tasks.charge.name:
            result = tasks.charge.apply_async((self.order_id, self.event_id, self.amount), task_id=task_id)
        else:
            result = tasks.ship.apply_async((self.order_id, self.event_id), task_id=task_id)
        result.backend = None  # the answer is looked up in the end; waiting for it ends now, not after the server


def plan(orders: int, messages: int, seed: int) -> list[Message]:
    """What to send, in order: payments and one parcel for each order, a third of the messages being duplicates."""
    rng = random.Random(seed)
    each = 2 * messages // (3 * orders)
    pairs = [(order, number) for order in range(1, orders + 1) for number in range(1, each + 1)]
    payments = [pair for pair in pairs if pair[1] != 2]
    faults = dict.fromkeys(rng.sample(payments, len(payments) // 10), DOWN)
    faults[payments[len(payments) // 4]] = CAPTURE_HANGS
    faults[payments[len(payments) // 2]] = MAIL_HANGS
    events = []
    for order, number in pairs:
        name = f"{order}/{number}"
        if number == 2:
            events.append(Message(tasks.ship.name, order, name))
        else:
            amount = rng.randrange(5, 500) * 100  # cents
            events.append(Message(tasks.charge.name, order, name, amount, faults.get((order, number))))
    events += rng.choices(events, k=messages - len(events))
    # A few orders are at work at a time, so that the messages of each meet.
    return sorted(events, key=lambda message: message.order_id + rng.uniform(0, 4))


class Show:
    """One run of the example. ``say`` is given a line at a time."""

    def __init__(
        self, directory: Path, services: Services, cleanup: ExitStack, stop: Stop, say: Callable[[str], None]
    ) -> None:
        self.directory = directory
        self.services = services
        self.cleanup = cleanup
        self.stop = stop
        self.say = say
        self.begun = time.monotonic()
        self.killed: dict[str, tuple[str, float]] = {}  # messages by their event and the time of the kill

    def tell(self, text: str) -> None:
        """Say something, with the time before it."""
        self.say(f"{time.monotonic() - self.begun:5.1f} s  {text}")

    def run(self, messages: list[Message]) -> Verdict:
        """All of it. Raises `Failed`, and `Interrupted`."""
        self.start()
        self.send(messages)
        self.watch()
        self.end()
        return judge()

    def start(self) -> None:
        """Start a worker and two beats. Raises `Failed`."""
        create_tables()
        Base.metadata.create_all(engine)
        arguments = "-n shop@localhost --pool prefork --concurrency 4 --queues orders,reports --loglevel INFO"
        quiet = "--without-gossip --without-mingle --without-heartbeat"
        witness = "--include example_project.demo.witness"
        self.worker = self._celery("worker", "worker", *arguments.split(), *quiet.split(), *witness.split())
        self.beats = [
            self._celery(name, "beat", "--schedule", str(self.directory / name), "--pidfile", "")
            for name in ("beat-1", "beat-2")
        ]
        self.services.open()  # the last process has been started
        self.cleanup.callback(self.services.shutdown)
        self.stop.wait_for(lambda: self.worker.ended or self._ready(), 60)
        if self.worker.ended or not self._ready():
            raise Failed(f"The worker does not start:\n{self.worker.tail()}")
        self.tell("a worker with 4 processes and two beats are at work")

    def _celery(self, name: str, *arguments: str) -> Process:
        argv = [sys.executable, "-m", "celery", "-A", "example_project.shop.app", *arguments]
        process = Process(argv, self.directory / f"{name}.log")
        self.cleanup.callback(process.kill)
        return process

    def _ready(self) -> bool:
        with Session() as session:
            return session.scalar(select(Note).where(Note.what == READY)) is not None

    def send(self, messages: list[Message]) -> None:
        """Write the messages down, then send them all at once."""
        named = {str(uuid.uuid4()): message for message in messages}
        events = set(messages)
        due: Counter[int] = Counter()
        for event in events:
            due[event.order_id] += event.amount
            if event.fault is not None:
                self.services.faults[event.fault.path, event.event_id] = event.fault
        with Session.begin() as session:
            session.add_all(Order(id=order, due=amount, paid=0) for order, amount in due.items())
            session.add_all(
                Sent(task_id=task_id, task=message.task, event_id=message.event_id, order_id=message.order_id)
                for task_id, message in named.items()
            )
        for task_id, message in named.items():
            self.stop.check()
            message.send(task_id)
        self.tell(f"{len(named)} messages sent: {len(events)} events of {len(due)} orders, the others are duplicates")

    def watch(self) -> None:
        """Show progress and kill where it hurts, until every message is answered or it takes too long."""
        end = time.monotonic() + PATIENCE
        shown = time.monotonic()
        while True:
            for event_id, fault in self.services.hanging.copy().items():
                self._kill_when_due(event_id, fault)
            open_ids = unanswered()
            self._tell_of_recovery(open_ids)
            left = len(open_ids)
            if not left:
                self.tell("every message is answered")
                return
            now = time.monotonic()
            if now > end or self.worker.ended:
                self.tell(f"{left} messages have no answer, and nobody waits for them any longer")
                return
            if now - shown >= 2:
                shown = now
                self._show_progress(left)
            self.stop.wait_for(lambda: False, 0.1)

    def _kill_when_due(self, event_id: str, fault: Fault) -> None:
        at_work = select(Run).where(Run.event_id == event_id, Run.ended.is_(None)).order_by(Run.id).limit(1)
        with Session() as session:
            run = session.scalar(at_work)
        if run is None or time.monotonic() - run.started < 0.5:  # without locks, others of the event end by then
            return
        if self.services.hanging.pop(event_id, None) is None:  # over, on a very slow machine
            return
        ended = time.monotonic()  # read first: the next body may begin as soon as this one is dead
        os.kill(run.pid, signal.SIGKILL)  # a process of the worker, in the middle of the body
        with Session.begin() as session:
            killed = update(Run).where(Run.id == run.id, Run.ended.is_(None))
            session.execute(killed.values(ended=ended, outcome=KILLED))
        self.killed[run.task_id] = event_id, ended
        self.tell(f"SIGKILL for process {run.pid}, in the middle of payment {event_id}: {_STAGES[fault]}")

    def _tell_of_recovery(self, open_ids: set[str]) -> None:
        for task_id in self.killed.keys() - open_ids:
            event_id, when = self.killed.pop(task_id)
            self.tell(f"payment {event_id} is recovered, {time.monotonic() - when:.1f} s after the kill")

    def _show_progress(self, left: int) -> None:
        with Session() as session:
            counted = session.execute(select(Note.what, func.count()).group_by(Note.what))
            notes = {row.what: row[1] for row in counted}
            payments = session.scalar(select(func.count()).select_from(Payment))
            bodies = session.scalar(select(func.count()).where(Run.ended.is_(None)))
        self.tell(
            f"{payments} payments booked, {left} messages to go, {bodies} bodies at work; so far "
            f"{notes.get('lock_replayed', 0)} answers from records, {notes.get('lock_waiting', 0)} waits, "
            f"{notes.get('lock_skipped', 0)} skips"
        )

    def end(self) -> None:
        """Stop the beats and let the worker finish what it has begun."""
        processes = (*self.beats, self.worker)
        for process in processes:
            process.ask_to_end()
        self.stop.wait_for(lambda: all(process.ended for process in processes), 20)
        for process in processes:
            process.kill()
