"""The location of a Redis, parsed from one URL.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]            one server; rediss:// with TLS, unix:///PATH?db=N by socket
    redis+sentinel://[...@]HOST[:PORT],HOST.../SERVICE[/DB]   the master that these sentinels name
    redis+cluster://[...@]HOST[:PORT],HOST...           a cluster, found from these nodes
    rediss+sentinel://, rediss+cluster://               the same with TLS

Options stand behind `?` under redis-py's names: ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_check_hostname (true or
false), sentinel_username, sentinel_password; and `prefix`, put before our key, for several fleets on one Redis. Never
shows a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")

DEFAULT_PORT, DEFAULT_SENTINEL_PORT = 6379, 26379

TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class RedisLocation:
    """A single server, the master behind sentinels, or a cluster."""

    kind: str
    """`single`, `sentinel` or `cluster`."""
    hosts: tuple[tuple[str, int], ...] = ()
    path: str | None = None
    """Path of a unix socket."""
    is_tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    service: str = ""
    """Name of the master at the sentinels."""
    db: int = 0
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: Mapping[str, str | bool] = field(default_factory=dict)
    prefix: str = ""

    def __str__(self) -> str:
        where = self.path or ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{self.kind} {where}{'/' + self.service if self.service else ''}"


def parse_redis_url(words: str) -> RedisLocation:
    """Parse a URL. Raises ValueError, whose message contains no part of the URL that may be secret."""
    scheme, colon, rest = words.partition("://")
    if not colon or scheme not in SCHEMES or any(char <= " " for char in words):
        shown = [f"{known}://" for known in SCHEMES]
        raise ValueError(f"must be a URL beginning with {', '.join(shown[:-1])} or {shown[-1]}")
    security, _, kind = scheme.partition("+")
    authority, _, query = rest.partition("?")
    options = _options(query, is_sentinel=kind == "sentinel")
    before, _, path = authority.partition("/")
    path = path.rstrip("/")
    login, _, named = before.rpartition("@")
    hosts: tuple[tuple[str, int], ...] = ()
    service, socket_path = "", None
    if scheme == "unix":
        if not path:
            raise ValueError("names no socket: unix:///PATH")
        socket_path, path = "/" + path, ""
    else:
        hosts = _hosts(named, DEFAULT_SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT)
    if kind == "sentinel":
        service, _, path = path.partition("/")
        if not service:
            raise ValueError("must name the service behind its sentinels: redis+sentinel://HOST,HOST/SERVICE")
    elif not kind and len(hosts) > 1:
        raise ValueError("names several hosts: say redis+sentinel:// or redis+cluster://")
    db = _db(path or options.get("db", "0"))
    if kind == "cluster" and db:
        raise ValueError("a cluster has no database but 0: use ?prefix=NAME to tell fleets apart")
    user, _, password = login.partition(":")
    return RedisLocation(
        kind=kind or "single",
        hosts=hosts,
        path=socket_path,
        is_tls=security == "rediss",
        username=unquote(user) or None,
        password=unquote(password) or None,
        service=service,
        db=db,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=_tls(options),
        prefix=options.get("prefix", ""),
    )


def _hosts(words: str, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for each in words.split(","):
        try:
            parts = urlsplit(f"//{each}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError("a host or port in it is none") from None
        if not host or port == 0:
            raise ValueError("a host or port in it is none")
        hosts.append((host, port or default_port))
    return tuple(hosts)


def _options(query: str, *, is_sentinel: bool) -> dict[str, str]:
    known = {*TLS_FILES, "ssl_check_hostname", "prefix", "db"}
    if is_sentinel:
        known |= {"sentinel_username", "sentinel_password"}
    options: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            raise ValueError(f"has the unknown option `{key}`: known are {', '.join(sorted(known))}")
        options[key] = value
    if options.get("ssl_check_hostname", "true") not in ("true", "false"):
        raise ValueError("ssl_check_hostname is true or false")
    return options


def _db(words: str) -> int:
    if not (words.isascii() and words.isdecimal()):
        raise ValueError("the database behind the host is a number")
    return int(words)


def _tls(options: Mapping[str, str]) -> Mapping[str, str | bool]:
    tls: dict[str, str | bool] = {key: options[key] for key in TLS_FILES if key in options}
    if "ssl_check_hostname" in options:
        tls["ssl_check_hostname"] = options["ssl_check_hostname"] == "true"
    return tls
