"""An Envoy as the picker sees it: both bodies in full duplex, the request sent where it was told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from h2.exceptions import ProtocolError
from httptools import HttpParserError, HttpResponseParser

from gateway.ext_proc.messages_pb2 import HeaderMutation, ProcessingRequest, ProcessingResponse
from tests.gateway.ext_proc.speaking import EXT_PROC, Call, Caller, calling
from tests.golden.traffic import Asked
from tests.golden.wires import HOST, pass_time

FULL_DUPLEX = 4
DESTINATION = "x-gateway-destination-endpoint"


@dataclass
class Passed:
    """One request on its way through Envoy."""

    began_s: float = 0.0
    ended_s: float = 0.0
    end: str = ""
    said: list[dict[str, Any]] = field(default_factory=list)
    """What the picker said, in its order."""
    destination: str = ""
    status: int = 0
    """Of the pod, or of the picker's own answer."""
    sent: bytes = b""
    """The body as the picker would have it, to the pod."""
    body: bytes = b""
    """To the client."""
    grpc_status: str = ""
    is_asked: bool = False
    """All of the request's body has come from the picker."""

    def take(self, raw: bytes) -> None:
        told = ProcessingResponse.FromString(raw)
        kind = told.WhichOneof("response") or ""
        match kind:
            case "request_headers" | "response_headers":
                mutation = getattr(told, kind).response.header_mutation
                self.said.append({"kind": kind, **_mutated(mutation)})
                found = {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}
                self.destination = found.get(DESTINATION, self.destination)
            case "request_body":
                streamed = told.request_body.response.body_mutation.streamed_response
                self.sent += streamed.body
                self.is_asked = self.is_asked or streamed.end_of_stream
            case "response_body":
                self.body += told.response_body.response.body_mutation.streamed_response.body
            case "immediate_response":
                answer = told.immediate_response
                self.said.append({"kind": kind, "details": answer.details, **_mutated(answer.headers)})
                self.status, self.body = answer.status.code, answer.body


def _mutated(mutation: HeaderMutation) -> dict[str, Any]:
    told = [[option.header.key, option.header.raw_value.decode()] for option in mutation.set_headers]
    return {"set": told, "removed": list(mutation.remove_headers)}


class Answering:
    """A pod's answer, passed on to the picker as it comes."""

    def __init__(self) -> None:
        self.headers: list[tuple[str, str]] = []
        self.pieces: list[bytes] = []
        self.has_head = self.is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode().lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = True

    def is_over(self) -> bool:
        return self.is_whole


async def pass_through(asked: Asked, picker: str) -> Passed:
    """One request, at its time."""
    loop = asyncio.get_running_loop()
    await pass_time(asked.at_s - loop.time())
    passed = Passed(began_s=loop.time())
    async with calling(picker) as caller:
        call = await caller.call(EXT_PROC)
        leaving = None
        if asked.leaves_at_s is not None:
            leaving = loop.call_at(asked.leaves_at_s, caller.writer.transport.abort)
        try:
            with suppress(ConnectionError, ProtocolError):
                await _exchange(asked, passed, caller, call)
        finally:
            if leaving is not None:
                leaving.cancel()
    passed.ended_s = loop.time()
    if asked.leaves_at_s is not None and passed.ended_s >= asked.leaves_at_s:
        passed.end = "left"
    return passed


async def _exchange(asked: Asked, passed: Passed, caller: Caller, call: Call) -> None:
    head, _, body = asked.raw().partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    said = {":method": "POST", ":path": asked.path, ":scheme": "http", ":authority": fields.pop("host")} | fields
    await call.log_event(_headers("request_headers", said))
    await call.log_event(_body("request_body", body, ends=True))
    while not passed.is_asked and not call.has_ended:
        await _hear(passed, caller, call)
    if not passed.destination or call.has_ended:
        passed.end, passed.grpc_status = "immediate", await call.status()
        return
    host, _, port = passed.destination.partition(",")[0].rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host or HOST, int(port))
    except OSError:
        passed.end = "unreachable"
        return
    fields |= {name: value for each in passed.said for name, value in each["set"] if not name.startswith(":")}
    fields["content-length"] = str(len(passed.sent))
    lines = [f"POST {asked.path} HTTP/1.1", f"host: {HOST}", *(f"{name}: {value}" for name, value in fields.items())]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + passed.sent)
    try:
        await _answer(passed, call, reader, asked)
    finally:
        writer.transport.abort()
    if passed.end == "whole":
        with suppress(ProtocolError):
            await call.end()
        while not _is_over(call):
            await _hear(passed, caller, call)
        for message in call.messages:
            passed.take(message)
        passed.grpc_status = await call.status()


async def _answer(passed: Passed, call: Call, reader: asyncio.StreamReader, asked: Asked) -> None:
    answering, is_headed = Answering(), False
    parser = HttpResponseParser(answering)
    while not answering.is_whole:
        raw = await reader.read(1 << 16)
        if not raw:
            passed.end = "cut"
            return
        try:
            parser.feed_data(raw)
        except HttpParserError:
            passed.end = "damaged"
            return
        if answering.has_head and not is_headed:
            is_headed, passed.status = True, parser.get_status_code()
            fields = {":status": str(passed.status)} | dict(answering.headers)
            await call.log_event(_headers("response_headers", fields))
        if pieces := b"".join(answering.pieces):
            answering.pieces.clear()
            await call.log_event(_body("response_body", pieces, ends=answering.is_whole))
        elif answering.is_over():
            await call.log_event(_body("response_body", b"", ends=True))
        if asked.leaves_after_bytes is not None and asked.leaves_after_bytes < 600:
            passed.end = "left"
            return
    passed.end = "whole"


def _is_over(call: Call) -> bool:
    return call.has_ended


async def _hear(passed: Passed, caller: Caller, call: Call) -> None:
    while call.messages:
        passed.take(call.messages.pop(0))
    if not call.has_ended:
        await caller.hear()
    while call.messages:
        passed.take(call.messages.pop(0))


def _headers(kind: str, fields: dict[str, str]) -> bytes:
    told = ProcessingRequest()
    told.protocol_config.request_body_mode = told.protocol_config.response_body_mode = FULL_DUPLEX
    for name, value in fields.items():
        header = getattr(told, kind).headers.headers.add()
        header.key, header.raw_value = name, value.encode("latin-1")
    return told.SerializeToString()


def _body(kind: str, raw: bytes, *, ends: bool) -> bytes:
    told = ProcessingRequest()
    getattr(told, kind).body, getattr(told, kind).end_of_stream = raw, ends
    return told.SerializeToString()


async def pass_all(asked: Sequence[Asked], picker: str) -> list[Passed]:
    """All requests, each by a connection of its own."""
    return list(await asyncio.gather(*(pass_through(each, picker) for each in asked)))
