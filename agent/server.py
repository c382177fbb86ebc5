"""One vLLM server beside the agent: asked how it is and what it is, and written down as a gateway is to know it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp

from agent.answers import (
    told_by_bootstrap,
    told_by_event_sources,
    told_by_metrics,
    told_by_models,
    told_by_server,
    told_by_version,
)
from agent.command_line import told_by_command
from agent.listeners import Command
from agent.weights import told_by_weights

LARGEST_ANSWER = 8 << 20
"""Bytes. A metrics page is 60 KB; a server must not be able to fill our memory."""

ANSWER_S = 2.0
"""A server that has not answered by then is busy: it is asked again, and what it told before stands."""

SILENCES = 3
"""Looks in a row without an answer after which a server is taken to be gone: one may be lost to a long pause."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a server is asked, and where gateways reach it."""

    asked_at: str
    url: str

    @property
    def port(self) -> int:
        return urlsplit(self.asked_at).port or 0

    @property
    def reached_at(self) -> str:
        return urlsplit(self.url).hostname or ""


@dataclass(slots=True)
class Server:
    """Mutable; written by the agent's looks only."""

    spot: Spot
    is_well: bool = False
    told: dict[str, object] = field(default_factory=dict)
    takes_priority: bool = False
    silences: int = 0


class Asker:
    """Asks servers over HTTP, and the machine for their command lines."""

    def __init__(
        self, session: aiohttp.ClientSession, command_behind: Callable[[int], Command], api_key: str | None = None
    ) -> None:
        self._session = session
        self._command_behind = command_behind
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=ANSWER_S)

    async def look(self, server: Server) -> None:
        """Note whether it is well; and what it is, where it has just become so."""
        was_well, status = server.is_well, await self._status(f"{server.spot.asked_at}/health")
        if status is None:
            server.silences += 1
            server.is_well = was_well and server.silences < SILENCES
            return
        server.silences, server.is_well = 0, status == 200
        if not server.is_well:
            return
        if not was_well or not server.told:
            server.told, server.takes_priority = await self._facts(server.spot)
        # Adapters come and go while it runs.
        server.told |= told_by_models(await self._body(f"{server.spot.asked_at}/v1/models"))

    async def is_vllm(self, spot: Spot) -> bool:
        """Whether something answers there that tells its version as vLLM does."""
        return bool(told_by_version(await self._body(f"{spot.asked_at}/version")))

    async def _facts(self, spot: Spot) -> tuple[dict[str, object], bool]:
        """Who knows best comes last: the command line over the metrics, the server's own words over both."""
        base = spot.asked_at
        told = told_by_metrics(await self._body(f"{base}/metrics"))
        command = self._command_behind(spot.port)
        if command.words:
            more, takes_priority = told_by_command(command.words, command.variables, spot.reached_at)
            weights = command.words, command.variables, command.root, more.get("kv_dtype")
            more |= await asyncio.to_thread(told_by_weights, *weights)
        else:
            # In development mode only; it takes the server a second, so it is asked where nobody else can tell.
            body = await self._body(f"{base}/server_info?config_format=json")
            more, takes_priority = told_by_server(body, spot.reached_at)
        told |= more
        told |= told_by_version(await self._body(f"{base}/version"))
        told |= told_by_event_sources(await self._body(f"{base}/kv_event_sources"), spot.reached_at)
        if (bootstrap := told.get("bootstrap")) is not None:
            told |= told_by_bootstrap(await self._body(f"http://{bootstrap}/query"))
        return told, takes_priority

    async def _status(self, url: str) -> int | None:
        """None where nobody answered in time; 0 where nobody listens, which needs no second look."""
        try:
            async with self._session.get(url, timeout=self._timeout, allow_redirects=False) as answer:
                return answer.status
        except aiohttp.ClientConnectorError:
            return 0
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def _body(self, url: str) -> bytes | None:
        try:
            async with self._session.get(
                url, headers=self._headers, timeout=self._timeout, allow_redirects=False
            ) as answer:
                body = bytearray()
                async for chunk in answer.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > LARGEST_ANSWER:
                        return None
                return bytes(body) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
