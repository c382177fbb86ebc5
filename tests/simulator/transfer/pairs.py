"""Two simulated pods that share KV, and what a gateway would send them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from simulator.pod import SimulatedPod
from simulator.transfer.wiring import KvRole, Wiring
from tests.simulator.asking import LONG, Client, chat, running

CHAT = "/v1/chat/completions"
ASKED = chat(LONG, max_tokens=24, ignore_eos=True)


@dataclass(frozen=True)
class Pair:
    """The prefilling pod, the decoding one, and a client for each."""

    prefill_pod: SimulatedPod
    prefill: Client
    decode_pod: SimulatedPod
    decode: Client

    async def hand_over(self, body: dict[str, Any] = ASKED) -> dict[str, Any]:
        """What the prefilling pod returns for who decodes."""
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        answer = await self.prefill.ask(CHAT, {**body, "max_tokens": 1, "kv_transfer_params": params})
        returned: dict[str, Any] = answer["kv_transfer_params"]
        return returned

    async def fetched_tokens(self) -> float:
        """What the decoding pod's metrics say that it fetched."""
        return await self.decode.metric("prompt_tokens_by_source_total", source="external_kv_transfer")


@asynccontextmanager
async def paired(**wiring: Any) -> AsyncIterator[Pair]:
    """A prefilling and a decoding pod that are wired alike."""
    async with AsyncExitStack() as stack:
        each = [
            await stack.enter_async_context(running(wiring=Wiring(role=role, **wiring)))
            for role in (KvRole.PRODUCER, KvRole.CONSUMER)
        ]
        yield Pair(*each[0], *each[1])


async def alone(body: dict[str, Any] = ASKED) -> str:
    """What one pod answers that shares nothing."""
    async with running() as (_, client):
        return stated(await client.ask(CHAT, body))


def stated(answer: dict[str, Any]) -> str:
    """The text of an answer."""
    text: str = answer["choices"][0]["message"]["content"]
    return text
