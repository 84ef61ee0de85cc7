"""The services that the shop calls, by HTTP: a payment gateway, which also mails its receipts, and a label printer."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.request import Request, urlopen

_URL = os.environ["SHOP_GATEWAY_URL"]
_TIMEOUT = 30.0  # seconds; longer than a lease, which is renewed meanwhile


class GatewayError(Exception):
    """No answer, or not a good one: try again."""


def capture(event_id: str, amount: int) -> str:
    """Take the money, in cents, and answer with a receipt. ``event_id`` is the gateway's own idempotency key.

    Such a call can take long. Hence it comes before the database's transaction, not inside.
    """
    receipt: str = _post("captures", event=event_id, amount=amount)["receipt"]
    return receipt


def mail_receipt(event_id: str) -> None:
    """Thank the customer, after the payment is booked. Two mails are possible: only what is in the database is once."""
    _post("mails", event=event_id)


def print_label(event_id: str) -> None:
    """Print a parcel's label. A second one of the same event is thrown away."""
    _post("labels", event=event_id)


def _post(path: str, **about: Any) -> Any:
    request = Request(f"{_URL}/{path}", json.dumps(about).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=_TIMEOUT) as response:
            return json.load(response)
    except OSError as error:  # refused, timed out, or a status that is no success
        raise GatewayError(f"{path}: {error}") from error
