"""A question asked aside of a client's request: of another model, at the lowest priority, for nobody's account.

By the same spine as any request, under the same tenant's regions and cache isolation; the answer is kept whole, read
once, and told to whoever asked. Nothing of it reaches a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgspec
from msgspec import Raw

from gateway.cascades.agreement import spoken
from gateway.cascades.shadow_sampling import Said
from gateway.http.client_request import Asked
from gateway.http.coalescing import SharedReply, Told
from gateway.http.endpoints import Endpoint
from gateway.http.response_writer import Reply
from gateway.pipeline.pipeline import Passage
from gateway.relay.downstream_transport import Carries
from routing.reading import answer_bytes, read_request, read_usage
from routing.request import Api, Usage
from tenancy.objective import Overload, Tier, promise_of
from tenancy.tenants import Caller

LOWEST = Tier("shadow", priority=-1_000_000, is_batch=True)

CHAT = Endpoint("/v1/chat/completions", api=Api.CHAT)

FIELDS = msgspec.json.Decoder(dict[str, Raw])

VERDICT_TOKENS = 8

MakeAside = Callable[[Endpoint, Reply, bytes], Carries]


class Aside:
    """Of one request."""

    def __init__(
        self, passage: Passage, make: MakeAside, asked: Asked, endpoint: Endpoint, body: bytes, request_id: str
    ) -> None:
        self._passage = passage
        self._make = make
        self._asked = asked
        self._endpoint = endpoint
        self._body = body
        self._request_id = request_id

    async def ask(self, question: bytes | None, model: str) -> Said | None:
        """The client's own body, or a question to a judge model. None where it was not answered."""
        if question is None:
            return await self._ask(self._endpoint, whole(self._body), model, "shadow")
        chat = {
            "model": model,
            "messages": [{"role": "user", "content": question.decode("utf-8", "replace")}],
            "max_tokens": VERDICT_TOKENS,
            "temperature": 0,
        }
        return await self._ask(CHAT, msgspec.json.encode(chat), model, "judge")

    async def _ask(self, endpoint: Endpoint, body: bytes, model: str, purpose: str) -> Said | None:
        api, tenant = endpoint.api, self._asked.caller.tenant
        if api is None:
            return None
        reading = read_request(
            api, body, request_id=f"{self._request_id}-{purpose}", terms=tenant, priority=LOWEST.priority, model=model
        )
        reply = AsideReply(self._asked, reading.request.id, api)
        caller = Caller(replace(tenant, name=None, tier=LOWEST, on_overload=Overload.REJECT))
        carrier = self._make(endpoint, reply, reading.body)
        await self._passage.lead(reading.request, carrier, caller=caller, promise=promise_of(LOWEST))
        told = reply.whole.result() if reply.whole.done() else None
        if not isinstance(told, Told) or told.status != 200:
            return None
        text = spoken(answer_bytes(api, told.body, stream=False))
        return Said(text, read_usage(api, told.body) or Usage(0)) if text else None


class AsideReply(SharedReply):
    """Kept until it is whole, and told to nobody else."""

    __slots__ = ()

    def __init__(self, asked: Asked, request_id: str, api: Api) -> None:
        named = Reply(asked, request_id, asyncio.Transport(), keep_alive=True, answered=lambda: None)
        named.api, named.is_anthropic = api, api.is_anthropic
        super().__init__(asked, named)


def whole(body: bytes) -> bytes:
    """The same body, its answer in one piece and nothing asked for that only a client wants."""
    fields = FIELDS.decode(body)
    for name in ("stream", "stream_options", "logprobs", "top_logprobs", "hearth"):
        fields.pop(name, None)
    return msgspec.json.encode(fields)
