"""A pod that costs nothing and says how sure it is: chunks as vLLM writes them, with log-probabilities where asked.

`max_tokens` is the length of an answer, `seed` the milliseconds between tokens; `user` names a stream in the pod's book
of when its first token was written and how many were. The larger model takes a while until its first token.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from time import perf_counter
from typing import cast

NUMBERS = {name: re.compile(rb'"%b"\s*:\s*(\d+)' % name) for name in (b"max_tokens", b"seed")}
USER = re.compile(rb'"user"\s*:\s*"([^"]*)"')
BIG = re.compile(rb'"model"\s*:\s*"big"')
BIG_BEGINS_S = 0.08
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
UNARY_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
COMMON = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1795186398, "model": "small"}


def framed(value: object) -> bytes:
    payload = b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def token(number: int, *, sure: bool) -> bytes:
    text = f" {number}"
    tops = [{"token": f" {number + at}", "logprob": -0.1 - at, "bytes": [32, 49 + at]} for at in range(5)]
    entry = {"token": text, "logprob": -0.1, "bytes": list(text.encode()), "top_logprobs": tops}
    logprobs = {"content": [entry]} if sure else None
    choice = {"index": 0, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": None, "token_ids": None}
    return framed({**COMMON, "choices": [choice]})


@dataclass
class Written:
    """Of one stream of the small model, as its pod has it."""

    first_s: float = 0.0
    tokens: int = 0


class LogprobPod:
    """What it says, prepared."""

    def __init__(self) -> None:
        self.book: dict[str, Written] = {}
        self.tokens = {sure: [token(number, sure=sure) for number in range(1000)] for sure in (True, False)}
        opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        self.opening = framed({**COMMON, "choices": [opening]})
        ended = {"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        usage = {"prompt_tokens": 12, "total_tokens": 262, "completion_tokens": 250}
        self.ending = (
            framed({**COMMON, "choices": [ended]})
            + framed({**COMMON, "choices": [], "usage": usage})
            + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
        )
        cards = [{"id": name, "object": "model", "max_model_len": 4096} for name in ("small", "big")]
        self.models = json.dumps({"object": "list", "data": cards}).encode()

    def protocol(self) -> asyncio.Protocol:
        return Connection(self)


class Connection(asyncio.Protocol):
    """Of the gateway: a question at a time."""

    def __init__(self, pod: LogprobPod) -> None:
        self._pod = pod
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not end or (length is not None and len(body) < int(length[1])):
            return
        self._buffer = b""
        if head.startswith(b"POST"):
            self._answer(body)
        else:
            value = self._pod.models if b"/v1/models" in head else b""
            self._transport.write(UNARY_RESPONSE % (len(value), value))

    def _answer(self, body: bytes) -> None:
        found = {name: pattern.search(body) for name, pattern in NUMBERS.items()}
        count, pace = (int(match[1]) if match else 0 for match in found.values())
        tokens = self._pod.tokens[b'"logprobs":true' in body.replace(b" ", b"")]
        user, is_big = USER.search(body), BIG.search(body) is not None
        written = Written()
        if user is not None and not is_big:
            self._pod.book[user[1].decode()] = written
        self._transport.write(HEAD + self._pod.opening)
        begins_s = BIG_BEGINS_S if is_big else 0.0
        asyncio.get_running_loop().call_later(begins_s, self._next, tokens[:count], 0, pace / 1000, written)

    def _next(self, tokens: list[bytes], at: int, pace_s: float, written: Written) -> None:
        if self._transport.is_closing():
            return
        if at == len(tokens):
            self._transport.write(self._pod.ending)
            return
        if not at:
            written.first_s = perf_counter()
        written.tokens += 1
        self._transport.write(tokens[at])
        asyncio.get_running_loop().call_later(pace_s, self._next, tokens, at + 1, pace_s, written)
