"""What a driver's error or a server's error reply means for a lock: unreachable, unable, or rejected."""

from __future__ import annotations

import re
import ssl

from redis import exceptions

from ..errors import StoreUnavailable

#: Replies that redis-py counts as errors of the connection.
NOT_CARRIED_OUT = (exceptions.BusyLoadingError, exceptions.AuthenticationError, exceptions.AuthorizationError)

_CODES: dict[type[exceptions.RedisError], str] = {
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.AuthenticationError: "WRONGPASS",
}
#: Inside of a script Redis 6.2 hides the code in its own error's text, and Redis 7 what an ACL refused.
_HIDDEN = re.compile(
    r"-(READONLY|OOM|NOPERM|MASTERDOWN|NOREPLICAS|MISCONF) |(ACL failure in|The user executing the) script"
)
_WHERE = re.compile(r"\.? script: (?:[0-9a-f]{40}|on @).*", re.DOTALL)
_PLAIN = re.compile(r"[A-Z]{3,} ")
#: Certificates that one side does not trust or does not show. Other TLS errors are a cut, or not TLS at all.
_CERTIFICATE = re.compile(r"CERTIFICATE|UNKNOWN_CA")


def code(error: exceptions.RedisError) -> str:
    """The server's word for it, such as READONLY; "" where no server said anything."""
    text = str(error)
    found = _CODES.get(type(error), "")
    if (found == "WRONGPASS" and text.startswith("Authentication required")) or "unauthenticated" in text:
        return "NOAUTH"  # a long request of nobody is called a protocol error
    if not found and isinstance(error, exceptions.ResponseError):
        hidden = _HIDDEN.search(text)
        if hidden:
            return hidden[1] or "NOPERM"
        found = text.partition(" ")[0] if _PLAIN.match(text) else ""
    return found


def is_denied(error: BaseException) -> bool:
    """Whether the server rejects us, or we do not trust it: no policy may treat that as "run without a lock"."""
    if isinstance(error, (exceptions.AuthenticationError, exceptions.AuthorizationError)):
        return True
    if isinstance(error, exceptions.RedisError) and code(error) in ("NOAUTH", "NOPERM", "DENIED"):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and _CERTIFICATE.search(cause.reason or str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def is_not_master(reply: object) -> bool:
    """Whether the reply says that this server is not the master, or no longer. Nothing was carried out."""
    return isinstance(reply, exceptions.RedisError) and code(reply) in ("READONLY", "MASTERDOWN")


def to_store_unavailable(error: exceptions.RedisError) -> StoreUnavailable:
    """The `StoreUnavailable` for a driver's error: its first word, or its type, and what the server said."""
    text = _WHERE.sub("", str(error).partition(", with args")[0])  # a server may repeat arguments there
    word = code(error)
    reason = text if word and text.startswith(word) else f"{word or type(error).__name__}: {text}"
    return StoreUnavailable(reason[:240], is_denied(error))
