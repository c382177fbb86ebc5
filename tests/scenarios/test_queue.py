"""More is asked than engines can do: who waits, who goes first, and what becomes of a queue when things change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Any

import openai

from simulator.profile import Profile
from tests.scenarios.place import LONG, Place, a_place, asking

SLOW = Profile(step_base_s=0.02, prefill_tokens_per_s=4_000, max_num_seqs=4, by_priority=True)


class Crowd:
    """Requests of one tenant that are all under way at once."""

    def __init__(self, place: Place, tenant: str, count: int, **more: Any) -> None:
        self.client = place.openai(tenant, max_retries=0, timeout=200)
        self.ended: list[str] = []
        self.tasks = [asyncio.create_task(self._ask(tenant, number, more)) for number in range(count)]

    async def _ask(self, tenant: str, number: int, more: dict[str, Any]) -> None:
        try:
            await self.client.chat.completions.create(**asking(f"{tenant} {number} {LONG * 4}", **more))
            self.ended.append("answered")
        except openai.APIStatusError as rejected:
            self.ended.append(rejected.response.headers["x-hearth-reason"])

    async def leave(self) -> None:
        """All hang up."""
        for task in self.tasks:
            task.cancel()
        await self.over()

    async def over(self) -> Counter[str]:
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.close()
        return Counter(self.ended)


async def queued(place: Place, tier: str) -> float:
    """How many of a tier wait now."""
    start = f'hearth_queued_requests{{pool="big",tier="{tier}"}}'
    lines = (line for line in (await place.metrics()).splitlines() if line.startswith(start))
    return float(next(lines, " 0").rpartition(" ")[2])


async def has(happens: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so."""
    async with asyncio.timeout(120):
        while not await happens():
            pass


@asynccontextmanager
async def a_full_place(tmp_path: Path, *flags: str) -> AsyncIterator[tuple[Place, Crowd]]:
    """More bronze than can be served in time: some wait, some are refused. Gold is known to come."""
    tenants = {"vip": {"tier": "gold"}, "crowd": {"tier": "bronze"}}
    async with a_place(tmp_path, *flags, profile=SLOW, **tenants) as place:
        for _ in range(6):
            assert await Crowd(place, "vip", 1).over() == {"answered": 1}
        bronze = Crowd(place, "crowd", 100)
        try:
            await has(lambda: have_come(place, bronze))
            await has(lambda: waits(place, "bronze"))
            yield place, bronze
        finally:
            await bronze.leave()


async def have_come(place: Place, crowd: Crowd) -> bool:
    """Whether the gateway has taken in all of them."""
    ended = len(crowd.ended)
    line = next(line for line in (await place.metrics()).splitlines() if line.startswith("hearth_requests_in_flight "))
    return ended + float(line.rpartition(" ")[2]) >= len(crowd.tasks)


async def waits(place: Place, tier: str) -> bool:
    return await queued(place, tier) > 0


async def are_refused(crowd: Crowd, count: int) -> bool:
    """Whether so many of them have been by now."""
    await asyncio.sleep(0)
    return crowd.ended.count("overloaded") >= count


async def test_gold_passes_bronze_in_the_queue(tmp_path: Path) -> None:
    """Who comes later with the better promise is answered before the last of those before it; and some of these, who
    could not be served in time, have heard so at once.
    """
    async with a_full_place(tmp_path) as (place, bronze):
        await has(lambda: are_refused(bronze, 11))
        assert bronze.ended[:10] == ["overloaded"] * 10
        short = [{"role": "user", "content": "Now, please."}]
        assert await Crowd(place, "vip", 1, messages=short).over() == {"answered": 1}
        assert len(bronze.ended) < len(bronze.tasks)
        ended = await bronze.over()
        assert set(ended) == {"answered", "overloaded"}
        rejected = [receipt for receipt in await place.receipts("crowd") if receipt["reason"]]
        assert {(receipt["status"], receipt["reason"]) for receipt in rejected} == {(429, "overloaded")}
        shown = await place.metrics()
        assert 'hearth_queued_requests{pool="big",tier="bronze"} 0.0' in shown
        assert (
            f'hearth_tier_rejections_total{{pool="big",reason="overloaded",tier="bronze"}} {ended["overloaded"]}.0'
            in shown
        )


async def test_a_client_that_leaves_frees_its_place(tmp_path: Path) -> None:
    """In the queue as on the engine: nothing waits any more when all have gone."""
    async with a_full_place(tmp_path) as (place, bronze):
        await bronze.leave()

        async def is_empty() -> bool:
            return not await waits(place, "bronze")

        await has(is_empty)
        assert await Crowd(place, "crowd", 1).over() == {"answered": 1}


async def test_a_drain_answers_the_queue(tmp_path: Path) -> None:
    """Who waits when the gateway is told to stop is served before it ends."""
    async with a_full_place(tmp_path) as (place, bronze):
        place.gateway.running.send_signal(SIGTERM)
        ended = await bronze.over()
        assert await place.gateway.end() == 0
        assert set(ended) == {"answered", "overloaded"}
        assert ended["answered"] > 4


async def test_a_reload_keeps_the_queue(tmp_path: Path) -> None:
    """Who waits keeps its place and its promise; who comes after is under the new policy."""
    async with a_full_place(tmp_path) as (place, bronze):
        place.write(vip={"tier": "gold"}, crowd={"models": ["small"]})
        place.gateway.running.send_signal(SIGHUP)
        await place.gateway.until("reload_succeeded")
        assert await Crowd(place, "crowd", 1).over() == {"model_not_allowed": 1}
        ended = await bronze.over()
        assert set(ended) == {"answered", "overloaded"}
