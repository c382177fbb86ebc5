"""A client of the Kubernetes API server, and local copies of its objects kept current by list and watch.

Own HTTP, no client library: see docs/adr/0029-kubernetes-client.md. Every failure is one of three:
`ResourceVersionExpired` (the version to continue from has expired), `ApiError` (an error or an invalid response), or
`ApiUnavailable` (no response, or one that broke off). A reflection lists in pages, watches from the version of the
list, resumes from the last version when a watch ends, and lists again when that version has expired. Nothing is known
until a first list is complete; afterwards the last known state stays valid until the server reports a change. Knows no
pod.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import aiohttp
import msgspec
from msgspec import Raw

from gateway.config.discovery import KubernetesSourceConfig
from gateway.discovery.kubernetes_objects import ApiStatus, ObjectHeader, ObjectList, WatchEvent
from gateway.runtime.guard import restarted

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


MAX_PAGE_BYTES = 128 << 20
"""A page of 500 pods is about ten megabytes; the bound keeps a server from filling our memory."""


MAX_LINE_BYTES = 4 << 20
"""etcd stores no object larger than 1.5 MB."""


RESPONSE_TIMEOUT_S = 30.0
"""Timeout of a page, and of the start of a watch."""


class ResourceVersionExpired(Exception):  # noqa: N818 - an event
    """The resource version or page token to continue from has expired (HTTP 410)."""


class ApiError(Exception):
    """The server rejected the request or sent an invalid response."""


class ApiUnavailable(Exception):  # noqa: N818 - an event
    """No response, or one that broke off."""


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """Address of the API server and our credentials there. Files are read at each use, as tokens expire."""

    url: str
    namespace: str
    token_file: Path | None
    ca_file: Path | None

    @classmethod
    def from_config(
        cls,
        place: KubernetesSourceConfig,
        variables: Mapping[str, str] = os.environ,
        folder: Path = SERVICE_ACCOUNT_DIR,
    ) -> Self:
        """Return the configured account, else that of the pod we run in. Raises `ApiError` outside a cluster."""
        host, port = variables.get("KUBERNETES_SERVICE_HOST"), variables.get("KUBERNETES_SERVICE_PORT", "443")
        if place.api is None and not host:
            raise ApiError("we run in no cluster (KUBERNETES_SERVICE_HOST is not set): say `api`")
        host = f"[{host}]" if host and ":" in host else host
        return cls(
            url=place.api or f"https://{host}:{port}",
            namespace=place.namespace or _read(folder / "namespace") or "default",
            token_file=place.token_file or _there(folder / "token"),
            ca_file=place.ca_file or _there(folder / "ca.crt"),
        )

    def headers(self) -> dict[str, str]:
        """Return the request headers with the current token."""
        token = _read(self.token_file) if self.token_file else ""
        return {"accept": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}


class KubernetesApi:
    """One per configured namespace. Holds one session; each watch is a separate connection."""

    def __init__(self, account: ServiceAccount, session: aiohttp.ClientSession) -> None:
        self.account = account
        self._session = session
        self._trust: tuple[float, ssl.SSLContext] | None = None

    async def list_page(self, path: str, query: Mapping[str, str]) -> ObjectList:
        """Return one page of a list. Raises `ResourceVersionExpired`, `ApiError`, `ApiUnavailable`."""
        async with self._requesting(path, query, aiohttp.ClientTimeout(total=RESPONSE_TIMEOUT_S)) as answer:
            body = await body_of(answer)
        try:
            return msgspec.json.decode(body, type=ObjectList)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(f"{path}: {error}") from None

    async def watch(self, path: str, query: Mapping[str, str], lasts_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch that the server ends after `lasts_s`. Raises `ResourceVersionExpired`, `ApiError`,
        `ApiUnavailable`.
        """
        parameters = {
            **query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(lasts_s))),
        }
        bounds = aiohttp.ClientTimeout(total=lasts_s + RESPONSE_TIMEOUT_S, sock_connect=RESPONSE_TIMEOUT_S)
        async with self._requesting(path, parameters, bounds) as answer:
            held = b""
            async for chunk in answer.content.iter_any():
                *lines, held = (held + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield line
                if len(held) > MAX_LINE_BYTES:
                    raise ApiError(f"{path}: a line of more than {MAX_LINE_BYTES} bytes")

    @asynccontextmanager
    async def _requesting(
        self, path: str, query: Mapping[str, str], bounds: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self.account.url}{path}"
        try:
            async with self._session.get(
                url,
                params=query,
                headers=self.account.headers(),
                ssl=self._trusted(),
                timeout=bounds,
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    raise error_of(path, answer.status, await body_of(answer))
                yield answer
        except aiohttp.ClientConnectorCertificateError as error:
            raise ApiUnavailable(
                f"{path}: the server's certificate is not trusted ({error.certificate_error})"
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnavailable(f"{path}: {type(error).__name__}") from None

    def _trusted(self) -> ssl.SSLContext | bool:
        """Return the TLS context of the current CA file, or True for the authorities of the system."""
        path = self.account.ca_file
        if path is None:
            return True
        changed = path.stat().st_mtime
        if self._trust is None or self._trust[0] != changed:
            try:
                self._trust = (changed, ssl.create_default_context(cafile=path))
            except ssl.SSLError as error:
                raise ApiError(f"{path} is not a certificate: {error.reason}") from None
        return self._trust[1]


async def body_of(answer: aiohttp.ClientResponse) -> bytes:
    """Return a body of at most `MAX_PAGE_BYTES`. Raises `ApiError` for a longer one."""
    parts, size = [], 0
    async for chunk in answer.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_PAGE_BYTES:
            raise ApiError(f"an answer of more than {MAX_PAGE_BYTES} bytes")
    return b"".join(parts)


def error_of(path: str, status: int, body: bytes) -> ResourceVersionExpired | ApiError:
    """Return the error that an answer of the API server stands for."""
    try:
        status_body = msgspec.json.decode(body, type=ApiStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        status_body = ApiStatus()
    if status == 410:
        return ResourceVersionExpired(status_body.message)
    return ApiError(f"{path}: {status} {status_body.reason or ''}: {status_body.message[:200]}".rstrip(": "))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _there(path: Path) -> Path | None:
    return path if path.is_file() else None


T = TypeVar("T")


LogFunction = Callable[..., None]


MAX_OBJECTS = 20_000
"""Of one kind: a wrong selector must not fill our memory."""


@dataclass(frozen=True, slots=True)
class ReflectorIntervals:
    """Timing in seconds, and objects per page."""

    page_size: int = 500
    watch_s: float = 240.0
    """Maximum duration of a watch, drawn between half of it and all, to spread the gateways."""
    min_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    min_watch_s: float = 1.0
    """A watch that ended sooner without an event has failed."""
    debounce_s: float = 0.1
    """Changes are collected for this long before they are reported."""


@dataclass(frozen=True, slots=True)
class ResourceQuery(Generic[T]):
    """Which objects are listed, and how each is parsed."""

    path: str
    query: Mapping[str, str]
    read: Callable[[Raw], T | None]
    """Returns None for an object that is to be ignored. Raises ValueError if it is invalid."""


class Reflector(Generic[T]):
    """Calls `changed` after each list and each event."""

    def __init__(
        self,
        api: KubernetesApi,
        kind: ResourceQuery[T],
        changed: Callable[[], object],
        *,
        log_event: LogFunction,
        clock: Callable[[], float],
        draw: Callable[[], float],
        pace: ReflectorIntervals,
    ) -> None:
        self._api = api
        self._kind = kind
        self._changed = changed
        self._log_event = log_event
        self._clock = clock
        self._draw = draw
        self._pace = pace
        self._version: str | None = None
        """Resource version to continue from; None if a list is needed."""
        self._task: asyncio.Task[None] | None = None
        self.held: dict[str, T] = {}
        self.is_complete_list = False
        self.trouble = ""

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run `follow` as a task of the group."""
        self._task = group.create_task(self.follow(), name=f"follow {self._kind.path}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @restarted("discovery")
    async def follow(self) -> None:
        """Keep the copy current until cancelled."""
        wait_s = self._pace.min_backoff_s
        while True:
            try:
                if self._version is None:
                    await self._list()
                    continue
                if await self._watch(self._version):
                    wait_s = self._pace.min_backoff_s
                    continue
            except ResourceVersionExpired:
                self._version = None
            except ApiError as refused:
                # Whatever is wrong with the version, a list needs none.
                self._version = None
                self._note_trouble(str(refused))
            except ApiUnavailable as lost:
                self._note_trouble(str(lost))
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(self._pace.max_backoff_s, 2 * wait_s)

    async def _list(self) -> None:
        """List all objects in pages; the copy is replaced when the last page has arrived."""
        fresh: dict[str, T] = {}
        query = {**self._kind.query, "limit": str(self._pace.page_size)}
        while True:
            page = await self._api.list_page(self._kind.path, query)
            for item in page.items or ():
                self._put(fresh, item)
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self.held, self.is_complete_list = fresh, True
        self._version = page.metadata.resource_version
        self._note_word()

    async def _watch(self, version: str) -> bool:
        """Apply events until the watch ends. Returns False if it ended at once without an event."""
        began_s, has_notified = self._clock(), False
        lasts_s = self._pace.watch_s * (0.5 + 0.5 * self._draw())
        query = {**self._kind.query, "resourceVersion": version}
        async with aclosing(self._api.watch(self._kind.path, query, lasts_s)) as lines:
            async for line in lines:
                self._take(line)
                self._note_word()
                has_notified = True
        return has_notified or self._clock() - began_s >= self._pace.min_watch_s

    def _take(self, line: bytes) -> None:
        """Apply one event. Raises `ResourceVersionExpired` and `ApiError`."""
        try:
            event = msgspec.json.decode(line, type=WatchEvent)
            if event.type == "ERROR":
                raise _failure(msgspec.json.decode(event.object, type=ApiStatus))
            meta = msgspec.json.decode(event.object, type=ObjectHeader).metadata
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(f"{self._kind.path}: {error}") from None
        if event.type == "DELETED":
            self.held.pop(meta.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self._put(self.held, event.object)
        self._version = meta.resource_version or self._version

    def _put(self, held: dict[str, T], written: Raw) -> None:
        """Store one object, replacing its previous state."""
        name = ""
        try:
            name = msgspec.json.decode(written, type=ObjectHeader).metadata.name
            value = self._kind.read(written)
        except (ValueError, RecursionError) as error:
            self._log_event("warning", "kubernetes_object_invalid", path=self._kind.path, name=name, error=str(error))
            value = None
        if value is None:
            held.pop(name, None)
            return
        if len(held) >= MAX_OBJECTS and name not in held:
            raise ApiError(f"{self._kind.path}: more than {MAX_OBJECTS} objects: narrow the selector")
        held[name] = value

    def _note_word(self) -> None:
        if self.trouble:
            self._log_event("info", "kubernetes_watch_recovered", path=self._kind.path)
        self.trouble = ""
        self._changed()

    def _note_trouble(self, words: str) -> None:
        if not self.trouble:
            self._log_event("warning", "kubernetes_watch_failed", error=words)
        self.trouble = words


@dataclass(frozen=True, slots=True)
class ReflectorContext:
    """Everything that the reflections of one namespace share."""

    api: KubernetesApi
    group: asyncio.TaskGroup
    changed: Callable[[], object]
    log_event: LogFunction
    clock: Callable[[], float]
    draw: Callable[[], float]
    pace: ReflectorIntervals
    reflectors: list[Reflector[Any]]

    @property
    def namespace(self) -> str:
        return self.api.account.namespace

    def start_reflector(self, kind: ResourceQuery[T]) -> Reflector[T]:
        """Start and return a reflection."""
        reflection = Reflector(
            self.api, kind, self.changed, log_event=self.log_event, clock=self.clock, draw=self.draw, pace=self.pace
        )
        reflection.start(self.group)
        self.reflectors.append(reflection)
        return reflection

    def stop_reflector(self, reflection: Reflector[T]) -> None:
        """Stop a reflection."""
        reflection.stop()
        self.reflectors.remove(reflection)


def _failure(status: ApiStatus) -> ResourceVersionExpired | ApiError:
    if status.code == 410 or status.reason in ("Expired", "Gone"):
        return ResourceVersionExpired(status.message)
    return ApiError(f"watch: {status.code} {status.reason}: {status.message[:200]}")
