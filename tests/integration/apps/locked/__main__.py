"""``python -m tests.integration.apps.locked NAME STEPS``: so many direct calls, when the test says go."""

import sys

from ..kit import notes, wait_for_go
from .counting import count_waiting

notes.incr(f"ready:{sys.argv[1]}")
wait_for_go(sys.argv[1])
for _ in range(int(sys.argv[2])):
    count_waiting(sys.argv[1])
