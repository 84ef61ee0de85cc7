"""The clock of every local deadline: it counts the time a machine sleeps, where the system has such a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]

if hasattr(time, "CLOCK_BOOTTIME"):
    #: Seconds since boot, suspend included: CLOCK_MONOTONIC stands still while a Linux machine sleeps.
    now: Clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)

else:
    now = time.monotonic
