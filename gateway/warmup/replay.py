"""Sends one kept prompt to one engine, at the lowest priority, and reads how many tokens the engine has computed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from gateway.relay.http_transport import APIS_WITH_PRIORITY, PodKeys
from gateway.warmup.prompt_store import KeptPrompt
from routing.fleet import Fleet
from routing.pods import Engine
from routing.reading import read_usage, with_fields
from routing.request import Api, Usage

LOWEST_PRIORITY = 1_000_000
"""As vLLM orders them: a smaller number goes first."""

MAX_ANSWER_BYTES = 1 << 20
"""Of an answer of one token, with whatever a pod repeats of the request."""

POD_FAULTS = (401, 403, 404, 429)
"""Statuses below 500 that say nothing of the prompt: the pod has another key, path or model, or is busy."""

NO_USAGE = Usage(0)


class ReplayEnd(StrEnum):
    """How a replay ended."""

    COMPUTED = "computed"
    REJECTED = "rejected"
    """By the pod, which is well: this prompt is not for it."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """One replay that has ended."""

    end: ReplayEnd
    usage: Usage = NO_USAGE


Send = Callable[[Engine, KeptPrompt, str, float], Awaitable[ReplayReport]]
"""Sends a prompt to an engine under a request id, within so many seconds. Raises nothing but what cancels it."""


class ReplaySender:
    """Sends replays over the session of the gateway's probes."""

    def __init__(self, session: aiohttp.ClientSession, keys: PodKeys, fleet: Fleet) -> None:
        self._session = session
        self._keys = keys
        self._fleet = fleet

    async def send(self, engine: Engine, prompt: KeptPrompt, request_id: str, timeout_s: float) -> ReplayReport:
        """Send a prompt. A pod that does not answer in time, with 5xx, or with one of `POD_FAULTS`, has failed."""
        body, headers = self._written(engine, prompt, request_id)
        try:
            async with self._session.post(
                f"{engine.pod}{prompt.path}",
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=max(0.001, timeout_s)),
                allow_redirects=False,
            ) as answer:
                if answer.status >= 500 or answer.status in POD_FAULTS:
                    return ReplayReport(ReplayEnd.FAILED)
                if answer.status != 200:
                    return ReplayReport(ReplayEnd.REJECTED)
                text = b""
                async for part in answer.content.iter_any():
                    text += part
                    if len(text) > MAX_ANSWER_BYTES:
                        return ReplayReport(ReplayEnd.FAILED)
                usage = read_usage(prompt.api, text)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return ReplayReport(ReplayEnd.FAILED)
        return ReplayReport(ReplayEnd.COMPUTED, usage or NO_USAGE)

    def _written(self, engine: Engine, prompt: KeptPrompt, request_id: str) -> tuple[bytes, dict[str, str]]:
        """Return body and headers of a replay."""
        body, headers = prompt.body, {"content-type": "application/json", "x-request-id": request_id}
        if self._fleet.takes_priority(engine.pod):
            if prompt.api in APIS_WITH_PRIORITY:
                body = with_fields(body, b'"priority":%d' % LOWEST_PRIORITY)
            elif prompt.api is Api.MESSAGES:
                headers["x-vllm-priority"] = str(LOWEST_PRIORITY)
        if (key := self._keys(engine.pod)) is not None:
            headers["authorization"] = f"Bearer {key}"
        if engine.rank is not None:
            headers["x-data-parallel-rank"] = str(engine.rank)
        return body, headers
