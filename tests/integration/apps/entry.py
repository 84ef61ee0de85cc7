"""An app that is also a program: ``python -m tests.integration.apps.entry`` prints what a worker's key should be."""

from __future__ import annotations

from celery import Task

from celery_singleton_lock import current_lease, single_instance

from .private import Private

app = Private("entry", config_source="tests.integration.apps.settings")


@app.task(bind=True, name="entry.charge")
@single_instance
def charge(self: Task, order_id: int, tags: frozenset[str] = frozenset({"a", "b", "c"})) -> str:
    """The key of this very run."""
    lease = current_lease()
    assert lease is not None
    return lease.key


if __name__ == "__main__":
    print(charge(7))
