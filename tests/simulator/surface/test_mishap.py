"""Streams that go wrong on the wire, and answers gone on with: together the very text of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from simulator.faults import Fault, FaultKind, Spot
from tests.simulator.asking import MODEL, PATIENCE_S, Client, chat, running

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"

TOKENS = 40
TURN = {"role": "user", "content": "Où est le port, 港?"}
GOING_ON = {"continue_final_message": True, "add_generation_prompt": False}

ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [TURN], "max_tokens": TOKENS, "min_tokens": TOKENS - 1},
    COMPLETIONS: {"model": MODEL, "prompt": TURN["content"], "max_tokens": TOKENS},
    RESPONSES: {"model": MODEL, "input": [TURN], "max_output_tokens": TOKENS},
    MESSAGES: {"model": MODEL, "messages": [TURN], "max_tokens": TOKENS},
}


def piece_of(value: Any) -> str:
    """What one event says, whichever API it is of."""
    if value is None:
        return ""
    if choices := value.get("choices"):
        text: str = choices[0]["text"] if "text" in choices[0] else choices[0]["delta"].get("content", "")
        return text
    delta = value.get("delta")
    if isinstance(delta, str):
        return delta
    reported: str = (delta or {}).get("text", "")
    return reported


def text_of(body: bytes) -> str:
    """What the whole events of a body say."""
    events = body.decode().split("\n\n")
    lines = [
        line.removeprefix("data: ") for event in events for line in event.split("\n") if line.startswith("data: {")
    ]
    return "".join(piece_of(json.loads(line)) for line in lines)


async def broken(client: Client, path: str, fields: Any = None) -> tuple[bytes, Exception]:
    """All bytes of a stream that breaks, and how it broke."""
    seen: list[bytes] = []
    request = {**ASKED[path], **(fields or {}), "stream": True}
    async with client.session.post(client.url + path, json=request) as response:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while piece := await response.content.readany():
                    seen.append(piece)
        except (aiohttp.ClientError, ConnectionResetError) as fault:
            return b"".join(seen), fault
    raise AssertionError("the stream ended well")


def rest_of(path: str, stated: str) -> dict[str, Any]:
    """What asks for the rest, and where."""
    answer = {"role": "assistant", "content": stated}
    match path:
        case "/v1/completions":
            return {"prompt": TURN["content"] + stated}
        case "/v1/responses":
            part = {"type": "output_text", "text": stated, "annotations": []}
            return {"input": [TURN, {**answer, "content": [part], "type": "message", "status": "in_progress"}]}
    return {"messages": [TURN, answer], **GOING_ON}


async def rest(client: Client, path: str, stated: str) -> str:
    """The rest of an answer; of a message it is asked for as chat, which alone can go on."""
    if path == MESSAGES:
        path = CHAT
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    fields = {**rest_of(path, stated), limit: TOKENS - len(stated.encode()) // 4, "min_tokens": 0}
    return text_of((await client.stream(path, {**ASKED[path], **fields})).body)


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("kind", [FaultKind.CUT, FaultKind.RESET])
@pytest.mark.parametrize("spot", [Spot.BETWEEN, Spot.EVENT, Spot.CHARACTER])
async def test_a_broken_stream_goes_on_as_if_it_had_not_been(path: str, kind: FaultKind, spot: Spot) -> None:
    """Wherever it broke: what came whole and the rest make the text of the undisturbed run, wide characters too."""
    async with running(accents=True, max_answer_tokens=300, min_answer_tokens=200) as (pod, client):
        parse_unary = text_of((await client.stream(path, ASKED[path])).body)
        assert not parse_unary.isascii()
        pod.set_fault(Fault(kind, after_chunks=12, spot=spot, requests=1))
        body, _ = await broken(client, path)
        events, _, begun = body.rpartition(b"\n\n")
        assert bool(begun) or spot is Spot.BETWEEN or kind is FaultKind.RESET
        stated = text_of(events + b"\n\n")
        assert parse_unary.startswith(stated)
        assert stated + await rest(client, path, stated) == parse_unary


async def test_a_character_may_be_cut_in_two() -> None:
    """The last bytes are no text."""
    async with running(accents=True, min_answer_tokens=200, max_answer_tokens=300) as (pod, client):
        pod.set_fault(Fault(FaultKind.CUT, after_chunks=2, spot=Spot.CHARACTER))
        body, _ = await broken(client, CHAT)
        with pytest.raises(UnicodeDecodeError):
            body.decode()


async def test_a_mute_stream_says_nothing_while_others_do() -> None:
    """Neither a byte nor an end; the pod is well."""
    async with running() as (pod, client):
        pod.set_fault(Fault(FaultKind.MUTE, after_chunks=2, requests=1))
        request = {**ASKED[CHAT], "stream": True}
        async with client.session.post(client.url + CHAT, json=request) as response:
            events = b""
            while events.count(b"\n\n") < 2:
                events += await response.content.readany()
            silent = asyncio.create_task(response.content.readany())
            assert (await client.get("/health")).status == 200
            assert len((await client.stream(CHAT, ASKED[CHAT])).values) > TOKENS
            assert not silent.done()
            silent.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await pod.service.idle()


@pytest.mark.parametrize("path", ASKED)
async def test_a_damaged_event_cannot_be_read(path: str) -> None:
    """One event is no JSON, in good framing; the stream goes on behind it."""
    async with running() as (pod, client):
        parse_unary = (await client.stream(path, ASKED[path])).body
        pod.set_fault(Fault(FaultKind.DAMAGE, after_chunks=5, requests=1))
        events = (await client.stream(path, ASKED[path])).body.split(b"\n\n")
        assert len(events) == len(parse_unary.split(b"\n\n"))
        with pytest.raises(json.JSONDecodeError):
            json.loads(events[5].rpartition(b"data: ")[2])
        json.loads(events[6].rpartition(b"data: ")[2])


async def test_a_damaged_frame_is_no_http() -> None:
    """Where a chunk's size should stand there is none."""
    async with running() as (pod, _):
        pod.set_fault(Fault(FaultKind.DAMAGE, after_chunks=5, spot=Spot.FRAME))
        requested = json.dumps({**ASKED[CHAT], "stream": True}).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: pod\r\nContent-Type: application/json\r\nContent-Length: {len(requested)}"
        )
        reader, writer = await asyncio.open_connection(pod.host, pod.port)
        async with asyncio.timeout(PATIENCE_S):
            writer.write(head.encode() + b"\r\n\r\n" + requested)
            answer = await reader.readuntil(b"no size\r\n")
        writer.close()
        assert answer.count(b"data: ") == 5


async def test_an_aborted_answer_ends_in_good_form() -> None:
    """As after vLLM's /pause: only the reason tells, on /v1/messages its absence, on /v1/responses nothing."""
    async with running(min_answer_tokens=200, max_answer_tokens=300) as (pod, client):
        pod.set_fault(Fault(FaultKind.ABORT, after_chunks=3))
        *_, last, done = (await client.stream(CHAT, ASKED[CHAT])).values
        assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"], done) == ({}, "abort", None)
        *_, last, _ = (await client.stream(COMPLETIONS, ASKED[COMPLETIONS])).values
        assert (last["choices"][0]["text"], last["choices"][0]["finish_reason"]) == ("", "abort")
        *_, ending, _ = (await client.stream(MESSAGES, ASKED[MESSAGES])).values
        assert ending["delta"] == {"stop_reason": None, "stop_sequence": None}
        last = (await client.stream(RESPONSES, ASKED[RESPONSES])).values[-1]["response"]
        assert (last["status"], last["incomplete_details"]) == ("completed", None)
        parse_unary = await client.ask(CHAT, chat(max_tokens=TOKENS, min_tokens=TOKENS - 1))
        assert parse_unary["choices"][0]["finish_reason"] == "abort"
        assert len(parse_unary["choices"][0]["message"]["content"].encode()) == 3 * 4


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_forwarded_ids_go_on_with_the_very_text(path: str) -> None:
    """The ids of a conversation and of half an answer lead to the other half, in every API that is chat."""
    async with running(accents=True, min_answer_tokens=200, max_answer_tokens=300) as (_, client):
        parse_unary = text_of((await client.stream(path, ASKED[path])).body)
        stated = parse_unary[: len(parse_unary) // 2]
        turns = {"model": MODEL, "messages": [TURN, {"role": "assistant", "content": stated}], **GOING_ON}
        ids = (await client.ask("/tokenize", turns))["tokens"]
        fields = {"kv_transfer_params": {"prompt_token_ids": ids}, "min_tokens": 0}
        assert text_of((await client.stream(path, {**ASKED[path], **fields})).body).startswith(
            parse_unary[len(stated) :]
        )
