"""All pods and all gateways are replaced one by one under load, and no request fails.

OpenAI's client asks without a pause through a plain balancer; what it raises is a failure, whatever it has tried again
by itself. One gateway is one process, the other one is several.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.chaos.wire import balanced
from tests.gateway.kv_index.redis_servers import free_ports
from tests.gateway.rolls import CLIENTS, Operator, Seat, a_gateway, a_pod, loaded, roll_gateway


@pytest.mark.timeout(600)
async def test_pods_and_gateways_are_rolled_and_no_request_fails(tmp_path: Path) -> None:
    """Two pods and two gateways, each restarted where it was, while six clients ask without a pause."""
    ports = iter(free_ports(8))
    pod_ports = [next(ports), next(ports)]
    urls = [f"http://127.0.0.1:{port}" for port in pod_ports]
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        pods = [Seat(partial(a_pod, port, tmp_path), stack) for port in pod_ports]
        gateways = [
            Seat(partial(a_gateway, [next(ports) for _ in range(3)], urls, flags), stack)
            for flags in ((), ("--processes", "2"))
        ]
        for seat in (*pods, *gateways):
            await seat.fill()
        front = await stack.enter_async_context(balanced(*(seat.now.at("traffic") for seat in gateways)))
        async with loaded(front.url, retries=2) as load:
            for seat, url in zip(pods, urls, strict=True):
                await Operator(gateways, session).rolls(seat, url)
                await load.goes_on()
            for seat in gateways:
                await roll_gateway(seat)
                await load.goes_on()
        assert not load.failures, load.failures
        assert load.served > 5 * CLIENTS


@pytest.mark.timeout(600)
async def test_a_pool_moves_to_new_addresses_and_no_request_fails(tmp_path: Path) -> None:
    """Both pods of a model are replaced by others elsewhere, as a watched file tells: one is drained, stopped and then
    written out, the other only written out, and stopped when it has finished.
    """
    ports = free_ports(7)
    urls, pod_file = [f"http://127.0.0.1:{port}" for port in ports[3:]], tmp_path / "pods"
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        pods = [Seat(partial(a_pod, port, tmp_path), stack) for port in ports[3:]]
        gateway = Seat(partial(a_gateway, ports[:3], (), ("--pod-file", str(pod_file))), stack)
        list_pods(pod_file, urls[:2])
        for seat in (*pods[:2], gateway):
            await seat.fill()
        operator = Operator([gateway], session)
        async with loaded(gateway.now.at("traffic"), retries=0) as load:
            await operator.drains(urls[0])
            await pods[0].empty()
            await pods[2].fill()
            list_pods(pod_file, urls[1:3])
            await operator.sees_ready(urls[2])
            await load.goes_on()
            await pods[3].fill()
            list_pods(pod_file, urls[2:])
            await operator.sees_ready(urls[3])
            await operator.sees_gone(urls[1])
            await pods[1].empty()
            await load.goes_on()
        assert not load.failures, load.failures


def list_pods(pod_file: Path, urls: Sequence[str]) -> None:
    """All at once, so that nobody reads a half of it."""
    written = pod_file.with_suffix(".new")
    written.write_text("\n".join(urls))
    written.replace(pod_file)
