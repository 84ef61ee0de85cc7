"""URLs of lock servers, taken apart: hosts, credentials, options; and shown without what is secret in them."""

from __future__ import annotations

import difflib
import os
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import LockConfigError

#: What each scheme is: a kind of deployment, and whether its servers are spoken to by TLS.
SCHEMES: dict[str, tuple[str, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("socket", False),
    "redis+socket": ("socket", False),  # Celery's own word
    "socket": ("socket", False),
    "sentinel": ("sentinel", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
#: The port where a URL has none, by the kind of its hosts.
_PORTS = {"server": 6379, "cluster": 6379, "sentinel": 26379, "socket": 0}
_SEPARATORS = {"sentinel": "[;,]", "cluster": "[;,]"}
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\];,?#]*)(?::(\d{1,5}))?", re.ASCII)


#: Name or address of a server, and its port.
HostPort = tuple[str, int]


class Problem(ValueError):
    """What is wrong with a URL, in words that repeat nothing of it but an option's name."""


class Url(NamedTuple):
    """A URL taken apart: it is read once, and passed on in this form.

    ``hosts``: with the default name and port where the URL has none; ``path``: of a unix socket; ``options``: checked
    values; ``display_name``: for logs.
    """

    kind: str
    hosts: list[HostPort]
    username: str | None
    password: str | None
    path: str
    db: int
    tls: bool
    options: dict[str, Any]
    display_name: str


def scheme_of(url: str) -> str:
    """The scheme in lower case; "" where there is none."""
    return url.partition("://")[0].lower() if "://" in url else ""


def read(url: str) -> Url:
    """Take ``url`` apart. Raises `LockConfigError`, which shows no password."""
    try:
        return _read(url)
    except ValueError as error:
        problem = error if isinstance(error, Problem) else "host, port, database or an option is malformed"
        raise LockConfigError(f"singleton_lock_url: {redact(url)!r} cannot be read: {problem}") from None


def redact(url: str) -> str:
    """``url`` without what may be secret in it: only scheme, host, port and path are left; ``***`` if in doubt."""
    try:
        scheme = scheme_of(url)
        kind = SCHEMES.get(scheme, ("", False))[0]
        shown = [_shown(part, kind) for part in _parts(url, scheme, kind)]
        return f"{url.partition('://')[0]}://{';'.join(shown)}" if scheme else "***"
    except ValueError:
        return "***"


def _shown(part: str, kind: str) -> str:
    pieces = urlsplit(f"x://{part}")
    _, at, host = pieces.netloc.rpartition("@")
    if not _HOST.fullmatch(host) or "@" in pieces.path:
        raise Problem("the URL is malformed")
    path = pieces.path if kind in ("socket", "") or pieces.path.strip("/").isdigit() else ""
    return f"{'***@' if at else ''}{host}{path}"


def _parts(url: str, scheme: str, kind: str) -> list[str]:
    """The URL's servers, each as it would stand behind ``scheme://``."""
    rest = url.partition("://")[2]
    if kind not in _SEPARATORS:
        return [rest]
    parts = re.split(_SEPARATORS[kind], rest.partition("?")[0])
    query = rest.partition("?")[2]
    again = f"{scheme}://"  # kombu's form repeats it
    parts = [part[len(again) :] if part.lower().startswith(again) else part for part in parts]
    return [*parts[:-1], f"{parts[-1]}?{query}"] if query else parts


def _read(url: str) -> Url:
    scheme = scheme_of(url)
    kind, tls = SCHEMES[scheme]
    if kind in _SEPARATORS and "?" in url and url.count("://") > 1 and f"{scheme}://" in url.partition("?")[2]:
        raise Problem("options follow the last server")
    hosts: list[HostPort] = []
    username = password = None
    path = query = ""
    for part in _parts(url, scheme, kind):
        pieces = urlsplit(f"x://{part}")
        if pieces.fragment or "#" in part:
            raise Problem("a # must be percent-encoded")
        if not _HOST.fullmatch(pieces.netloc.rpartition("@")[2]):
            raise Problem("host or port is malformed")
        hosts.append((unquote(pieces.hostname or ""), pieces.port or _PORTS[kind]))
        username = username or unquote(pieces.username or "") or None
        password = password or unquote(pieces.password or "") or None
        path = (pieces.path.strip("/") and pieces.path) or path
        query = pieces.query or query
    given = _query(query)
    options = _options(given, kind)
    named = any(name.startswith("ssl_") for name in options)
    tls = tls or bool(options.pop("ssl", kind == "sentinel" and named))
    if named and not tls and not options.get("sentinel_ssl"):
        raise Problem("ssl_ options need TLS: write rediss:// or rediss+cluster://")
    db = _database(path, options, kind)
    username, password = options.pop("username", username), options.pop("password", password)
    if kind == "socket":
        if not path or pieces.netloc.rpartition("@")[2]:
            raise Problem("a socket's path is absolute, as in unix:///run/redis.sock")
        path = unquote(path)
    elif kind == "server":
        hosts = [(host or "localhost", port) for host, port in hosts]
    elif not all(host for host, _ in hosts):
        raise Problem("a host is missing")
    return Url(kind, hosts, username, password, path, db, tls, options, redact(url))


def _database(path: str, options: dict[str, Any], kind: str) -> int:
    given = [options.pop(name) for name in ("db", "virtual_host") if name in options]
    if kind != "socket" and path.strip("/"):
        if not path.strip("/").isdigit() or not path.strip("/").isascii():
            raise Problem("the database must be a number")
        given.append(int(path.strip("/")))
    if len(set(given)) > 1:
        raise Problem("the database is given twice")
    if kind == "cluster" and any(given):
        raise Problem("a cluster has only database 0")
    return int(given[0]) if given else 0


def _query(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in given:
            raise Problem(f"{name} is given twice")
        given[name] = value
    return given


def _options(given: Mapping[str, str], kind: str) -> dict[str, Any]:
    known = {**_COMMON, **(_SENTINEL if kind == "sentinel" else {})}
    options = {}
    for name, value in given.items():
        check = known.get(name)
        if check is None:
            close = difflib.get_close_matches(name, known, n=1)
            raise Problem(f"unknown option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        try:
            checked = check(value)
        except Problem:
            raise
        except (ValueError, KeyError, AttributeError):
            raise Problem(f"{name}: the value cannot be used") from None
        if checked is not None:
            options[name] = checked
    return options


_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _flag(value: str) -> bool:
    return _WORDS[value.lower()]


def _database_number(value: str) -> int:
    if not (value.isdigit() and value.isascii()):
        raise ValueError
    return int(value)


def _cert_reqs(value: str) -> str:
    """redis-py's spelling of Celery's and Python's: CERT_REQUIRED, VerifyMode.CERT_NONE, required, None."""
    word = value.rpartition(".")[2].lower().removeprefix("cert_")
    return {"none": "none", "optional": "optional", "required": "required", "0": "none", "2": "required"}[word]


def _file(value: str) -> str:
    if not os.path.exists(value):
        raise Problem("a certificate or key file that the URL names does not exist")
    return value


def _tls_version(value: str) -> ssl.TLSVersion:
    if value.isdigit():
        return ssl.TLSVersion(int(value))
    return ssl.TLSVersion[value.replace(".", "_")]


def _verify_flags(value: str) -> list[ssl.VerifyFlags]:
    return [getattr(ssl.VerifyFlags, flag.strip()) for flag in value.strip("[]").split(",")]


def _unused(check: Callable[[str], Any] = str) -> Callable[[str], None]:
    """Options of a client's pool, timeouts and retries: a store has its own, bounded by `singleton_lock_timeout`."""

    def checked(value: str) -> None:
        check(value)

    return checked


_COMMON: dict[str, Callable[[str], Any]] = {
    "db": _database_number,
    "virtual_host": lambda value: _database_number(value.lstrip("/")),
    "username": str,
    "password": str,
    "ssl": _flag,
    "ssl_cert_reqs": _cert_reqs,
    "ssl_check_hostname": _flag,
    "ssl_min_version": _tls_version,
    "ssl_include_verify_flags": _verify_flags,
    "ssl_exclude_verify_flags": _verify_flags,
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ca_path"), _file),
    **dict.fromkeys(("ssl_ca_data", "ssl_password", "ssl_ciphers"), str),
    "socket_keepalive": _flag,
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout", "timeout", "health_check_interval"), _unused(float)),
    **dict.fromkeys(("max_connections", "socket_read_size", "protocol"), _unused(int)),
    **dict.fromkeys(("retry_on_timeout", "decode_responses"), _unused(_flag)),
    **dict.fromkeys(("retry_on_error", "client_name", "encoding", "encoding_errors", "global_keyprefix"), _unused()),
}
_SENTINEL: dict[str, Callable[[str], Any]] = {
    "master_name": str,
    "sentinel_username": str,
    "sentinel_password": str,
    "sentinel_ssl": _flag,
    "min_other_sentinels": _unused(int),
}
