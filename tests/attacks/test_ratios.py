"""The measure of the attacks itself: it sees what a process spends, and counts in plain requests."""

from __future__ import annotations

import asyncio

from tests.attacks.ratios import Cost, a_target, cost_of, plain_reading, plain_request, read_answer


def test_a_ratio_counts_in_plain_requests() -> None:
    """Twice the time is a ratio of two, and a plain request that took no measurable time is no division by zero."""
    assert Cost(0.2).ratio(Cost(0.1)) == 2.0
    assert Cost(0.1).ratio(Cost(0.0)) == 0.1 / 1e-6


def test_a_call_is_measured_in_time_and_memory() -> None:
    """Work that is a hundred times as much costs more, and what it holds is counted though it is let go."""
    assert cost_of(lambda: sum(range(1_000_000))).cpu_s > cost_of(lambda: sum(range(1000))).cpu_s
    assert cost_of(lambda: bytearray(1 << 20)).peak_bytes >= 1 << 20
    assert plain_reading().cpu_s > 0


async def test_a_gateway_is_measured_from_outside() -> None:
    """Fifty plain requests cost about fifty times one, and doing nothing costs next to none."""
    async with a_target() as target:
        plain = await target.plain()

        async def fifty() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            for _ in range(50):
                writer.write(plain_request())
                assert (await read_answer(reader))[0] == 200
            writer.close()

        many, nothing = await target.cost(fifty), await target.cost(lambda: asyncio.sleep(0))
        assert 5 < many.ratio(plain) < 500
        assert nothing.cpu_s < many.cpu_s
