"""A stand-in for llm-d's P/D sidecar beside a decode pod, in the shape that it is documented to have (`nixlv2`).

A request with `x-prefiller-host-port` is first sent there for one token, and what that answers as `kv_transfer_params`
goes into the client's own body; all else goes to the pod as it came.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

PREFILLER = "x-prefiller-host-port"
ASKED_OF_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
TRACE_HEADERS = ("traceparent", "tracestate")
HOPS = frozenset({"host", "content-length", "transfer-encoding", "connection", PREFILLER})


class Sidecar:
    """One. `prefillers` are those that it was sent to, in order."""

    def __init__(self, pod: str, session: aiohttp.ClientSession) -> None:
        self._pod = pod
        self._session = session
        self.url = ""
        self.prefillers: list[str] = []

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if prefiller := request.headers.get(PREFILLER):
            self.prefillers.append(prefiller)
            stated = await self._prefilled(prefiller.partition(",")[0], request, body)
            if isinstance(stated, web.Response):
                return stated
            body = stated
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOPS}
        url = f"{self._pod}{request.path_qs}"
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() == "content-type"}
            reported = web.StreamResponse(status=answer.status, headers=kept)
            await reported.prepare(request)
            async for piece in answer.content.iter_any():
                await reported.write(piece)
            await reported.write_eof()
            return reported

    async def _prefilled(self, prefiller: str, request: web.Request, body: bytes) -> bytes | web.Response:
        """The client's body, with what the prefill pod says of where its KV lies; its no, where it says that."""
        requested: dict[str, Any] = json.loads(body)
        first = {word: value for word, value in requested.items() if word != "stream_options"}
        first |= {"stream": False, "max_tokens": 1, "kv_transfer_params": ASKED_OF_PREFILL}
        url = f"http://{prefiller}{request.path}"
        trace = {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers}
        async with self._session.post(url, json=first, headers=trace) as answer:
            reported = await answer.json()
            if answer.status != 200:
                return web.json_response(reported, status=answer.status)
        return json.dumps(requested | {"kv_transfer_params": reported["kv_transfer_params"]}).encode()


@asynccontextmanager
async def sidecar(pod: str) -> AsyncIterator[Sidecar]:
    """A sidecar before a pod."""
    async with aiohttp.ClientSession() as session:
        found = Sidecar(pod, session)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", found.pass_on)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        found.url = f"http://{host}:{port}"
        try:
            yield found
        finally:
            await runner.cleanup()
