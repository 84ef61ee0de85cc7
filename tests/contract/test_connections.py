"""Whose connections they are: threads and forked children never read each other's replies."""

from __future__ import annotations

import threading

from celery_singleton_lock import open_store
from celery_singleton_lock.locks.answers import Holder

from ..support.locks import Owner
from ..support.programs import FORK, run_python
from ..support.servers import Server


def test_threads_never_mix_replies(valkey: Server) -> None:
    """Eight threads on one store each read the answers to their own questions."""
    store = open_store(valkey.url(), timeout=5.0)
    wrong: list[object] = []

    def work(number: int) -> None:
        one = Owner(store, f"{number}", Holder(f"task-{number}"), key=f"order:{number}")
        for _ in range(50):
            fence = one.granted()
            taken = store.peek(one.names)
            if taken is None or (taken.holder, taken.fence) != (one.holder, fence) or not one.renew():
                wrong.append(taken)
            if not one.release():
                wrong.append(one)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    store.close()


def test_forked_children_have_connections_of_their_own(valkey: Server) -> None:
    """A store used before a fork mixes no replies in the children, and they free nothing of their parent's (B36)."""
    run_python("-c", FORK, valkey.url())
