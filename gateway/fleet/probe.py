"""Asks a pod how it is: /health, /v1/models, /metrics, and for a token where these do not tell enough.

Answers are values; draws no conclusion from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
import msgspec

from gateway.fleet.scrape import Page, read_page
from routing.pods import ModelCard

LARGEST_ANSWER = 8 << 20
"""Bytes. A metrics page is 60 KB; a pod must not be able to fill our memory."""


class Health(StrEnum):
    """What a pod's /health amounts to."""

    WELL = "well"
    NOT_READY = "not_ready"
    """It answers, but not with 200: it is starting, draining, or its engine has died."""
    GONE = "gone"
    """Nobody listens there."""
    SILENT = "silent"
    """It did not answer in time, or broke off."""


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


@dataclass(frozen=True, slots=True)
class Listing:
    """A pod's models, or why it does not tell them."""

    cards: tuple[ModelCard, ...] | None
    trouble: str = ""


ONE_TOKEN: dict[str, object] = {"prompt": "1", "max_tokens": 1, "temperature": 0}
"""The least that shows whether an engine works."""


class Prober:
    """One per gateway. `keys` says which key a pod wants."""

    def __init__(
        self, session: aiohttp.ClientSession, keys: Callable[[str], str | None], *, timeout_s: float = 2.0
    ) -> None:
        self._session = session
        self._keys = keys
        self._health_timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._timeout = aiohttp.ClientTimeout(total=2.5 * timeout_s)
        self._token_timeout = aiohttp.ClientTimeout(total=5 * timeout_s)

    async def health(self, url: str) -> Health:
        """How the pod is."""
        try:
            async with self._session.get(
                f"{url}/health", timeout=self._health_timeout, allow_redirects=False
            ) as answer:
                return Health.WELL if answer.status == 200 else Health.NOT_READY
        except aiohttp.ClientConnectorError:
            return Health.GONE
        except (aiohttp.ClientError, TimeoutError, OSError):
            return Health.SILENT

    async def models(self, url: str) -> Listing:
        """Which models it serves."""
        key = self._keys(url)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        status, body = await self._get(f"{url}/v1/models", headers)
        if status == 401:
            return Listing(None, "refuses our key (pod_api_key)")
        if status != 200 or body is None:
            return Listing(None, f"does not list its models ({status or 'no answer'})")
        try:
            found = msgspec.json.decode(body, type=_Cards)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Listing(None, f"lists its models in a way we do not know ({error})")
        return Listing(tuple(ModelCard(card.id, card.root, card.parent, card.max_model_len) for card in found.data))

    async def page(self, url: str) -> Page | None:
        """What its metrics say, None where it has none to show."""
        status, body = await self._get(f"{url}/metrics", {})
        return read_page(body) if status == 200 and body is not None else None

    async def speaks(self, url: str, model: str, rank: int | None) -> bool:
        """Whether an engine still makes tokens, which `/health` does not ask it. Whoever has no tokens to make says
        so (4xx), and is believed.
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

    async def _get(self, url: str, headers: dict[str, str]) -> tuple[int | None, bytes | None]:
        try:
            async with self._session.get(url, headers=headers, timeout=self._timeout, allow_redirects=False) as answer:
                body = await answer.content.read(LARGEST_ANSWER)
                while body and not answer.content.at_eof() and len(body) < LARGEST_ANSWER:
                    body += await answer.content.read(LARGEST_ANSWER - len(body))
                return answer.status, body
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None, None


def probe_session(simultaneous: int = 64) -> aiohttp.ClientSession:
    """A session for probes only. Every probe connects anew: whether anybody still listens is half of the question."""
    connector = aiohttp.TCPConnector(limit=simultaneous, force_close=True)
    return aiohttp.ClientSession(connector=connector, auto_decompress=True, trust_env=False)
