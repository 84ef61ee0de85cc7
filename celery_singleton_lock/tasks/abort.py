"""``on_lost="abort"``: an exception raised in the body, in the main thread of a prefork child or a solo worker.

A signal does it: its handler runs in the main thread, between two steps of the body, and a blocking system call is
interrupted. An exception set from another thread (PyThreadState_SetAsyncExc) mostly lands after the body has left.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: Ignored by default, so one that arrives late does no harm.
SIGNAL = getattr(signal, "SIGURG", None)

_enabled = False
_body: Body | None = None  # the one body of this process that can be ended; touched by the main thread only
_previous: Any = None


def enable() -> None:
    """Called by a worker whose bodies run in the main thread, one at a time."""
    global _enabled
    _enabled = SIGNAL is not None and hasattr(signal, "pthread_kill")


def possible(outermost: bool) -> bool:
    """Whether a body that starts here and now could be ended.

    ``outermost``: it is a message's, and the process runs one at a time. A body that is still noted then is over: a
    time limit struck while it was being taken down.
    """
    return _enabled and threading.current_thread() is threading.main_thread() and (outermost or _body is None)


class Body:
    """A body that can be ended from outside with an exception, while it runs and not a step later."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        """``error`` makes what is raised in the body."""
        self.error = error
        self.ended = False

    def run(self, call: Callable[[], None], unless: Callable[[], bool]) -> None:
        """Call ``call`` in the main thread. Raises what it raises, or ``error()``, at once where ``unless()``."""
        global _body
        _listen()
        _body = self
        try:
            if unless():  # it happened before there was a body to end
                raise self.error()
            call()
        finally:
            _body = None  # a signal that is still to come finds nobody

    def end(self) -> None:
        """Have the error raised in the body; from any thread, once."""
        if not self.ended and _body is self:
            self.ended = True
            ident = threading.main_thread().ident
            assert ident is not None
            assert SIGNAL is not None
            signal.pthread_kill(ident, SIGNAL)


def _listen() -> None:
    global _previous
    assert SIGNAL is not None
    if signal.getsignal(SIGNAL) is not _on_signal:
        _previous = signal.signal(SIGNAL, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _body
    body = _body
    if body is not None and body.ended:
        _body = None
        raise body.error()
    if callable(_previous):
        _previous(number, frame)
