"""The metrics port: metrics, liveness, readiness. Read-only and without authorization."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def metrics_app(registry: CollectorRegistry, is_ready: Callable[[], bool]) -> web.Application:
    """Return the application of the metrics port."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return web.Response(body=encode(registry), headers={"content-type": content_type})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if is_ready() else web.Response(text="not ready\n", status=503)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/health", health), web.get("/ready", ready)])
    return app
