"""The world outside: a payment gateway and a mail server. Both have faults.

As with the test cards of a real gateway, some amounts make trouble: they are told by their cents, and only the first
time that an event comes along.
"""

from __future__ import annotations

import random
import time

FINE, DOWN, HANGS, MAIL_HANGS = 0, 13, 66, 99
"""The cents of an amount, and what happens the first time."""

_HANG = 15.0  # seconds: long enough to be killed meanwhile, however slow the machine


class GatewayError(Exception):
    """The gateway cannot be reached; try again."""


def capture(event_id: str, amount: int, *, first: bool) -> str:
    """Take the money, and answer with a receipt. ``event_id`` is the gateway's own idempotency key.

    Such a call can take long. Hence it comes before the database's transaction, not inside.
    """
    time.sleep(random.uniform(0.05, 0.1))
    if first and amount % 100 == DOWN:
        raise GatewayError(f"no answer about {event_id}")
    if first and amount % 100 == HANGS:
        time.sleep(_HANG)
    return f"receipt {event_id}"


def send_mail(amount: int, *, first: bool) -> None:
    """Thank the customer, after the payment is booked. Two mails are possible: only what is in the database is once."""
    if first and amount % 100 == MAIL_HANGS:
        time.sleep(_HANG)


def print_label() -> None:
    """Print a parcel's label."""
    time.sleep(random.uniform(0.05, 0.1))
