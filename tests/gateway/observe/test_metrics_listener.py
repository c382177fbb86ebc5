"""The metrics port can be read by anybody and changed by nobody."""

import asyncio

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.observe.metrics_listener import SAMPLES_PER_SLICE, encode_in_slices, metrics_app


async def test_metrics_health_and_readiness() -> None:
    """Liveness is not readiness; a scrape gets the format that it asks for."""
    registry = CollectorRegistry()
    Gauge("hearth_x", "X.", registry=registry).set(5)
    ready = [False]
    async with TestClient(TestServer(metrics_app(registry, lambda: ready[0]))) as client:
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=")
        assert "hearth_x 5.0" in await metrics.text()
        modern = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
        assert modern.headers["content-type"].startswith("application/openmetrics-text")
        assert (await modern.text()).endswith("# EOF\n")
        assert (await client.get("/health")).status == 200
        assert (await client.get("/ready")).status == 503
        ready[0] = True
        assert (await client.get("/ready")).status == 200


async def test_a_malformed_accept_header_is_answered_with_plain_text() -> None:
    """Anybody may send one: it is no failure of the gateway."""
    async with TestClient(TestServer(metrics_app(CollectorRegistry(), lambda: True))) as client:
        metrics = await client.get("/metrics", headers={"accept": "application/openmetrics-text;version=x"})
        assert metrics.status == 200
        assert metrics.headers["content-type"].startswith("text/plain; version=")


async def test_it_is_read_only() -> None:
    """No other method, no other path."""
    async with TestClient(TestServer(metrics_app(CollectorRegistry(), lambda: True))) as client:
        assert (await client.post("/metrics")).status == 405
        assert (await client.get("/receipts")).status == 404


class Ready(Collector):
    """Families as they are."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        return self.families


@pytest.mark.parametrize("accepted", ["text/plain", "application/openmetrics-text; version=1.0.0"])
async def test_a_large_page_is_encoded_in_slices(accepted: str) -> None:
    """The same bytes as in one go, in both formats that Prometheus asks for; other tasks run in between."""
    registry, turns = CollectorRegistry(), 0
    counter = CounterMetricFamily("hearth_requests", 'Requests "ended".', labels=("model_name",))
    histogram = HistogramMetricFamily("hearth_wait_seconds", "Waits.", labels=("tier",))
    for number in range(2 * SAMPLES_PER_SLICE + 7):
        counter.add_metric((f"m\n{number}",), number)
        histogram.add_metric((str(number),), [("0.1", number), ("+Inf", number + 1)], 0.5)
    empty = CounterMetricFamily("hearth_nothing", "Nothing.", labels=("x",))
    registry.register(Ready([counter, empty, histogram]))
    encode, _ = choose_encoder(accepted)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    try:
        assert await encode_in_slices(registry.collect(), encode) == encode(registry)
    finally:
        task.cancel()
    assert turns > 5
