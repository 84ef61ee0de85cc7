"""The lock server's URL from Celery's own settings of its broker or result backend. Pure: it is given their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ..errors import LockConfigError
from ..transport.urls import SCHEMES, scheme_of

#: What ``sentinel_kwargs`` says of the Sentinels' own connections, and what the store's URL calls it.
_CREDENTIALS = {"username": "sentinel_username", "password": "sentinel_password"}


def is_lock_server(url: object) -> bool:
    """Whether locks can be kept where this ``broker_url`` or ``result_backend`` points."""
    first = url[0] if isinstance(url, (list, tuple)) and url else url
    return isinstance(first, str) and SCHEMES.get(scheme_of(first), ("cluster", False))[0] != "cluster"


def lock_url(setting: str, url: str | list[str] | tuple[str, ...], transport: Mapping[str, Any], use_ssl: Any) -> str:
    """The URL of a store, from the value of ``setting`` and what Celery keeps beside it.

    ``transport``: ``broker_transport_options`` or ``result_backend_transport_options``; ``use_ssl``:
    ``broker_use_ssl`` or ``redis_backend_use_ssl``. Raises `LockConfigError`.
    """
    text = url if isinstance(url, str) else ";".join(map(str, url))
    scheme = scheme_of(text)
    sentinel = SCHEMES[scheme][0] == "sentinel"
    if ";" in text and not sentinel:
        raise LockConfigError(
            f"singleton_lock_url is not set, and {setting} names several servers; "
            "set singleton_lock_url to the one that keeps the locks"
        )
    # What the user's URL says has the last word.
    stated = dict(parse_qsl(text.partition("?")[2], keep_blank_values=True))
    query: dict[str, Any] = {}
    if isinstance(use_ssl, Mapping):
        query = {name: value for name, value in use_ssl.items() if str(name).startswith("ssl_")}
    says_nothing = not query and not any(name.startswith("ssl_") for name in stated)
    if scheme == "rediss" and setting == "broker_url" and says_nothing:
        query["ssl_cert_reqs"] = "none"  # kombu's own default, said in a warning of its own: the broker is reached so
    if scheme == "redis" and query:
        text = f"rediss{text[len(scheme) :]}"
    if sentinel:
        query |= _sentinel(setting, stated, transport, bool(use_ssl))
    return _with(text, {name: value for name, value in query.items() if name not in stated and value is not None})


def _sentinel(setting: str, stated: Mapping[str, str], transport: Mapping[str, Any], tls: bool) -> dict[str, Any]:
    # The other transport options are about queues, results, pools and timeouts (global_keyprefix, visibility_timeout,
    # socket_timeout, ...): locks have their own prefix and bound.
    query: dict[str, Any] = {"ssl": True} if tls else {}
    name = transport.get("master_name")
    if name is None and "master_name" not in stated:
        options = "broker_transport_options" if setting == "broker_url" else "result_backend_transport_options"
        raise LockConfigError(
            f"singleton_lock_url is not set, and {options} has no master_name for the Sentinels of {setting}; "
            "set one of the two"
        )
    own = transport.get("sentinel_kwargs") or {}
    query |= {"master_name": name, "sentinel_ssl": bool(own.get("ssl", False))}
    for theirs, ours in _CREDENTIALS.items():
        if theirs in own:
            query[ours] = own[theirs]
    return query


def _with(text: str, query: Mapping[str, Any]) -> str:
    if not query:
        return text
    written = {name: getattr(value, "name", value) for name, value in query.items()}  # ssl.CERT_REQUIRED and the like
    return f"{text}{'&' if '?' in text else '?'}{urlencode(written)}"
