"""The shop's tasks.

``charge`` and ``ship`` work for an order, so they name it as their key: whatever number of them is sent, at most one at
a time runs for each order. An event that is sent twice is booked once: by the record, which answers a repeat without
running the body, and by `claim` in the body's own transaction, which holds even where a worker dies between its commit
and its record.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from celery_singleton_lock import LeaseLost, SingleInstanceTask, single_instance
from celery_singleton_lock.contrib.sqlalchemy import AlreadyDone, StaleFence, claim

from . import gateway
from .app import app
from .config import DAY
from .models import Order, Payment, Report, Session, Shipment

AGAIN = (gateway.GatewayError, LeaseLost, StaleFence, OperationalError)
"""The next attempt may do better, and what is booked already is not booked again."""

REST = 0.8 * DAY
"""Seconds before the next daily report may begin."""


@app.task(acks_late=True, reject_on_worker_lost=True, autoretry_for=AGAIN, retry_backoff=True)
@single_instance(key="order:{order_id}", idempotency_key="{event_id}")
def charge(order_id: int, event_id: str, amount: int) -> dict[str, int | str]:
    """Take a payment for an order, once. ``amount``: cents."""
    receipt = gateway.capture(event_id, amount)
    with Session.begin() as session:
        try:
            claim(session)  # from here to the commit nobody else writes for this order
            payment = Payment(order_id=order_id, event_id=event_id, amount=amount)
            session.add(payment)
            order = session.scalars(select(Order).where(Order.id == order_id)).one()
            order.paid += amount
        except AlreadyDone:  # an earlier run ended between its commit and its record
            payment = session.scalars(select(Payment).where(Payment.event_id == event_id)).one()
    gateway.mail_receipt(event_id)
    return {"payment": payment.id, "receipt": receipt}


@app.task(acks_late=True, reject_on_worker_lost=True, autoretry_for=AGAIN, retry_backoff=True)
@single_instance(key="order:{order_id}", idempotency_key="{event_id}")
def ship(order_id: int, event_id: str) -> dict[str, int]:
    """Send a parcel, once, and never while the order is being charged."""
    gateway.print_label(event_id)
    with Session.begin() as session:
        try:
            claim(session)
            shipment = Shipment(order_id=order_id, event_id=event_id)
            session.add(shipment)
        except AlreadyDone:
            shipment = session.scalars(select(Shipment).where(Shipment.event_id == event_id)).one()
    return {"shipment": shipment.id}


@app.task(base=SingleInstanceTask, ignore_result=True, lock_on_conflict="skip", lock_at_least=REST)
def daily_report() -> None:
    """Add up the day. Two beats ask for it; the second one of a day is skipped, even if the first is done by then."""
    with Session.begin() as session:
        payments, total = session.execute(select(func.count(), func.coalesce(func.sum(Payment.amount), 0))).one()
        session.add(Report(payments=payments, total=total))
