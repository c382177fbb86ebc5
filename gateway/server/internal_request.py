"""Requests of the gateway itself beside a client's: to another model, at the lowest priority, charged to no account.

They run through the same pipeline under the tenant's regions and cache isolation. No client sees the response.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import Raw, structs

from cascade.logprobs import add_logprobs
from gateway.cascades.shadow_sampling import ShadowAnswer, answer_text
from gateway.http.client_request import IncomingRequest
from gateway.http.endpoints import ApiEndpoint
from gateway.http.request_headers import is_local_only
from gateway.pipeline.pipeline import RequestPipeline
from gateway.relay.http_transport import TransportFactory
from gateway.server.coalescing import BufferedResponseWriter, CompleteResponse
from routing.pods import NO_GRANTS
from routing.reading import read_request, read_usage, response_bytes
from routing.request import Api, Usage
from tenancy.objective import OverloadAction, Tier, objective_of
from tenancy.tenants import Caller

SHADOW_TIER = Tier("shadow", priority=-1_000_000, is_best_effort=True)

CHAT = ApiEndpoint("/v1/chat/completions", api=Api.CHAT)

FIELDS = msgspec.json.Decoder(dict[str, Raw])

VERDICT_TOKENS = 8


class InternalRequest:
    """Internal requests beside one client request: shadow samples and judgements."""

    def __init__(
        self,
        pipeline: RequestPipeline,
        carriers: TransportFactory,
        incoming: IncomingRequest,
        endpoint: ApiEndpoint,
        body: bytes,
        request_id: str,
    ) -> None:
        self._pipeline = pipeline
        self._carriers = carriers
        self._incoming = incoming
        self._endpoint = endpoint
        self.body = body
        """As the client sent it."""
        self._request_id = request_id

    async def send(
        self, question: bytes | None, model: str, *, pods: frozenset[str] | None = None, purpose: str = ""
    ) -> ShadowAnswer | None:
        """Send the client's own body (None), or a question to a judge model. Returns None if it got no answer.

        `pods`: URLs of those that may answer, None for all; `purpose`: the end of the request's id.
        """
        if question is None:
            body = without_client_options(self.body)
            return await self._ask(self._endpoint, body, model, purpose or "shadow", pods)
        chat = {
            "model": model,
            "messages": [{"role": "user", "content": question.decode("utf-8", "replace")}],
            "max_tokens": VERDICT_TOKENS,
            "temperature": 0,
        }
        return await self._ask(CHAT, msgspec.json.encode(chat), model, purpose or "judge", pods)

    async def send_for_logprobs(self, model: str, top: int) -> bytes | None:
        """Send the client's own body, unary, with `top` log-probabilities per token.

        Returns the response's body; None if there was no answer.
        """
        api = self._endpoint.api
        if api is None:
            return None
        body, _ = add_logprobs(api, without_client_options(self.body), top)
        return await self._complete(self._endpoint, api, body, model, "collect")

    async def _ask(
        self, endpoint: ApiEndpoint, body: bytes, model: str, purpose: str, pods: frozenset[str] | None
    ) -> ShadowAnswer | None:
        api = endpoint.api
        response = None if api is None else await self._complete(endpoint, api, body, model, purpose, pods)
        if api is None or response is None:
            return None
        text = answer_text(response_bytes(api, response, stream=False))
        return ShadowAnswer(text, read_usage(api, response) or Usage(0)) if text else None

    async def _complete(
        self,
        endpoint: ApiEndpoint,
        api: Api,
        body: bytes,
        model: str,
        purpose: str,
        pods: frozenset[str] | None = None,
    ) -> bytes | None:
        """Return the body of the response with status 200, None for any other."""
        tenant = self._incoming.caller.tenant
        reading = read_request(
            api,
            body,
            request_id=f"{self._request_id}-{purpose}",
            terms=tenant,
            priority=SHADOW_TIER.priority,
            model=model,
        )
        if pods is not None:
            reading = structs.replace(reading, request=structs.replace(reading.request, pods=pods))
        if is_local_only(self._incoming.headers):
            reading = structs.replace(reading, request=structs.replace(reading.request, grants=NO_GRANTS))
        reply = BufferedResponseWriter(self._incoming, reading.request.id, endpoint)
        caller = Caller(replace(tenant, name=None, tier=SHADOW_TIER, on_overload=OverloadAction.REJECT))
        transport = self._carriers.make(endpoint, self._incoming, reply, reading.body, usage_added=False)
        objective = objective_of(SHADOW_TIER)
        await self._pipeline.handle_request(reading.request, transport, caller=caller, objective=objective)
        response = reply.complete.result() if reply.complete.done() else None
        if not isinstance(response, CompleteResponse) or response.status != 200:
            return None
        return response.body


def without_client_options(body: bytes) -> bytes:
    """Return the same body without streaming, log probabilities and fields for the gateway."""
    fields = FIELDS.decode(body)
    for name in ("stream", "stream_options", "logprobs", "top_logprobs", "hearth"):
        fields.pop(name, None)
    return msgspec.json.encode(fields)
