"""A client of the Kubernetes API server: pages of lists and lines of watches. Knows no object types.

Every failure is one of three: `Gone` (the version to continue from has expired), `Refused` (an error or an invalid
response), or `Lost` (no response, or one that broke off).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from gateway.config.discovery import KubernetesPlace
from gateway.discovery.kubernetes.objects import Page, Status

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

LARGEST_PAGE = 128 << 20
"""A page of 500 pods is about ten megabytes; the bound keeps a server from filling our memory."""

LARGEST_LINE = 4 << 20
"""etcd stores no object larger than 1.5 MB."""

ANSWER_S = 30.0
"""Timeout of a page, and of the start of a watch."""


class Gone(Exception):  # noqa: N818 - an event
    """The resource version or page token to continue from has expired (HTTP 410)."""


class Refused(Exception):  # noqa: N818 - an event
    """The server rejected the request or sent an invalid response."""


class Lost(Exception):  # noqa: N818 - an event
    """No response, or one that broke off."""


@dataclass(frozen=True, slots=True)
class Account:
    """Address of the API server and our credentials there. Files are read at each use, as tokens expire."""

    url: str
    namespace: str
    token_file: Path | None
    ca_file: Path | None

    @classmethod
    def of(cls, place: KubernetesPlace, variables: Mapping[str, str] = os.environ, folder: Path = ACCOUNT) -> Self:
        """Return the configured account, else that of the pod we run in. Raises `Refused` outside a cluster."""
        host, port = variables.get("KUBERNETES_SERVICE_HOST"), variables.get("KUBERNETES_SERVICE_PORT", "443")
        if place.api is None and not host:
            raise Refused("we run in no cluster (KUBERNETES_SERVICE_HOST is not set): say `api`")
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


class Api:
    """One per configured namespace. Holds one session; each watch is a separate connection."""

    def __init__(self, account: Account, session: aiohttp.ClientSession) -> None:
        self.account = account
        self._session = session
        self._trust: tuple[float, ssl.SSLContext] | None = None

    async def page(self, path: str, query: Mapping[str, str]) -> Page:
        """Return one page of a list. Raises `Gone`, `Refused`, `Lost`."""
        async with self._asking(path, query, aiohttp.ClientTimeout(total=ANSWER_S)) as answer:
            body = await _whole(answer)
        try:
            return msgspec.json.decode(body, type=Page)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"{path}: {error}") from None

    async def watch(self, path: str, query: Mapping[str, str], lasts_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch that the server ends after `lasts_s`. Raises `Gone`, `Refused`, `Lost`."""
        asked = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, round(lasts_s)))}
        bounds = aiohttp.ClientTimeout(total=lasts_s + ANSWER_S, sock_connect=ANSWER_S)
        async with self._asking(path, asked, bounds) as answer:
            held = b""
            async for chunk in answer.content.iter_any():
                *lines, held = (held + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield line
                if len(held) > LARGEST_LINE:
                    raise Refused(f"{path}: a line of more than {LARGEST_LINE} bytes")

    @asynccontextmanager
    async def _asking(
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
                    raise _refusal(path, answer.status, await _whole(answer))
                yield answer
        except aiohttp.ClientConnectorCertificateError as error:
            raise Lost(f"{path}: the server's certificate is not trusted ({error.certificate_error})") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Lost(f"{path}: {type(error).__name__}") from None

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
                raise Refused(f"{path} is no certificate: {error.reason}") from None
        return self._trust[1]


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for chunk in answer.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > LARGEST_PAGE:
            raise Refused(f"an answer of more than {LARGEST_PAGE} bytes")
    return b"".join(parts)


def _refusal(path: str, status: int, body: bytes) -> Gone | Refused:
    try:
        said = msgspec.json.decode(body, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        said = Status()
    if status == 410:
        return Gone(said.message)
    return Refused(f"{path}: {status} {said.reason or ''}: {said.message[:200]}".rstrip(": "))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _there(path: Path) -> Path | None:
    return path if path.is_file() else None
