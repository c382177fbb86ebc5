"""A request behind Envoy that has ended leaves nothing behind that only a collection would find.

What only a collection finds comes by the thousand and is let go of at one time: with long bodies among it, the loop
stands still for a tenth of a second.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from gateway.ext_proc.carrier import ExtProcTransport, ExtProcTransportConfig
from gateway.ext_proc.exchange import Exchange, ExchangeConfig, ExtProcContext
from gateway.ext_proc.http2.frames import Http2Limits
from gateway.ext_proc.http2.stream import GrpcStream
from gateway.ext_proc.listener import GrpcListener
from gateway.ext_proc.messages_pb2 import HeaderMap, HeaderValue, HttpBody, HttpHeaders, ProcessingRequest
from gateway.ext_proc.messages_pb2 import ProtocolConfiguration as Config
from gateway.ext_proc.protocol import BUFFERED, FULL_DUPLEX, NONE
from gateway.ext_proc.response import ExtProcResponseWriter, ResponseSide
from gateway.relay.http_transport import PodKeys
from gateway.relay.relay import Relay
from tests.gateway.ext_proc.speaking import EXT_PROC, Call, calling
from tests.gateway.http.rig import CHAT_PATH, a_chat, a_rig
from tests.gateway.http.wire import chat_stream

OURS = (Exchange, ResponseSide, ExtProcTransport, ExtProcResponseWriter, Relay, GrpcStream)
STREAM = chat_stream("Hi", " there")
UNHURRIED = Http2Limits(silence_s=600, preface_s=600)


@asynccontextmanager
async def an_office() -> AsyncIterator[tuple[ExtProcContext, str]]:
    """Exchanges of a gateway with one pod, and where they are asked for."""
    async with a_rig() as rig:
        front, loop = rig.front, asyncio.get_running_loop()
        office = ExtProcContext(
            front.dispatcher,
            rig.router.fleet,
            ExtProcTransportConfig(PodKeys(None), lambda _: False, kept_bytes=1 << 18),
            rules=ExchangeConfig(
                front.limits, front.timeouts, queue_s=600, sample_share=0, is_trusted_proxy=lambda _: False
            ),
            budget=front.body_budget,
            pass_over=lambda _: None,
            clock=loop.time,
            draw=lambda: 1.0,
        )
        services = {EXT_PROC.encode(): lambda stream: Exchange(office, stream), **office.log.services()}
        port = GrpcListener(services, front.body_budget, office.stream_counter, UNHURRIED)
        server = await port.listen(host="127.0.0.1", port=0)
        host, number = server.sockets[0].getsockname()
        try:
            yield office, f"{host}:{number}"
        finally:
            port.close()
            await port.wait_until_empty(60)


def headers(**fields: str) -> HttpHeaders:
    """Names that begin with a colon are written without it."""
    named = {name if name == "content_type" else f":{name}": value for name, value in fields.items()}
    reported = [HeaderValue(key=name.replace("_", "-"), raw_value=value.encode()) for name, value in named.items()]
    return HttpHeaders(headers=HeaderMap(headers=reported))


async def ask(call: Call, body: bytes, request: int, response: int) -> None:
    """What a client asks, until a pod is named or a no is heard."""
    head = headers(method="POST", path=CHAT_PATH, content_type="application/json")
    modes = Config(request_body_mode=request, response_body_mode=response)
    await call.log_event(ProcessingRequest(request_headers=head, protocol_config=modes).SerializeToString())
    if request == BUFFERED:
        await call.message()
    await call.log_event(ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=True)).SerializeToString())
    await call.message()


async def answer(call: Call, pieces: list[bytes], *, ends: bool) -> None:
    """What a pod answers, and what of it is shown."""
    head = headers(status="200", content_type="text/event-stream")
    await call.log_event(ProcessingRequest(response_headers=head).SerializeToString())
    for piece in pieces:
        reported = HttpBody(body=piece, end_of_stream=ends and piece is pieces[-1])
        await call.log_event(ProcessingRequest(response_body=reported).SerializeToString())
    await call.message()


async def complete(call: Call, request: int, response: int) -> None:
    """A stream from its first word to its last."""
    await ask(call, json.dumps(a_chat(stream=True)).encode(), request, response)
    await answer(call, STREAM if response == FULL_DUPLEX else [], ends=True)
    await call.end()
    assert await call.status() == "0"


async def rejected(call: Call, request: int, response: int) -> None:
    """A body that is none."""
    await ask(call, b"{", request, response)
    assert await call.status() == "0"


async def left(call: Call, request: int, response: int) -> None:
    """Envoy ends the stream in the middle of the answer, as it does when its client goes."""
    await ask(call, json.dumps(a_chat(stream=True)).encode(), request, response)
    await answer(call, STREAM[:2] if response == FULL_DUPLEX else [], ends=False)
    call.caller.h2.reset_stream(call.number)
    await call.caller.flush()


@contextmanager
def uncollected() -> Iterator[Callable[[], list[str]]]:
    """Without collections; what there is told of is what of ours has come to be since, by type."""
    gc.collect()
    gc.disable()
    before = {id(each): each for each in gc.get_objects() if type(each) in OURS}
    try:
        yield lambda: [
            type(each).__name__ for each in gc.get_objects() if type(each) in OURS and id(each) not in before
        ]
    finally:
        gc.enable()


@pytest.mark.parametrize("lives", [complete, rejected, left])
@pytest.mark.parametrize(("request_mode", "response_mode"), [(BUFFERED, NONE), (FULL_DUPLEX, FULL_DUPLEX)])
async def test_what_served_a_request_goes_with_it(request_mode: int, response_mode: int, lives: type) -> None:
    """Exchange, reply, relay, carrier and stream: each knows others, and none is kept by them."""
    with uncollected() as left_over:
        async with an_office() as (office, where), calling(where) as caller:
            call = await caller.call(EXT_PROC)
            await lives(call, request_mode, response_mode)
            async with asyncio.timeout(60):
                while office.stream_counter.count:
                    await caller.ping()
            await caller.ping()
            assert not left_over()
