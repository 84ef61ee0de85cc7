"""A locked task's message as its worker receives it, and the locks of killed children, freed by their parent."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, WorkerLostError
from celery.worker.request import Request

from ..errors import SingletonLockError
from ..keys.names import key_id, names
from ..locks.protocol import HeldLock
from ..tasks.locked_task import LockedTask
from ..tasks.message import Message

logger = logging.getLogger(__name__)

#: The longest time, in seconds, that the parent spends on a killed child's lock.
CHILD_EXIT_TIMEOUT = 1.0


class LockedRequest(Request):  # type: ignore[misc]  # Celery has no types
    """Keeps the message's content type, which Celery does not hand on to the task.

    A wait must send the message again as it was serialised.
    """

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        if message.properties is not None:
            message.properties.setdefault("content_type", message.content_type)
        super().__init__(message, *args, **kwargs)


class PreforkRequest(LockedRequest):
    """The parent's side of a locked task: it frees the lock of a child that could not do so itself.

    The parent needs no word from the child: the arguments name the lock, and the lock names its holder's task id, host
    and pid. It is freed with the token that stands there, so a newer owner's is never touched. A thread does it: the
    parent's event loop runs neither a user's key function nor a call to a server that may be out of reach.
    """

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The child may be lost: free its lock before the message goes back to the broker."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, (WorkerLostError, Terminated, SystemExit)):
            _free_in_thread(self).join(CHILD_EXIT_TIMEOUT)
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """After a hard time limit the child is killed when this has returned: a thread waits for its end."""
        super().on_timeout(soft, timeout)
        if not soft:
            _free_in_thread(self)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """The same after ``revoke(terminate=True)``."""
        super().terminate(pool, signal)
        if self.time_start:
            _free_in_thread(self)


def _free_in_thread(request: Request) -> threading.Thread:
    thread = threading.Thread(target=free_surely, args=(request,), name="singleton-lock-killed", daemon=True)
    thread.start()
    return thread


def free_surely(request: Request) -> None:
    """`free_killed`, whose failure is logged: whatever it is, the message must still be given back."""
    try:
        free_killed(request)
    except SingletonLockError as error:
        logger.warning("the lock of killed task %s[%s] ends with its lease: %s", request.name, request.id, error)
    except Exception:
        logger.exception("the lock of killed task %s[%s] ends with its lease", request.name, request.id)


def free_killed(request: Request) -> None:
    """Free the lock that the request's child holds, once the child is gone, within `CHILD_EXIT_TIMEOUT` seconds.

    Raises `SingletonLockError` where the lock cannot be named or the store not be used.
    """
    task, pid = request.task, request.worker_pid
    locked: LockedTask = type(task).singleton_lock_task()
    if pid is None or not locked.settings.free_killed or not locked.options.enabled:
        return
    message = Message.read(request._context)  # what the child saw of it
    identity = locked.identify(locked.arguments(task, request.args, request.kwargs), message)
    gone = _wait_until_gone(pid)  # before the look at the lock: a child that lives may take it yet
    found = names(locked.store.prefix, identity.key)
    taken = locked.store.peek(found)
    if taken is None or taken.resting or not taken.token:
        return
    if (taken.holder.task_id, taken.holder.host, taken.holder.pid) != (request.id, request.hostname, pid):
        return
    if not gone:
        logger.warning("lock %s: child %d is not gone yet; the lock ends with its lease", key_id(identity.key), pid)
        return
    lock = HeldLock(found, taken.token, taken.fence, locked.options.ttl)
    # When it was acquired is not known here: it rests for at_least from now, never too short.
    if locked.store.release(lock, rest=min(locked.options.at_least, taken.remaining or 0.0)):
        logger.warning("freed lock %s of killed task %s[%s]", key_id(identity.key), task.name, request.id)


def _wait_until_gone(pid: int) -> bool:
    end = time.monotonic() + CHILD_EXIT_TIMEOUT
    while not is_gone(pid):
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True


def is_gone(pid: int) -> bool:
    """Whether no process ``pid`` can do anything any more: it does not exist, or is a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("Z", "X")
