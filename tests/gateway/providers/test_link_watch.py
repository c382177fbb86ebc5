"""The watch of links of requests under way: how long a probe may take, and that it ends with the watch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config.providers import ProviderApi, ProviderEndpoint, ProviderQuirks
from gateway.providers.link import LinkProbe
from gateway.providers.link_watch import LOOK_SHARE, MIN_PROBE_SHARE, TRUSTED_SHARE, LinkWatch, _probe_s
from gateway.providers.monitor import ProviderMonitor
from gateway.relay.upstream_pool import UpstreamPool
from tests.gateway.hostile_links import an_endless_server
from tests.gateway.kv_index.exchange import until


@dataclass
class Silent:
    """One endpoint with a request of which no byte comes; what the watch does to it."""

    config: ProviderEndpoint
    done: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Any]:
        yield SimpleNamespace(config=self.config, open_requests=1)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def silence_s(self, _: str) -> float:
        return 1e9

    def note_cut(self, url: str) -> None:
        self.done.append(url)

    def fail_silent(self, *_: object) -> None:
        self.done.append("failed")


async def test_a_probe_ends_with_the_gateway() -> None:
    """One that waits for an answer when the gateway stops is cancelled and closed, and blames no endpoint."""
    async with an_endless_server() as server:
        quirks = ProviderQuirks(probe_path="/models")
        url = f"http://127.0.0.1:{server.port}/v1"
        endpoint = ProviderEndpoint(
            "one", "acme", "eu", url, ProviderApi.OPENAI, {}, quirks=quirks, connect_timeout_s=1000.0
        )
        link = Silent(endpoint)
        watch = LinkWatch(cast("ProviderMonitor", link), cast("UpstreamPool", link), LinkProbe())
        watch.begin()
        running = asyncio.create_task(watch.run())
        await until(lambda: server._writers)
        (probe,) = watch._probing.values()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        assert probe.cancelled()
        assert not watch._probing
        await server.pulse.until(lambda: server.has_closed(1))
        assert link.done == []


@pytest.mark.parametrize(
    ("took_s", "allowed_s"),
    [(None, 0.6), (0.001, 0.3), (0.075, 0.3), (0.1, 0.4), (0.2, 0.6), (5.0, 0.6)],
)
def test_a_probe_may_take_four_times_the_last_ones(took_s: float | None, allowed_s: float) -> None:
    """Between three and six tenths of the connect timeout; without a probe that was answered the longest."""
    assert _probe_s(1.0, took_s) == pytest.approx(allowed_s)
    assert _probe_s(2.0, None if took_s is None else 2.0 * took_s) == pytest.approx(2.0 * allowed_s)


def test_a_cut_behind_a_fast_link_is_noticed_within_three_quarters() -> None:
    """Also where a probe was answered just before the cut, as the docs state."""
    assert TRUSTED_SHARE + LOOK_SHARE + MIN_PROBE_SHARE <= 0.75
