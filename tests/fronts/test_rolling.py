"""Gateways behind nginx are restarted one by one under load, and no request fails, though no client tries again.

nginx keeps connections to both and learns from nobody that a gateway goes: it finds out by those connections alone.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from tests.fronts.fronts import nginx
from tests.gateway.kv_index.redis_servers import free_ports
from tests.gateway.rolls import Seat, a_gateway, a_pod, loaded, roll_gateway

KEPT = 32

STAYS = "max_fails=0"
"""Else nginx passes a gateway over for ten seconds once it did not reach it; with both passed over, all fail."""

MOVES = "error timeout non_idempotent"
"""A connection between two requests may be closed while one is on its way: POST, too, goes to the next gateway then."""


async def test_two_gateways_are_rolled_and_no_request_fails(tmp_path: Path) -> None:
    """As docs/operations.md tells operators to set it."""
    ports = iter(free_ports(7))
    pod = next(ports)
    at = [[next(ports) for _ in range(3)] for _ in range(2)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(a_pod(pod, tmp_path))
        gateways = [Seat(partial(a_gateway, three, [f"http://127.0.0.1:{pod}"], ()), stack) for three in at]
        for seat in gateways:
            await seat.fill()
        front = nginx(*(traffic for traffic, _, _ in at), buffers=True, keeps=KEPT, of_server=STAYS, moves=MOVES)
        port = await stack.enter_async_context(front)
        async with loaded(f"http://127.0.0.1:{port}", retries=0) as load:
            for seat in gateways:
                await roll_gateway(seat)
                await load.goes_on()
        assert not load.failures, load.failures
