"""What is left of an answer that was cut is asked for as often as cuts may be, whoever else fails it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.pipeline.attempt import AttemptLimits, AttemptResult, AttemptStatus, ResumeBlocker
from routing.decision.placement import Placement
from routing.request import Api, Request, Usage
from routing.retries import RetryTerms
from simulator.clock import run_virtually
from tests.gateway.pipeline.test_pipeline import MODEL, PROMPT, PlayedCarrier, Stage

REST = Request("r", Api.CHAT, MODEL, PROMPT, stream=True)
CUT = AttemptResult(AttemptStatus.CONNECTION_RESET, started=True, continuation=REST)
PREFILL_LOST = AttemptResult(AttemptStatus.CONNECTION_RESET)
"""As a pair says it whose prefill pod has failed: the client is told nothing by such an attempt."""
ANSWERED = AttemptResult(AttemptStatus.OK, 200, started=True, usage=Usage(400, 10, 100))


class Cutting(PlayedCarrier):
    """Ends its attempts so, one after the other, the last one again and again."""

    def __init__(self, legs: Sequence[AttemptResult]) -> None:
        super().__init__(())
        self._legs = legs

    async def run_attempt(self, placement: Placement, first_byte_by_s: float) -> AttemptResult:
        leg = self._legs[min(len(self.pods), len(self._legs) - 1)]
        self.pods.append(placement.engine.pod)
        if leg.started:
            placement.first_token(asyncio.get_running_loop().time())
        return leg


def led(*legs: AttemptResult, cuts: int = 8) -> tuple[Cutting, Stage]:
    async def play() -> tuple[Cutting, Stage]:
        stage = Stage(AttemptLimits(retries=RetryTerms(max_resumes=cuts)), [f"http://pod{at}" for at in range(12)])
        carrier = Cutting(legs)
        await stage.passage.handle_request(REST, carrier)
        return carrier, stage

    carrier, stage = run_virtually(play())
    assert stage.router.ledger.is_empty()
    return carrier, stage


@pytest.mark.parametrize("before", [1, 3, 8])
def test_an_attempt_of_which_the_client_hears_nothing_ends_no_stream(before: int) -> None:
    """However often it was cut before: it is no longer a request that looks for its first byte."""
    carrier, stage = led(*[CUT] * before, PREFILL_LOST, ANSWERED)
    assert not carrier.refusals
    (outcome,) = stage.outcomes
    assert (outcome.status, outcome.resumes, outcome.resume_failure) == (200, before, None)


def test_it_is_cut_no_oftener_than_said() -> None:
    """And the outcome says that this was why, also where the last attempt said nothing."""
    carrier, stage = led(CUT, cuts=2)
    assert len(carrier.pods) == 3
    assert (len(carrier.refusals), stage.outcomes[0].resume_failure) == (1, ResumeBlocker.MAX_CUTS_OR_TIMEOUT)


def test_who_gives_up_says_why() -> None:
    """Nobody went on in time; the last attempt was one that its client heard nothing of."""
    _, stage = led(CUT, PREFILL_LOST)
    (outcome,) = stage.outcomes
    assert outcome.resume_failure is ResumeBlocker.MAX_CUTS_OR_TIMEOUT
