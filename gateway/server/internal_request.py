"""Requests of the gateway itself beside a client's: to another model, at the lowest priority, charged to no account.

They run through the same pipeline under the tenant's regions and cache isolation. No client sees the response.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import Raw

from gateway.cascades.shadow_sampling import Said, spoken
from gateway.http.client_request import Asked
from gateway.http.endpoints import Endpoint
from gateway.pipeline.pipeline import Passage
from gateway.relay.http_transport import Carriers
from gateway.server.coalescing import SharedReply, Told
from routing.reading import answer_bytes, read_request, read_usage
from routing.request import Api, Usage
from tenancy.objective import Overload, Tier, promise_of
from tenancy.tenants import Caller

LOWEST = Tier("shadow", priority=-1_000_000, is_batch=True)

CHAT = Endpoint("/v1/chat/completions", api=Api.CHAT)

FIELDS = msgspec.json.Decoder(dict[str, Raw])

VERDICT_TOKENS = 8


class Aside:
    """Internal requests beside one client request: shadow samples and judgements."""

    def __init__(
        self, passage: Passage, carriers: Carriers, incoming: Asked, endpoint: Endpoint, body: bytes, request_id: str
    ) -> None:
        self._passage = passage
        self._carriers = carriers
        self._incoming = incoming
        self._endpoint = endpoint
        self._body = body
        self._request_id = request_id

    async def ask(self, question: bytes | None, model: str) -> Said | None:
        """Send the client's own body, or a question to a judge model. Returns None if it got no answer."""
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
        api, tenant = endpoint.api, self._incoming.caller.tenant
        if api is None:
            return None
        reading = read_request(
            api, body, request_id=f"{self._request_id}-{purpose}", terms=tenant, priority=LOWEST.priority, model=model
        )
        reply = SharedReply(self._incoming, reading.request.id, endpoint)
        caller = Caller(replace(tenant, name=None, tier=LOWEST, on_overload=Overload.REJECT))
        transport = self._carriers.make(endpoint, self._incoming, reply, reading.body, usage_added=False)
        await self._passage.lead(reading.request, transport, caller=caller, promise=promise_of(LOWEST))
        response = reply.whole.result() if reply.whole.done() else None
        if not isinstance(response, Told) or response.status != 200:
            return None
        text = spoken(answer_bytes(api, response.body, stream=False))
        return Said(text, read_usage(api, response.body) or Usage(0)) if text else None


def whole(body: bytes) -> bytes:
    """Return the same body without streaming, log probabilities and fields for the gateway."""
    fields = FIELDS.decode(body)
    for name in ("stream", "stream_options", "logprobs", "top_logprobs", "hearth"):
        fields.pop(name, None)
    return msgspec.json.encode(fields)
