"""Looks at the findings of every gateway while a run goes on: each needs a deed that explains it, and ends with it.

Deeds are shorter than the 15 to 30 s of evidence that a finding takes, so most runs have none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from tests.chaos.cast import Cast, Gateway
from tests.chaos.deeds import Kind, Pace, Whom
from tests.chaos.programs import pause

EVERY_S = 2.0

CLEARED_WITHIN_S = 60.0

STALLS = (Kind.HANG_POD, Kind.FREEZE_POD, Kind.CRASH_POD)

EXPLAINS: Mapping[str, Sequence[Kind]] = {
    "engine_stalled": STALLS,
    "dp_rank_stalled": STALLS,
    "slower_than_peers": (Kind.SLOW_POD, *STALLS),
    "redis_slow": tuple(kind for kind in Kind if kind.whom is Whom.REDIS and kind is not Kind.FLUSH_REDIS),
    "gateway_saturated": (Kind.PAUSE_GATEWAY, Kind.CROWD_GATEWAY),
}
"""By recipe: deeds that bring its fault about. A pod that is killed, stopped, paused or cut off has none of them."""


LASTING = Pace(apart_s=(8.0, 16.0), lasts_s=(45.0, 45.0))
"""Of deeds that last for long enough to be found; the next: those that may be."""

FINDABLE = tuple(sorted({kind for kinds in EXPLAINS.values() for kind in kinds if kind.whom is not Whom.GATEWAY}))


@dataclass(frozen=True, slots=True)
class Done:
    """A deed that was done, by the loop's clock."""

    name: str
    """Whom it was done to."""
    kind: Kind
    who: int
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Found:
    """A finding of one gateway: from when until when it was seen."""

    gateway: str
    recipe: str
    pods: set[int]
    """Places of the pods that it has named; empty: it names none."""
    first_s: float
    last_s: float

    def is_of(self, done: Done) -> bool:
        """Whether this deed brings such a finding about, on one of its pods."""
        is_there = done.kind.whom is not Whom.POD or done.who in self.pods
        return is_there and done.kind in EXPLAINS.get(self.recipe, ())


@dataclass(slots=True)
class FindingWatch:
    """Reads the findings of all gateways; `found` is in the order in which they were raised."""

    cast: Cast
    found: list[Found] = field(default_factory=list)
    _lasting: dict[tuple[str, str, str], Found] = field(default_factory=dict)

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.gather(*map(self._look, self.cast.gateways))
            await pause(EVERY_S)

    async def settle(self) -> None:
        """Wait until no gateway shows a finding, for as long as one may last after its deed."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + CLEARED_WITHIN_S + 2 * EVERY_S
        while self._lasting and clock() < until_s:
            await pause(EVERY_S)

    async def _look(self, gateway: Gateway) -> None:
        shown: object = None
        with suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with self.cast.session.get(
                f"{gateway.admin}/findings", timeout=aiohttp.ClientTimeout(total=EVERY_S)
            ) as answer:
                shown = await answer.json() if answer.status == 200 else None
        if isinstance(shown, dict):
            places = {wire.url: place for place, wire in enumerate(self.cast.pod_wires)}
            self.note(gateway.name, shown["findings"], places, asyncio.get_running_loop().time())

    def note(
        self, gateway: str, findings: Sequence[Mapping[str, object]], places: Mapping[str, int], now_s: float
    ) -> None:
        """Note what a gateway shows now."""
        keys = set()
        for each in findings:
            key = (gateway, str(each["recipe"]), str(each["pool"]))
            keys.add(key)
            held = self._lasting.get(key)
            if held is None:
                held = self._lasting[key] = Found(gateway, key[1], set(), now_s, now_s)
                self.found.append(held)
            pods = each["pods"]
            held.pods |= {places[pod] for pod in pods if pod in places} if isinstance(pods, list) else set()
            held.last_s = now_s
        for key in [key for key in self._lasting if key[0] == gateway and key not in keys]:
            del self._lasting[key]

    def lines(self, done: Sequence[Done]) -> Iterator[str]:
        """Yield each finding with the last deed that explains it, and the seconds between them."""
        for found in self.found:
            causes = [each for each in done if found.is_of(each) and each.began_s <= found.last_s]
            how = "unexplained"
            if causes:
                last, after_s = max(causes, key=lambda each: each.ended_s), found.first_s - causes[0].began_s
                how = f"{last.kind} {last.who}; found {after_s:.0f} s after its begin"
                how += f", last seen {found.last_s - last.ended_s:+.0f} s from its end"
            yield f"{found.gateway} found {found.recipe} of pods {sorted(found.pods)}: {how}"

    def faults(self, done: Sequence[Done]) -> Iterator[str]:
        """Yield what no deed explains, and what lasted for longer than a minute after the last deed that does."""
        for found in self.found:
            causes = [each for each in done if found.is_of(each) and each.began_s <= found.last_s]
            title = f"{found.gateway} found {found.recipe} of pods {sorted(found.pods)}"
            if not any(each.began_s <= found.first_s <= each.ended_s + CLEARED_WITHIN_S for each in causes):
                yield f"{title} for {found.last_s - found.first_s:.0f} s, and nothing of that kind was done to them"
            elif (late_s := found.last_s - max(each.ended_s for each in causes)) > CLEARED_WITHIN_S:
                yield f"{title} until {late_s:.0f} s after the deed's end"
