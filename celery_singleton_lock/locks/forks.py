"""What a forked child must leave alone: its parent's leases and connections, and locks of threads that it has not."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

_owners: WeakSet[Any] = WeakSet()


def forget_in_children(owner: Any) -> None:
    """Have ``owner.forget()`` called in every forked child."""
    _owners.add(owner)


def _forget_all() -> None:
    for owner in list(_owners):
        owner.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
