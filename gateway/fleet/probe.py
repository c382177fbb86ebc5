"""Probes a pod: /health, /v1/models, /metrics, and a completion of one token where these do not show enough.

Returns values and draws no conclusions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
import msgspec

from gateway.fleet.scrape import MetricsPage, read_page
from gateway.runtime.guard import call_guarded
from routing.pods import ModelCard
from routing.reading.responses import MAX_TOKENS

MAX_RESPONSE_BYTES = 8 << 20
"""Bytes. A metrics page is 60 KB; a pod must not be able to fill our memory."""

MAX_NAME_CHARS = 256
"""Characters of a model's name; no request can name a longer one."""


class ProbeResult(StrEnum):
    """Result of a pod's /health."""

    HEALTHY = "healthy"
    NOT_READY = "not_ready"
    """Responds, but not with 200: it is starting, draining, or its engine has died."""
    UNREACHABLE = "unreachable"
    """Nothing listens there."""
    NO_RESPONSE = "no_response"
    """No response in time, or a broken one."""


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


def _context_of(card: _Card) -> int | None:
    """Return the longest context of a model; None where the pod reports none, or a number that is none."""
    length = card.max_model_len
    return length if length is not None and 0 < length <= MAX_TOKENS else None


class _Cards(msgspec.Struct):
    data: list[_Card]


class _Version(msgspec.Struct):
    version: str


@dataclass(frozen=True, slots=True)
class ModelListing:
    """A pod's models, or why it does not list them."""

    cards: tuple[ModelCard, ...] | None
    problem: str = ""


ONE_TOKEN: dict[str, object] = {"prompt": "1", "max_tokens": 1, "temperature": 0}
"""The smallest request that shows whether an engine works."""


PageListener = Callable[[str, bytes, str | None], object]
"""Receives a pod's URL, its metrics page, and the Date header of the response. Must not wait."""


class Prober:
    """One per gateway. `keys` returns the API key of a pod."""

    def __init__(
        self, session: aiohttp.ClientSession, keys: Callable[[str], str | None], *, timeout_s: float = 2.0
    ) -> None:
        self.on_page: PageListener | None = None
        """Receives every metrics page beside the watcher; None: nothing does."""
        self._session = session
        self._keys = keys
        self._health_timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._timeout = aiohttp.ClientTimeout(total=2.5 * timeout_s)
        self._token_timeout = aiohttp.ClientTimeout(total=5 * timeout_s)

    async def health(self, url: str) -> ProbeResult:
        """Request /health."""
        try:
            async with self._session.get(
                f"{url}/health", timeout=self._health_timeout, allow_redirects=False
            ) as answer:
                return ProbeResult.HEALTHY if answer.status == 200 else ProbeResult.NOT_READY
        except aiohttp.ClientConnectorError:
            return ProbeResult.UNREACHABLE
        except (aiohttp.ClientError, TimeoutError, OSError):
            return ProbeResult.NO_RESPONSE

    async def models(self, url: str) -> ModelListing:
        """Request the models that it serves."""
        key = self._keys(url)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        status, body, _ = await self._get(f"{url}/v1/models", headers)
        if status == 401:
            return ModelListing(None, "refuses our key (pod_api_key)")
        if status != 200 or body is None:
            return ModelListing(None, f"does not list its models ({status or 'no answer'})")
        try:
            found = msgspec.json.decode(body, type=_Cards)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return ModelListing(None, f"lists its models in a way we do not know ({error})")
        return ModelListing(
            tuple(
                ModelCard(card.id, card.root, card.parent, _context_of(card))
                for card in found.data
                if 0 < len(card.id) <= MAX_NAME_CHARS
            )
        )

    async def metrics(self, url: str) -> MetricsPage | None:
        """Request its metrics; None if it shows none."""
        status, body, date = await self._get(f"{url}/metrics", {})
        if status != 200 or body is None:
            return None
        if self.on_page is not None:
            call_guarded("metrics page", self.on_page, url, body, date)
        return read_page(body)

    async def version(self, url: str) -> str | None:
        """Request the version of its engine; None if it reports none."""
        status, body, _ = await self._get(f"{url}/version", {})
        if status != 200 or body is None:
            return None
        try:
            return msgspec.json.decode(body, type=_Version).version
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    async def generates_token(self, url: str, model: str, rank: int | None) -> bool:
        """Return whether an engine still generates tokens, which `/health` does not check. A 4xx counts as yes: it is
        alive and has rejected the request.
        """
        key = self._keys(url)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        if rank is not None:
            headers["x-data-parallel-rank"] = str(rank)
        try:
            async with self._session.post(
                f"{url}/v1/completions",
                json={"model": model, **ONE_TOKEN},
                headers=headers,
                timeout=self._token_timeout,
                allow_redirects=False,
            ) as answer:
                return answer.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def _get(self, url: str, headers: dict[str, str]) -> tuple[int | None, bytes | None, str | None]:
        """Return status, body and Date header of a response; None each where there is none."""
        try:
            async with self._session.get(url, headers=headers, timeout=self._timeout, allow_redirects=False) as answer:
                body = await answer.content.read(MAX_RESPONSE_BYTES)
                while body and not answer.content.at_eof() and len(body) < MAX_RESPONSE_BYTES:
                    body += await answer.content.read(MAX_RESPONSE_BYTES - len(body))
                return answer.status, body, answer.headers.get("date")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None, None, None


def probe_session(simultaneous: int = 64) -> aiohttp.ClientSession:
    """Open a session for probes. Every probe connects anew: whether the port still listens is part of the check."""
    connector = aiohttp.TCPConnector(limit=simultaneous, force_close=True)
    return aiohttp.ClientSession(connector=connector, auto_decompress=True, trust_env=False)
