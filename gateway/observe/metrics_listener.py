"""The metrics port: metrics, liveness, readiness. Read-only and without authorization."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

SAMPLES_PER_SLICE = 250
"""Samples that are encoded in one go, some milliseconds: requests are served between two slices."""

END_OF_OPENMETRICS = b"# EOF\n"


class _Slice(Collector):
    """A part of one family, for encoding."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


async def encode_in_slices(metrics: Iterable[Metric], encode: Callable[[Collector], bytes]) -> bytes:
    """Return the exposition of all families. Other tasks of the event loop run between two slices."""
    parts: list[bytes] = []
    for metric in metrics:
        for at, part in enumerate(_slices(metric)):
            text = encode(_Slice(part)).removesuffix(END_OF_OPENMETRICS)
            parts.append(text if at == 0 else _without_head(text))
            await asyncio.sleep(0)
    ends = encode(_Slice(Metric("none", "", "gauge"))).endswith(END_OF_OPENMETRICS)
    return b"".join(parts) + (END_OF_OPENMETRICS if ends else b"")


def _slices(metric: Metric) -> Iterator[Metric]:
    """Yield the family in parts. One without samples is one part."""
    for at in range(0, len(metric.samples) or 1, SAMPLES_PER_SLICE):
        part = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        part.samples = metric.samples[at : at + SAMPLES_PER_SLICE]
        yield part


def _without_head(text: bytes) -> bytes:
    """Return a part without the lines that describe its family."""
    while text.startswith(b"#"):
        text = text.partition(b"\n")[2]
    return text


def encoder_for(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return the encoder that an Accept header asks for, plain text for a malformed one, and its content type."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # Of a version that is no number.
        return choose_encoder("")


def metrics_app(registry: CollectorRegistry, is_ready: Callable[[], bool]) -> web.Application:
    """Return the application of the metrics port."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = encoder_for(request.headers.get("accept", ""))
        body = await encode_in_slices(registry.collect(), encode)
        return web.Response(body=body, headers={"content-type": content_type})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if is_ready() else web.Response(text="not ready\n", status=503)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/health", health), web.get("/ready", ready)])
    return app
