"""The spine looks before it leaps: what was seen decides, and who watches is told the end, however it comes."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from gateway.pipeline.attempt import AttemptStatus
from routing.cache_lookup import CacheHit, CacheLookup
from routing.precise.lookup_notifier import LookupNotifier
from routing.request import Api, Request
from simulator.clock import run_virtually
from tests.gateway.pipeline.test_pipeline import MODEL, PODS, PROMPT, Play, PlayedCarrier, Stage
from tests.routing.test_cache_lookup import Notes


def requested() -> Request:
    return Request("r", Api.CHAT, MODEL, PROMPT)


class Looker:
    """Sees one pod warm, after a while."""

    def __init__(self, stage: Stage, warm: str, *, takes_s: float = 0.5) -> None:
        self.notes = Notes()
        self._stage = stage
        stage.router.subscribe(LookupNotifier())
        self._warm = warm
        self._takes_s = takes_s

    async def __call__(self, request: Request) -> Request:
        await asyncio.sleep(self._takes_s)
        engine = self._stage.router.fleet.engine(self._warm)
        assert engine is not None
        slots = self._stage.router.fleet.eligible(MODEL).slots
        return replace(request, lookup=CacheLookup(400, {engine.slot: CacheHit(384)}, frozenset(slots), self.notes))


def test_what_was_observed_decides_and_the_time_it_took_counts() -> None:
    """From arrival on: waiting for a sight is part of the time to the first token."""

    async def play() -> tuple[Stage, Looker, PlayedCarrier]:
        stage = Stage()
        looker, carrier = Looker(stage, PODS[2]), PlayedCarrier((Play(token_after_s=1.0),))
        await stage.pipeline.handle_request(requested(), carrier, lookup=looker)
        return stage, looker, carrier

    stage, looker, carrier = run_virtually(play())
    assert carrier.pods == [PODS[2]]
    (outcome,) = stage.outcomes
    assert outcome.ttft_s == 1.5
    assert outcome.attempts[0].cache_source == "precise"
    assert outcome.attempts[0].predicted_cached_input_tokens == 384
    assert [stated[0] for stated in looker.notes.stated] == ["placed", "computed", "answered", "left", "over"]


def test_a_failed_pod_is_left_and_the_next_is_called() -> None:
    """One request, two placements, one end."""

    async def play() -> tuple[Looker, PlayedCarrier]:
        stage = Stage()
        looker = Looker(stage, PODS[0])
        carrier = PlayedCarrier((Play(AttemptStatus.CONNECTION_RESET, token_after_s=None), Play()))
        await stage.pipeline.handle_request(requested(), carrier, lookup=looker)
        return looker, carrier

    looker, carrier = run_virtually(play())
    assert carrier.pods[0] == PODS[0] != carrier.pods[1]
    assert [stated[0] for stated in looker.notes.stated] == [
        *("placed", "left"),
        *("placed", "computed", "answered", "left", "over"),
    ]


def test_who_leaves_while_we_look_is_charged_to_no_account() -> None:
    """A cancel in the middle of looking ends the request as a cancel anywhere does."""

    async def play() -> Stage:
        stage = Stage()
        looker = Looker(stage, PODS[0], takes_s=5.0)
        task = asyncio.create_task(stage.pipeline.handle_request(requested(), PlayedCarrier((Play(),)), lookup=looker))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not looker.notes.stated
        return stage

    stage = run_virtually(play())
    assert [outcome.attempts for outcome in stage.outcomes] == [()]
    assert stage.router.ledger.is_empty()
