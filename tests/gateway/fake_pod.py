"""A pod's questions answered as a test wants: /health, /v1/models, /metrics, one token. Nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.gateway.kv_index.redis_servers import free_port


class Pulse:
    """Something may have changed: who waits for a state looks again at every beat, and never sleeps."""

    def __init__(self) -> None:
        self._beat = asyncio.Event()

    def beat(self) -> None:
        self._beat.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until it is so."""
        async with asyncio.timeout(120):
            while not is_so():
                self._beat.clear()
                await self._beat.wait()


@dataclass(slots=True)
class FakePod:
    """What it answers; may be changed while it runs."""

    health: int = 200
    models: list[dict[str, object]] = field(default_factory=lambda: [{"id": "tiny", "parent": None}])
    models_status: int = 200
    page: str | None = None
    hangs: bool = False
    is_silent: bool = False
    """Its engine hangs, its server does not: questions for tokens have no answer."""
    tokens_status: int = 200
    port: int = 0
    keys_seen: set[str | None] = field(default_factory=set)
    requested: dict[str, int] = field(default_factory=dict)
    pulse: Pulse = field(default_factory=Pulse)
    """Beats whenever it is asked something."""
    runner: web.AppRunner | None = None
    server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before where there was one: no outgoing connection is given it meanwhile."""
        self.port = self.port or free_port()
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
                web.post("/v1/completions", self._tokens),
            ]
        )
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        assert self.runner.server is not None
        self.server = await asyncio.get_running_loop().create_server(self.runner.server, "127.0.0.1", self.port)

    def stop_listening(self) -> None:
        """Take no new connection; those that stand are served on."""
        if self.server is not None:
            self.server.close()
            self.server = None

    async def stop(self) -> None:
        """Be gone, connections and all."""
        self.stop_listening()
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def _asked(self, name: str) -> None:
        self.requested[name] = self.requested.get(name, 0) + 1
        self.pulse.beat()
        if self.hangs:
            await asyncio.get_running_loop().create_future()

    async def _health(self, _: web.Request) -> web.Response:
        await self._asked("health")
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        await self._asked("models")
        self.keys_seen.add(request.headers.get("authorization"))
        return web.json_response({"object": "list", "data": self.models}, status=self.models_status)

    async def _tokens(self, request: web.Request) -> web.Response:
        await self._asked("tokens")
        self.keys_seen.add(request.headers.get("authorization"))
        if self.is_silent:
            await asyncio.get_running_loop().create_future()
        return web.json_response({"choices": [{"text": "1"}]}, status=self.tokens_status)

    async def _metrics(self, _: web.Request) -> web.Response:
        await self._asked("metrics")
        return web.Response(status=404) if self.page is None else web.Response(text=self.page)


@asynccontextmanager
async def fake_pods(*pods: FakePod) -> AsyncIterator[None]:
    """The pods run inside."""
    for pod in pods:
        await pod.start()
    try:
        yield
    finally:
        for pod in pods:
            await pod.stop()


def metrics_page(
    *,
    running: float = 0,
    waiting: float = 0,
    usage: float = 0,
    prompt_tokens: float = 0,
    started: float = 1e9,
    ranks: int = 1,
) -> str:
    """A page with the lines that are read; every rank says the same."""
    lines = [f"process_start_time_seconds {started}"]
    for name, value in (
        ("num_requests_running", running),
        ("num_requests_waiting", waiting),
        ("kv_cache_usage_perc", usage),
        ("prompt_tokens_total", prompt_tokens),
    ):
        lines += [f'vllm:{name}{{engine="{rank}",model_name="tiny"}} {value}' for rank in range(ranks)]
    lines += [
        f'vllm:cache_config_info{{block_size="16",engine="{rank}",kv_cache_size_tokens="1600"}} 1.0'
        for rank in range(ranks)
    ]
    return "\n".join(lines) + "\n"
