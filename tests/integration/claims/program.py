"""The worker that the tests kill, as a program: one run of a message, or the delivery of many."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_singleton_lock.contrib.sqlalchemy import claim
from celery_singleton_lock.errors import SingletonLockError

from .tables import Account, Booking, engine_for, lease_of

PROGRAM = [sys.executable, "-m", "tests.integration.claims.program"]
RESOURCES, MESSAGES = 3, 15


def run(url: str, message: int, fence: int, moment: str = "", pause: float = 0.0) -> str:
    """One run of a message: claim, read, stand still, write; killed before or after the commit if asked."""
    key = f"order:{message % RESOURCES}"
    with Session(engine_for(url)) as session:
        try:
            claim(session, lease_of(fence, f"event-{message}", key))
            total = session.scalar(sa.select(Account.total).where(Account.resource == key)) or 0
            time.sleep(pause)
            session.add(Booking(resource=key, work=f"event-{message}", fence=fence))
            session.execute(sa.update(Account).where(Account.resource == key).values(total=total + 1))
            if moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            session.commit()
        except SingletonLockError as error:
            return type(error).__name__
        except OperationalError:  # a serialization failure
            return "again"
    if moment == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return "booked"


def deliver(url: str, counter: str, seed: str) -> None:
    """A worker: every message, each run in a child process of its own, again until one has answered it."""
    dice, ends = random.Random(int(seed)), Counter[str]()
    outcomes = ["booked", "AlreadyDone", "StaleFence", "again"]
    for message in dice.sample(range(MESSAGES), MESSAGES):
        end = ""
        while end not in ("booked", "AlreadyDone"):
            fence, moment = next_fence(counter), dice.choice(["", "", "before", "after"])
            late, pause = dice.random() * 0.02, dice.random() * 0.005
            if dice.random() < 0.2:  # a run that slept through others' leases
                fence = (fence + 1) // 2
            child = os.fork()
            if not child:
                code = -1
                try:
                    time.sleep(late)
                    code = outcomes.index(run(url, message, fence, moment, pause))
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            end = "killed" if code == -signal.SIGKILL else outcomes[code]
            ends[end] += 1
    print(json.dumps(ends))


def next_fence(counter: str) -> int:
    """The next of the fences that all workers count in one file."""
    import fcntl

    with open(counter, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fence = int(file.read()) + 1
        file.seek(0)
        file.write(str(fence))
        file.flush()
        return fence


if __name__ == "__main__":
    if sys.argv[1] == "deliver":
        deliver(*sys.argv[2:])
    else:
        run(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
