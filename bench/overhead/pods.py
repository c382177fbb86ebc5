"""Mock pods: vLLM's surface as far as gateways need it, as cheap as Python can be. Several pods in one process.

The shape of an answer is set in fields that every router passes on: `max_tokens` is its length, `seed` the milliseconds
between tokens. Tokens are numbered, so that clients can check whether all have come. Independent of the gateway.

    python -m bench.overhead.pods COUNT     prints the ports as JSON, serves until its standard input is closed
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections import OrderedDict
from typing import cast

import httptools
import uvloop
from xxhash import xxh3_64_intdigest

MODEL = "mock"
KV_TOKENS = 1_000_000
MAX_PROMPTS = 4_096

NUMBERS = {name: re.compile(rb'"%b"\s*:\s*(\d+)' % name) for name in (b"max_tokens", b"seed")}
STREAM = re.compile(rb'"stream"\s*:\s*true')
USAGE = re.compile(rb'"include_usage"\s*:\s*true')

HEAD_OF_STREAM = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
COMMON = '"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"%s","created":1795186398,"model":"' + MODEL + '"'
METRICS = """\
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0.0
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} 0.01
vllm:prompt_tokens_total{{engine="0",model_name="{model}"}} {requests}
vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {requests}
vllm:cache_config_info{{block_size="16",engine="0",kv_cache_size_tokens="{kv}",num_gpu_blocks="{blocks}"}} 1.0
"""


def framed(event: str) -> bytes:
    """One event in an HTTP chunk of its own, as vLLM sends it."""
    payload = f"data: {event}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class Words:
    """What a pod says, prepared: it must cost nothing to say it."""

    def __init__(self) -> None:
        self._tokens: list[bytes] = []
        self.role = self._chunk('"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null')
        self.done = framed("[DONE]") + b"0\r\n\r\n"

    def token(self, number: int, *, is_last: bool) -> bytes:
        if is_last:
            return self._chunk(
                f'"delta":{{"content":" {number}"}},"logprobs":null,"finish_reason":"length","stop_reason":null'
            )
        while len(self._tokens) <= number:
            content = f'"delta":{{"content":" {len(self._tokens)}"}},"logprobs":null,"finish_reason":null'
            self._tokens.append(self._chunk(content))
        return self._tokens[number]

    @staticmethod
    def _chunk(choice: str) -> bytes:
        return framed(f'{{{COMMON % "chat.completion.chunk"},"choices":[{{"index":0,{choice},"token_ids":null}}]}}')


class Pod:
    """One pod: a port and what it counts."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.running = 0
        self.requests = 0
        self._prompts: OrderedDict[int, None] = OrderedDict()

    def cached_share(self, body: bytes) -> float:
        """How much of a prompt it has seen before, as far as one can tell by halves."""
        full, half = xxh3_64_intdigest(body), xxh3_64_intdigest(body[: len(body) // 2])
        share = 0.98 if full in self._prompts else 0.48 if half in self._prompts else 0.0
        for beginning in (full, half):
            self._prompts[beginning] = None
            self._prompts.move_to_end(beginning)
        while len(self._prompts) > MAX_PROMPTS:
            self._prompts.popitem(last=False)
        return share

    def page(self, path: bytes) -> tuple[int, bytes]:
        if path == b"/health":
            return 200, b""
        if path == b"/v1/models":
            card = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": MODEL, "max_model_len": 2_000_000}
            return 200, json.dumps({"object": "list", "data": [card]}).encode()
        if path == b"/metrics":
            return 200, METRICS.format(
                model=MODEL,
                running=float(self.running),
                requests=float(self.requests),
                kv=KV_TOKENS,
                blocks=KV_TOKENS // 16,
            ).encode()
        return 404, b'{"detail":"Not Found"}'


class PodConnection(asyncio.Protocol):
    """Reads a request, answers it, reads the next."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._next = self._tokens = self._prompt_tokens = self._cached_tokens = 0
        self._started_s = self._pace_s = 0.0
        self._reports_usage = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._pod.running -= 1

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        if self._path != b"/v1/chat/completions":
            self._write(*self._pod.page(self._path))
            return
        self._pod.requests += 1
        self._prompt_tokens = len(body) // 4
        self._cached_tokens = int(self._prompt_tokens * self._pod.cached_share(body))
        self._tokens = self._number(b"max_tokens", body)
        if STREAM.search(body):
            self._begin(self._number(b"seed", body) / 1000, reports_usage=USAGE.search(body) is not None)
        else:
            self._write(200, self._unary_response())

    @staticmethod
    def _number(name: bytes, body: bytes) -> int:
        found = NUMBERS[name].search(body)
        return int(found[1]) if found else 1

    def _write(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def _unary_response(self) -> bytes:
        text = "".join(f" {number}" for number in range(self._tokens))
        message = f'"message":{{"role":"assistant","content":"{text}","refusal":null,"tool_calls":[],"reasoning":null}}'
        choice = f'{{"index":0,{message},"logprobs":null,"finish_reason":"length","stop_reason":null}}'
        tail = f'"service_tier":null,"system_fingerprint":null,{self._usage()}'
        return f'{{{COMMON % "chat.completion"},"choices":[{choice}],{tail}}}'.encode()

    def _usage_event(self) -> bytes:
        return framed(f'{{{COMMON % "chat.completion.chunk"},"choices":[],{self._usage()}}}')

    def _usage(self) -> str:
        prompt, tokens = self._prompt_tokens, self._tokens
        return (
            f'"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + tokens},'
            f'"completion_tokens":{tokens},"prompt_tokens_details":{{"cached_tokens":{self._cached_tokens}}}}}'
        )

    def _begin(self, pace_s: float, *, reports_usage: bool) -> None:
        self._pod.running += 1
        self._reports_usage = reports_usage
        self._pace_s = pace_s
        self._started_s = self._loop.time()
        self._next = 0
        self._transport.write(HEAD_OF_STREAM)
        self._send_token(self._pod.words.role)

    def _send_token(self, before: bytes = b"") -> None:
        number, words = self._next, self._pod.words
        self._next += 1
        is_last = self._next == self._tokens
        self._transport.write(before + words.token(number, is_last=is_last))
        if not is_last:
            self._timer = self._loop.call_at(self._started_s + self._next * self._pace_s, self._send_token)
            return
        self._timer = None
        self._pod.running -= 1
        usage_event = self._usage_event() if self._reports_usage else b""
        self._transport.write(usage_event + words.done)


async def serve(count: int) -> None:
    """Listen on free ports of the loopback interface until standard input is closed."""
    loop, words = asyncio.get_running_loop(), Words()
    ports: list[int] = []
    for _ in range(count):
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        pod = Pod(words)
        await loop.create_server(lambda pod=pod: PodConnection(pod), sock=listener)  # type: ignore[misc]
        ports.append(listener.getsockname()[1])
    print(json.dumps(ports), flush=True)
    wanted = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(wanted), sys.stdin)
    await wanted.read()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
