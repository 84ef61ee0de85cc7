"""``python launch.py PARENT_PID COMMAND...`` becomes COMMAND and, on Linux, is killed when its parent dies.

A program of its own, because ``preexec_fn`` may deadlock in a test process that has threads.
"""

import os
import sys

if sys.platform == "linux":
    import ctypes
    import signal

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it died before the call above
        sys.exit(1)

os.execvp(sys.argv[2], sys.argv[2:])
