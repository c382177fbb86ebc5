"""What a pod does when something goes wrong with it: the ways in which real ones are lost."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from simulator.faults import NO_FAULT, Fault, FaultKind
from simulator.pod import SimulatedPod
from tests.simulator.asking import MODEL, PATIENCE_S, Answer, Client, chat, running

CHAT = "/v1/chat/completions"
APIS = {
    CHAT: chat(),
    "/v1/completions": {"model": MODEL, "prompt": "Hello", "max_tokens": 8},
    "/v1/responses": {"model": MODEL, "input": "Hello", "max_output_tokens": 8},
    "/v1/messages": {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8},
}

ENDLESS = chat(max_tokens=10_000, ignore_eos=True)


async def under_way(pod: SimulatedPod, client: Client, *, stream: bool) -> asyncio.Task[Answer]:
    """A request that has its first token and will not end by itself."""
    request = asyncio.create_task(client.post(CHAT, {**ENDLESS, "stream": stream}))
    async with asyncio.timeout(PATIENCE_S):
        while not pod.engines[0].statistics().generation_tokens:
            await client.get("/health")
    return request


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])
async def test_a_dead_pod_cuts_what_it_had_and_listens_no_more(stream: bool) -> None:
    """Connections close in the middle, new ones are refused."""
    async with running() as (pod, client):
        request = await under_way(pod, client, stream=stream)
        assert await client.ask("/faults", {"kind": "die"}) == {"kind": "die"}
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(request, PATIENCE_S)
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/health")
        assert pod.died.is_set()


async def test_a_frozen_pod_sends_no_further_byte() -> None:
    """New connections are refused; an open stream neither goes on nor ends."""
    async with (
        running() as (pod, client),
        client.session.post(client.url + CHAT, json={**ENDLESS, "stream": True}) as response,
    ):
        await response.content.readline()
        pod.set_fault(Fault(FaultKind.FREEZE))
        async with aiohttp.ClientSession() as stranger:
            with pytest.raises(aiohttp.ClientConnectorError):
                await Client(client.url, stranger).get("/health")
        produced = pod.engines[0].statistics().generation_tokens
        silent = asyncio.create_task(read_all(response, []))
        done, _ = await asyncio.wait([silent], timeout=0.05)
        assert not done
        assert pod.engines[0].statistics().generation_tokens == produced
        silent.cancel()


async def read_all(response: aiohttp.ClientResponse, seen: list[bytes]) -> None:
    """Reads whatever still comes."""
    while piece := await response.content.readany():
        seen.append(piece)


async def test_a_hanging_engine_is_healthy_and_silent() -> None:
    """Streams get their head and nothing more, until it goes on."""
    async with running() as (pod, client):
        await client.ask("/faults", {"kind": "hang"})
        assert (await client.get("/health")).status == 200
        async with client.session.post(client.url + CHAT, json=chat(stream=True)) as response:
            assert response.status == 200
            assert pod.engines[0].statistics().generation_tokens == 0
            await client.ask("/faults", {"kind": "none"})
            assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_slow_pod_is_slow() -> None:
    """A thousand-fold it does in a step what it did in a thousand; back at speed it gets done."""
    async with running() as (pod, client):
        pod.set_fault(Fault(FaultKind.SLOW, factor=1e6))
        request = asyncio.create_task(client.ask(CHAT, chat()))
        async with asyncio.timeout(PATIENCE_S):
            while not pod.service.in_flight:
                await client.get("/health")
        assert pod.engines[0].statistics().generation_tokens == 0
        pod.set_fault(NO_FAULT)
        assert (await request)["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_streams_are_cut_after_so_many_chunks(path: str, chunks: int) -> None:
    """Head and events come whole; the body never ends. What is no stream is left alone."""
    async with running() as (pod, client):
        pod.set_fault(Fault(FaultKind.CUT, after_chunks=chunks))
        seen: list[bytes] = []
        async with client.session.post(client.url + path, json={**APIS[path], "stream": True}) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await read_all(response, seen)
        assert b"".join(seen).count(b"\n\n") == chunks
        await client.ask(path, APIS[path])
        async with asyncio.timeout(PATIENCE_S):
            await pod.service.idle()


@pytest.mark.parametrize("path", APIS)
async def test_dropped_requests_get_no_byte(path: str) -> None:
    """The connection closes instead; the next request is answered."""
    async with running() as (pod, client):
        pod.set_fault(Fault(FaultKind.DROP, requests=1))
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await client.post(path, APIS[path])
        await client.ask(path, APIS[path])


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])
@pytest.mark.parametrize(
    ("kind", "status", "type_", "words"),
    [
        (FaultKind.REJECT, 503, "Service Unavailable", "The engine is currently busy"),
        (FaultKind.ERROR, 500, "InternalServerError", "EngineCore encountered an issue."),
    ],
)
async def test_requests_are_rejected(
    path: str, stream: bool, kind: FaultKind, status: int, type_: str, words: str
) -> None:
    """So many of them, by status and in the API's shape; everything else is well."""
    async with running() as (pod, client):
        pod.set_fault(Fault(kind, requests=2))
        for _ in range(2):
            answer = await client.post(path, {**APIS[path], "stream": stream})
            assert answer.status == status
            assert answer.json()["error"]["type"] == type_
            assert answer.json()["error"]["message"].startswith(words)
        assert (await client.get("/health")).status == 200
        assert (await client.post(path, {**APIS[path], "stream": stream})).status == 200


async def test_a_stream_may_be_rejected_after_its_head() -> None:
    """Then the refusal is its first event; what is no stream is refused by status all the same."""
    async with running() as (pod, client):
        pod.set_fault(Fault(FaultKind.REJECT, is_late=True))
        [rejected, done] = (await client.stream(CHAT, chat())).values
        assert (rejected["error"]["code"], done) == (503, None)
        [(name, value)] = (await client.stream("/v1/messages", APIS["/v1/messages"])).events
        assert (name, value["error"]["type"]) == ("error", "internal_error")
        assert "'code': 503" in value["error"]["message"]
        seen: list[bytes] = []
        async with client.session.post(
            f"{client.url}/v1/responses", json={**APIS["/v1/responses"], "stream": True}
        ) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await read_all(response, seen)
        assert b"".join(seen).count(b"\n\n") == 2
        for unstreamed in (chat(), chat(stream=False)):
            assert (await client.post(CHAT, unstreamed)).status == 503
        assert (await client.post(CHAT, b"{")).status == 503


async def test_a_crashed_engine_ends_streams_as_if_all_were_well() -> None:
    """An error event, then the usual end; what is no stream gets 500, and health says it."""
    async with running() as (pod, client):
        stream = await under_way(pod, client, stream=True)
        complete = asyncio.create_task(client.post(CHAT, ENDLESS))
        async with asyncio.timeout(PATIENCE_S):
            while pod.service.in_flight < 2:
                await client.get("/health")
        pod.set_fault(Fault(FaultKind.CRASH))
        *_, error, done = (await asyncio.wait_for(stream, PATIENCE_S)).body.decode().split("\n\n")[:-1]
        assert error.startswith('data: {"error": {"message": "EngineCore encountered an issue.')
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 500
        assert done == "data: [DONE]"
        assert (await complete).status == 500
        for path, body in APIS.items():
            for streamed in (True, False):
                assert (await client.post(path, {**body, "stream": streamed})).status == 500
        assert (await client.get("/health")).status == 503
        assert (await client.get("/v1/models")).status == 200


@pytest.mark.parametrize("path", APIS)
async def test_no_stream_of_a_dead_engine_looks_complete(path: str) -> None:
    """An event tells of the error, or, on /v1/responses, the stream is cut."""
    async with running() as (pod, client):
        pod.set_fault(Fault(FaultKind.HANG))
        seen: list[bytes] = []
        async with client.session.post(client.url + path, json={**APIS[path], "stream": True}) as response:
            pod.set_fault(Fault(FaultKind.CRASH))
            if path == "/v1/responses":
                with pytest.raises(aiohttp.ClientPayloadError):
                    await read_all(response, seen)
            else:
                await read_all(response, seen)
        body = b"".join(seen)
        assert (b"EngineCore" in body) is (path != "/v1/responses")
        assert b"completed" not in body
        assert b"message_stop" not in body


async def test_a_stream_that_would_end_sooner_is_cut_before_its_end() -> None:
    """Whatever the number, a cut stream never looks whole."""
    async with running() as (pod, client):
        pod.set_fault(Fault(FaultKind.CUT, after_chunks=1000))
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.stream(CHAT, chat())


async def test_an_unready_pod_says_so_and_answers() -> None:
    """It is asked to leave, not broken."""
    async with running() as (_, client):
        await client.ask("/faults", {"kind": "unready"})
        assert (await client.get("/health")).status == 503
        await client.ask(CHAT, chat())
        await client.ask("/faults", {"kind": "none"})
        assert (await client.get("/health")).status == 200


async def test_nonsense_is_no_fault() -> None:
    """The order is refused, and nothing goes wrong."""
    async with running() as (pod, client):
        for order in (b'{"kind": "explode"}', b"[]", b"{"):
            assert (await client.post("/faults", order)).status == 400
        assert pod.fault == NO_FAULT
