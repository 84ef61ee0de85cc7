"""A process that holds ``order:7`` and works: ``holder.py LEDGER TTL URL...``. It says on its output what it knows."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from celery_singleton_lock import Lock, StoreUnavailable, open_store
from tests.support.ledger import Ledger


def main() -> None:
    """Write to the ledger until a write is refused, or the lease is lost and one more write was tried."""
    path, ttl, *urls = sys.argv[1:]
    ledger = Ledger(Path(path))
    lock = Lock(open_store(urls, timeout=0.5), "order:7", ttl=float(ttl))
    while True:
        try:
            if lock.acquire(blocking=False):
                break
        except StoreUnavailable as error:
            print(f"unavailable: {error}", flush=True)
        time.sleep(0.02)
    lease = lock.lease
    assert lease is not None
    print(f"held {lease.fence}", flush=True)
    while True:
        lost = lease.lost
        admitted = ledger.write("order:7", lease.fence)
        if lost or not admitted:
            print(f"lost={lease.lost} admitted={admitted}", flush=True)
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
