"""The metrics port can be read by anybody and changed by nobody."""

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Gauge

from gateway.observe.metrics_listener import metrics_app


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


async def test_it_is_read_only() -> None:
    """No other method, no other path."""
    async with TestClient(TestServer(metrics_app(CollectorRegistry(), lambda: True))) as client:
        assert (await client.post("/metrics")).status == 405
        assert (await client.get("/receipts")).status == 404
